"""Recursive halving, then doubling: 2 log2(n) messages, and 2(n-1)/n S bytes if n is a power of two.

Ranks split into halves repeatedly. In each split, a rank sends the other half's part to its peer there, and reduces
what it receives (Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005).
If a half has one more rank, this rank sends to the last rank of the other half, so any n works without extra steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from torch import Tensor

from parabench.collectives.algorithm import Algorithm, Reduction
from parabench.collectives.wire import Message, Wire, finish, split

# The channel of doubling, because its receives are posted before halving begins.
BACK = 1


@dataclass(frozen=True, slots=True)
class Split:
    """The messages of one rank in one split: it sends to `to`, and receives from `sources`.

    `kept` and `given` are (first, end) of the parts of this rank's half and of the other half. The rank sends the given
    parts, and receives its kept parts.
    """

    kept: tuple[int, int]
    given: tuple[int, int]
    to: int
    sources: tuple[int, ...]


@cache
def splits(rank: int, size: int) -> tuple[Split, ...]:
    """Return the splits of `rank` among `size` ranks, the widest first."""
    found = []
    low, high = 0, size
    while high - low > 1:
        middle = low + (high - low + 1) // 2
        left, right = (low, middle), (middle, high)
        extra = middle - 1 if middle - low > high - middle else None
        if rank == extra:
            found.append(Split(left, right, high - 1, ()))
        elif rank < middle:
            peer = rank + middle - low
            found.append(Split(left, right, peer, (peer,)))
        else:
            peer = rank - (middle - low)
            also = () if extra is None or rank != high - 1 else (extra,)
            found.append(Split(right, left, peer, (peer, *also)))
        low, high = left if rank < middle else right
    return tuple(found)


def _edges(flat: Tensor, size: int) -> list[int]:
    """Return the first element of each of `size` parts, as in `wire.split`, and the number of elements."""
    return [flat.numel() * i // size for i in range(size + 1)]


def reduce_scatter(wire: Wire, output: Tensor, flat: Tensor, reduction: Reduction) -> None:
    """Set rank r's `output` to the reduced r-th part of `flat`."""
    edges = _edges(flat, wire.size)
    ways = splits(wire.rank, wire.size)
    receives: list[list[tuple[Tensor, Message]]] = []
    for number, way in enumerate(ways):
        numel = edges[way.kept[1]] - edges[way.kept[0]]
        buffers = [wire.scratch(f"halving {number} {place}", flat, numel) for place in range(len(way.sources))]
        receives.append([(into, wire.recv(into, source)) for into, source in zip(buffers, way.sources, strict=True)])
    held, start = flat, 0  # the part that this rank still reduces, and its start in `flat`
    sends: list[Message] = []
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


def all_gather(wire: Wire, output: Tensor, part: Tensor) -> None:
    """Set `output` to the parts of all ranks, in order: halving in reverse."""
    _double(wire, output, part, _post(wire, output))


def _post(wire: Wire, output: Tensor) -> list[Message]:
    """Post the receives of doubling. They are returned in order."""
    edges = _edges(output, wire.size)
    ways = splits(wire.rank, wire.size)[::-1]
    return [wire.recv(output[edges[way.given[0]] : edges[way.given[1]]], way.to, BACK) for way in ways]


def _double(wire: Wire, output: Tensor, part: Tensor, receives: Sequence[Message]) -> None:
    """Gather the parts of all ranks into `output`, with one message for each split, in reverse order."""
    edges = _edges(output, wire.size)
    place = output[edges[wire.rank] : edges[wire.rank + 1]]
    copies = place.data_ptr() != part.data_ptr()
    sends: list[Message] = []
    ways = splits(wire.rank, wire.size)[::-1]
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
    # Post the receives of doubling first, because their notices wait behind messages.
    receives = _post(wire, flat)
    reduce_scatter(wire, part, flat, reduction)
    _double(wire, flat, part, receives)


def broadcast(wire: Wire, flat: Tensor, root: int) -> None:
    """Scatter the root's tensor by halves, then gather it by doubling."""
    turned = wire.among([(root + i) % wire.size for i in range(wire.size)])
    edges = _edges(flat, wire.size)
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
