"""Recursive halving, then doubling: 2 log2(n) messages, and 2(n-1)/n S bytes where n is a power of two.

Ranks split into halves again and again. At every split a rank gives its peer in the other half what that half is
responsible for, and reduces what it is given (Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", 2005). Where a half is one rank larger, that rank's share goes to the other half's
last rank, so any n works without a step before or after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from torch import Tensor

from parabench.collectives.algorithm import Algorithm, Reduction
from parabench.collectives.wire import Message, Wire, finish, split


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


def _bounds(flat: Tensor, size: int) -> list[int]:
    """Where each part begins, as `split` cuts; and the end."""
    numel = flat.numel()
    return [numel * i // size for i in range(size + 1)]


def reduce_scatter(wire: Wire, output: Tensor, flat: Tensor, reduction: Reduction) -> None:
    """Rank r's `output` becomes the reduced r-th part of `flat`."""
    edges = _bounds(flat, wire.size)
    held, start = flat, 0  # what this rank still reduces, and where in `flat` that begins
    sends: list[Message] = []
    ways = rounds(wire.rank, wire.size)
    receives = [_post(wire, number, way, edges, flat) for number, way in enumerate(ways)]
    for number, way in enumerate(ways):
        first, end = way.given
        sends.append(wire.send(held[edges[first] - start : edges[end] - start], way.to))
        first, end = way.kept
        mine = held[edges[first] - start : edges[end] - start]
        into = output if number == len(ways) - 1 else receives[number][0][0] if way.sources else mine
        for theirs, receive in receives[number]:
            receive.wait()
            reduction.combine(into, mine, theirs)
            mine = into
        held, start = mine, edges[first]
    if held is not output:
        output.copy_(held)
    reduction.finish(output)
    finish(sends)


def _post(wire: Wire, number: int, way: Round, edges: list[int], flat: Tensor) -> list[tuple[Tensor, Message]]:
    numel = edges[way.kept[1]] - edges[way.kept[0]]
    arriving = [wire.scratch(f"halving {number} {place}", flat, numel) for place in range(len(way.sources))]
    return [(into, wire.recv(into, source)) for into, source in zip(arriving, way.sources, strict=True)]


def all_gather(wire: Wire, output: Tensor, part: Tensor) -> None:
    """`output` becomes the parts of all ranks, in their order: the halving's way back."""
    _gather(wire, output, part, _expect(wire, output))


# The way back has a channel of its own, because its receives are posted before the way out begins.
BACK = 1


def _expect(wire: Wire, output: Tensor) -> list[Message]:
    edges = _bounds(output, wire.size)
    return [
        wire.recv(output[edges[way.given[0]] : edges[way.given[1]]], way.to, BACK)
        for way in rounds(wire.rank, wire.size)[::-1]
    ]


def _gather(wire: Wire, output: Tensor, part: Tensor, receives: Sequence[Message]) -> None:
    edges = _bounds(output, wire.size)
    place = output[edges[wire.rank] : edges[wire.rank + 1]]
    copies = place.data_ptr() != part.data_ptr()
    sends: list[Message] = []
    ways = rounds(wire.rank, wire.size)[::-1]
    for number, (way, receive) in enumerate(zip(ways, receives, strict=True)):
        kept = output[edges[way.kept[0]] : edges[way.kept[1]]] if number else part
        sends += [wire.send(kept, source, BACK) for source in way.sources]
        if copies and not number:
            place.copy_(part)  # while the first message travels
        receive.wait()
    if copies and not ways:
        place.copy_(part)
    finish(sends)


def all_reduce(wire: Wire, flat: Tensor, reduction: Reduction) -> None:
    """Reduce `flat` over all ranks, in place."""
    part = split(flat, wire.size)[wire.rank]
    # The news of a receive would wait behind what is being sent, so those of the way back are posted first.
    receives = _expect(wire, flat)
    reduce_scatter(wire, part, flat, reduction)
    _gather(wire, flat, part, receives)


def broadcast(wire: Wire, flat: Tensor, root: int) -> None:
    """The root's tensor is scattered by halves, then gathered by doubling."""
    turned = wire.among([(root + i) % wire.size for i in range(wire.size)])
    edges = _bounds(flat, wire.size)
    sends: list[Message] = []
    low, high = 0, wire.size
    while high - low > 1:
        middle = low + (high - low + 1) // 2
        upper = flat[edges[middle] : edges[high]]
        if turned.rank == low:
            sends.append(turned.send(upper, middle))
        elif turned.rank == middle:
            turned.recv(upper, low).wait()
        low, high = (low, middle) if turned.rank < middle else (middle, high)
    finish(sends)
    all_gather(turned, flat, flat[edges[turned.rank] : edges[turned.rank + 1]])


HALVING_DOUBLING = Algorithm(
    name="halving_doubling",
    all_reduce=all_reduce,
    reduce_scatter=reduce_scatter,
    all_gather=all_gather,
    broadcast=broadcast,
)
