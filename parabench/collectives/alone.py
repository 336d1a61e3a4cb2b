"""Groups of many ranks of which only one is there: its collectives are over at once and nothing travels.

What a rank then takes for a step is what it computes, and what it holds is what it would hold among all of them: a
shard's memory and arithmetic on one device. Its results are no training's. PyTorch has such a group for dry runs, the
backend `fake` (torch/csrc/distributed/c10d/FakeProcessGroup.hpp); its works have no result, which DDP needs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FakeProcessGroup, HashStore
from torch.distributed import ProcessGroup, Work

from parabench.collectives.algorithm import Algorithm
from parabench.collectives.async_queue import FutureWork
from parabench.collectives.process_group import AlgorithmGroup
from parabench.collectives.wire import Wire
from parabench.machine import accelerator

BACKEND = "alone"


class Log(Protocol):
    """Notes what a rank calls, and when it waits."""

    def called(self, op: str, size: int, ranks: list[int]) -> int:
        """A call of so many bytes begins; its number."""

    def returned(self) -> None:
        """The call returns to its caller."""

    def waits(self, call: int) -> None:
        """Somebody waits for the outcome of a call."""


# Who notes what the groups of this process are asked for; None while steps are timed.
log: Log | None = None


def _reduced(_: Wire, __: Tensor, ___: Any) -> None:
    pass


def _scattered(wire: Wire, output: Tensor, flat: Tensor, _: Any) -> None:
    output.copy_(flat.view(wire.size, -1)[wire.rank])


def _gathered(wire: Wire, output: Tensor, part: Tensor) -> None:
    # As if all ranks had the same: numbers that a computation can go on with.
    parts = output.view(wire.size, -1)
    for some in (parts[: wire.rank], parts[wire.rank : wire.rank + 1], parts[wire.rank + 1 :]):
        some.copy_(part.view(1, -1))


def _sent(_: Wire, __: Tensor, ___: int) -> None:
    pass


ALONE = Algorithm(name=BACKEND, all_reduce=_reduced, reduce_scatter=_scattered, all_gather=_gathered, broadcast=_sent)


class _Work(FutureWork):
    """The outcome of a call, there from the beginning."""

    def __init__(self, device: torch.device, call: int | None) -> None:
        super().__init__(device)
        self._call = call

    def wait(self, timeout: timedelta | None = None) -> bool:
        if log is not None and self._call is not None:
            log.waits(self._call)
        return super().wait(timeout)


def _over(results: list[Tensor], call: int | None) -> Work:
    """The outcome of a call that returns now."""
    work = _Work(results[0].device, call)
    work.finish(results)
    if log is not None:
        log.returned()
    return work


class AloneGroup(AlgorithmGroup):
    """`rank` of `size`, of which no other is there."""

    def __init__(self, rank: int, size: int) -> None:
        inner = FakeProcessGroup._create_internal(rank, size)
        super().__init__(inner, ProcessGroup.BackendType.CUSTOM, rank, size, ALONE)

    def _by_host(self, tensor: Tensor) -> bool:
        return False

    def _run(self, op: str, job: Callable[[], None], results: list[Tensor], tensors: list[Tensor], opts: Any) -> Work:
        self._count(op, results)
        call = None
        if log is not None:
            parts = self.size() if op == "reduce_scatter" else 1
            size = parts * sum(tensor.nbytes for tensor in results)
            call = log.called(op, size, dist.get_process_group_ranks(self))
        with torch.inference_mode():
            job()
        return _over(results, call)


def join(rank: int, world_size: int, timeout_s: float) -> None:
    """Make this process `rank` of a default group of `world_size` of which no other is there; every further group is
    such a one too."""

    def create(options: Any, _: object) -> AloneGroup:
        return AloneGroup(options.group_rank, options.group_size)

    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", accelerator.TYPE])
    dist.init_process_group(
        BACKEND, store=HashStore(), rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout_s)
    )
