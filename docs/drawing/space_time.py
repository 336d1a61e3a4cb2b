"""What travels when: an all-reduce over the simulated wire, message by message, with what each message carries."""

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
    """A message: in `round` (from 1) rank `src` sends `dst` these chunks of the tensor, each the sum of `summed`."""

    round: int
    src: int
    dst: int
    chunks: tuple[int, ...]
    summed: frozenset[int]


@dataclass(frozen=True, slots=True)
class SpaceTime:
    """An all-reduce of a tensor of `chunks` chunks between `size` ranks, in the one-port model."""

    size: int
    chunks: int
    arrows: tuple[Arrow, ...]

    @property
    def rounds(self) -> int:
        return max((arrow.round for arrow in self.arrows), default=0)

    def of_round(self, number: int) -> list[Arrow]:
        return [arrow for arrow in self.arrows if arrow.round == number]

    def finished(self, arrow: Arrow) -> bool:
        """Whether it carries the end result: the gather phase; else the receiver adds it to its own."""
        return len(arrow.summed) == self.size

    def share(self, number: int) -> Fraction:
        """The part of the tensor that the largest message of a round carries."""
        return Fraction(max(len(arrow.chunks) for arrow in self.of_round(number)), self.chunks)


def space_time(algorithm: Algorithm, size: int, chunks: int) -> SpaceTime:
    """Run `algorithm` on a tensor of one element a chunk, and read from every message what it carries.

    Rank r's i-th element is 2^r + i 2^n: of a sum of k ranks' elements the lower n bits tell whose, the upper
    ones are k i.
    """
    flats = [torch.tensor([(1 << rank) + (i << size) for i in range(chunks)]) for rank in range(size)]
    add = reduction(ReduceOp.SUM, size)
    record = Simulation(size).run(_all_reduce(algorithm, flats, add))
    arrows = []
    for message, number in rounds(record, one_port=True).items():
        assert message.data is not None  # every message has left
        carried = []
        for value in message.data.tolist():
            summed = frozenset(rank for rank in range(size) if value >> rank & 1)
            carried.append(((value >> size) // len(summed), summed))
        arrows.append(Arrow(number, message.src, message.dst, tuple(i for i, _ in carried), carried[0][1]))
    return SpaceTime(size, chunks, tuple(sorted(arrows, key=lambda arrow: (arrow.round, arrow.src))))


def _all_reduce(algorithm: Algorithm, flats: list[Tensor], add: Reduction) -> Callable[[Wire], None]:
    return lambda wire: algorithm.all_reduce(wire, flats[wire.rank], add)
