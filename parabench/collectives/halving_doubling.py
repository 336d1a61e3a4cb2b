"""Recursive halving, then doubling: 2 log2(n) messages, and 2(n-1)/n S bytes where n is a power of two.

Ranks split into halves again and again. At every split a rank gives its peer in the other half what that half is
responsible for, and reduces what it is given (Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", 2005). Where a half is one rank larger, that rank's share goes to the other half's
last rank, so any n works without a step before or after.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from torch import Tensor

from parabench.collectives.algorithm import Algorithm
from parabench.collectives.reduction import Reduction
from parabench.collectives.wire import Pending, Wire, split


@dataclass(frozen=True, slots=True)
class Round:
    """One split, as one rank sees it. Spans (first, end) count parts: the one this rank's half is responsible for,
    and the other. It gives the other half's part to `to` and is given its own half's by `sources`."""

    kept: tuple[int, int]
    given: tuple[int, int]
    to: int
    sources: tuple[int, ...]


@cache
def rounds(rank: int, size: int) -> tuple[Round, ...]:
    """The splits that `rank` takes part in, the widest first."""
    found = []
    low, high = 0, size
    while high - low > 1:
        middle = low + (high - low + 1) // 2
        left, right = (low, middle), (middle, high)
        extra = middle - 1 if middle - low > high - middle else None
        if rank < middle:
            if rank == extra:
                found.append(Round(left, right, high - 1, ()))
            else:
                peer = rank + middle - low
                found.append(Round(left, right, peer, (peer,)))
            high = middle
        else:
            peer = rank - (middle - low)
            also = () if extra is None or rank != high - 1 else (extra,)
            found.append(Round(right, left, peer, (peer, *also)))
            low = middle
    return tuple(found)


class _Parts:
    """The parts of a flat tensor, as `split` makes them, by spans of them."""

    def __init__(self, flat: Tensor, size: int) -> None:
        self._flat = flat
        self._bounds = [flat.numel() * i // size for i in range(size + 1)]

    def offsets(self, span: tuple[int, int]) -> tuple[int, int]:
        return self._bounds[span[0]], self._bounds[span[1]]

    def __getitem__(self, span: tuple[int, int]) -> Tensor:
        begin, end = self.offsets(span)
        return self._flat[begin:end]


def reduce_scatter(wire: Wire, output: Tensor, flat: Tensor, reduction: Reduction) -> None:
    """Rank r's `output` becomes the reduced r-th part of `flat`."""
    parts = _Parts(flat, wire.size)
    held, start = flat, 0  # what this rank still reduces, and where in `flat` that begins
    steps = rounds(wire.rank, wire.size)
    sends: list[Pending] = []
    for number, step in enumerate(steps):
        first, end = parts.offsets(step.given)
        sends.append(wire.exchange([(held[first - start : end - start], step.to)]))
        first, end = parts.offsets(step.kept)
        mine = held[first - start : end - start]
        arriving = [wire.scratch(f"halving {number} {i}", flat, end - first) for i in range(len(step.sources))]
        receives = [wire.exchange(recvs=[(t, peer)]) for t, peer in zip(arriving, step.sources, strict=True)]
        into = output if number == len(steps) - 1 else arriving[0] if arriving else mine
        for theirs, receive in zip(arriving, receives, strict=True):
            receive.wait()
            reduction.combine(into, mine, theirs)
            mine = into
        held, start = mine, first
    if held is not output:
        output.copy_(held)
    reduction.finish(output)
    for send in sends:
        send.wait()


def all_gather(wire: Wire, output: Tensor, part: Tensor) -> None:
    """`output` becomes the parts of all ranks, in their order: the halving's way back."""
    parts = _Parts(output, wire.size)
    parts[wire.rank, wire.rank + 1].copy_(part)
    sends: list[Pending] = []
    for step in reversed(rounds(wire.rank, wire.size)):
        sends.append(wire.exchange([(parts[step.kept], peer) for peer in step.sources]))
        wire.exchange(recvs=[(parts[step.given], step.to)]).wait()
    for send in sends:
        send.wait()


def all_reduce(wire: Wire, flat: Tensor, reduction: Reduction) -> None:
    """Reduce `flat` over all ranks, in place."""
    part = split(flat, wire.size)[wire.rank]
    reduce_scatter(wire, part, flat, reduction)
    all_gather(wire, flat, part)


def broadcast(wire: Wire, flat: Tensor, root: int) -> None:
    """The root's tensor is scattered by halves, then gathered by doubling."""
    turned = wire.among([(root + i) % wire.size for i in range(wire.size)])
    parts = _Parts(flat, wire.size)
    sends: list[Pending] = []
    low, high = 0, wire.size
    while high - low > 1:
        middle = low + (high - low + 1) // 2
        if turned.rank == low:
            sends.append(turned.exchange([(parts[middle, high], middle)]))
        elif turned.rank == middle:
            turned.exchange(recvs=[(parts[middle, high], low)]).wait()
        low, high = (low, middle) if turned.rank < middle else (middle, high)
    for send in sends:
        send.wait()
    all_gather(turned, flat, parts[turned.rank, turned.rank + 1])


HALVING_DOUBLING = Algorithm(
    name="halving_doubling",
    all_reduce=all_reduce,
    reduce_scatter=reduce_scatter,
    all_gather=all_gather,
    broadcast=broadcast,
)
