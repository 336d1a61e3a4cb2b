"""The wire for messages that are kernels on a stream: messages start as a group at the first wait."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import ReduceOp

from parabench.collectives import LEVELS, wire
from parabench.collectives.algorithm import Algorithm, make, reduction
from parabench.collectives.wire import StreamWire, Wire
from ranks_helpers import combined, whole_numbers
from simulated import Simulation

TWO_LEVELS = [f"two_level({inner},{outer})" for inner, outer in itertools.product(LEVELS, LEVELS)]


class Grouped:
    """A fake of NCCL over a simulated wire, without tags.

    Calls between the start and the end of a group are made at its end, and the stream waits for the whole group.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._group: list[Callable[[], Any]] | None = None

    def _start_coalescing(self) -> None:
        assert self._group is None
        self._group = []

    def send(self, tensors: list[Tensor], dstRank: int, tag: int) -> None:  # noqa: N803
        assert self._group is not None, "a message outside of a group"
        self._group.append(lambda: self._backend.send(tensors, dstRank, 0))

    def recv(self, tensors: list[Tensor], srcRank: int, tag: int) -> None:  # noqa: N803
        assert self._group is not None, "a message outside of a group"
        self._group.append(lambda: self._backend.recv(tensors, srcRank, 0))

    def _end_coalescing(self) -> Any:
        group, self._group = self._group, None
        assert group
        return Group([begin() for begin in group])


class Group:
    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


def streamed(under: Wire) -> StreamWire:
    """Return a stream's wire over the backend of a simulated wire."""
    return StreamWire(Grouped(under._backend), range(under.size), under.rank, scratch=under._scratch)


@pytest.mark.parametrize("size", range(1, 9))
def test_every_algorithm_runs_in_groups(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream does nothing between two groups. An order of messages that requires it would be a deadlock."""
    monkeypatch.setattr(wire, "PIECE_BYTES", 32)
    flat = [make(name, None) for name in LEVELS]
    for algorithm in (*flat, *(make(name, node) for name in TWO_LEVELS for node in (2, 4) if size % node == 0)):
        check(algorithm, size, 29)


def check(algorithm: Algorithm, size: int, numel: int) -> None:
    op = reduction(ReduceOp.SUM, size)
    inputs = [whole_numbers(rank, numel * size, torch.float32) for rank in range(size)]
    expected = combined("sum", inputs)
    flats = [each.clone() for each in inputs]
    parts = [torch.zeros(numel) for _ in range(size)]
    gathered = [torch.zeros(numel * size) for _ in range(size)]
    spread = [each.clone() for each in inputs]

    def work(under: Wire) -> None:
        mine = streamed(under)
        rank = mine.rank
        algorithm.all_reduce(mine, flats[rank], op)
        algorithm.reduce_scatter(mine, parts[rank], inputs[rank], op)
        algorithm.all_gather(mine, gathered[rank], parts[rank])
        assert algorithm.broadcast is not None
        algorithm.broadcast(mine, spread[rank], size - 1)

    Simulation(size).run(work)
    for rank in range(size):
        assert torch.equal(flats[rank], expected)
        assert torch.equal(gathered[rank], expected)
        assert torch.equal(spread[rank], inputs[-1])
