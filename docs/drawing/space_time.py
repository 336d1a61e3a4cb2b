"""Record the messages of an all-reduce over the simulated wire, with the content of each message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from parabench.collectives.algorithm import Algorithm, Reduction, reduction
from parabench.collectives.wire import Wire
from tests.fixtures.simulated import Simulation, rounds


@dataclass(frozen=True, slots=True)
class Arrow:
    """A message: in `round` (from 1), rank `src` sends chunks to `dst`. Each is the sum over the ranks `summed`."""

    round: int
    src: int
    dst: int
    chunks: tuple[int, ...]
    summed: frozenset[int]


@dataclass(frozen=True, slots=True)
class SpaceTime:
    """The messages of an all-reduce of `chunks` chunks on `size` ranks, in the one-port model."""

    size: int
    chunks: int
    arrows: tuple[Arrow, ...]

    @property
    def rounds(self) -> int:
        return max((arrow.round for arrow in self.arrows), default=0)

    def of_round(self, number: int) -> list[Arrow]:
        return [arrow for arrow in self.arrows if arrow.round == number]

    def finished(self, arrow: Arrow) -> bool:
        """Return whether a message has the final sum. Otherwise, the receiver adds its own data to it."""
        return len(arrow.summed) == self.size

    def share(self, number: int) -> Fraction:
        """Return the size of the largest message of a round, as a fraction of the tensor."""
        return Fraction(max(len(arrow.chunks) for arrow in self.of_round(number)), self.chunks)


def space_time(algorithm: Algorithm, size: int, chunks: int) -> SpaceTime:
    """Run `algorithm` on a tensor with one element per chunk, and decode every message.

    The i-th element of rank r is 2^r + i 2^n. In a sum over k ranks, the lower n bits name the ranks, and the upper
    bits are k i.
    """
    flats = [torch.tensor([(1 << rank) + (i << size) for i in range(chunks)]) for rank in range(size)]
    add = reduction(ReduceOp.SUM, size)
    record = Simulation(size).run(_all_reduce(algorithm, flats, add))
    arrows = []
    for message, number in rounds(record, one_port=True).items():
        assert message.data is not None  # every message was sent
        carried = []
        for value in message.data.tolist():
            summed = frozenset(rank for rank in range(size) if value >> rank & 1)
            carried.append(((value >> size) // len(summed), summed))
        arrows.append(Arrow(number, message.src, message.dst, tuple(i for i, _ in carried), carried[0][1]))
    return SpaceTime(size, chunks, tuple(sorted(arrows, key=lambda arrow: (arrow.round, arrow.src))))


def _all_reduce(algorithm: Algorithm, flats: list[Tensor], add: Reduction) -> Callable[[Wire], None]:
    return lambda wire: algorithm.all_reduce(wire, flats[wire.rank], add)
