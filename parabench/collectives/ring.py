"""Ring: each rank communicates only with its two neighbors.

Scatter-reduce, then all-gather: 2(n-1) steps of S/n bytes, the minimum that a rank can send
(Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from torch import Tensor

from parabench.collectives.algorithm import Algorithm, Reduction
from parabench.collectives.wire import Message, Wire, finish, pieces, pieces_of, split

# The number of receives for pieces to add that are posted ahead, each with a separate buffer.
AHEAD = 4
# The channel of final pieces. They are received in place, so all of these receives are posted at once.
FINAL = 1


class Arrival(NamedTuple):
    """A piece [begin, end) of the whole that this rank receives from the left."""

    begin: int
    end: int
    gathers: bool  # it is final; otherwise it is combined with this rank's piece
    last: bool  # this completes the reduction
    goes_on: bool  # the result is sent to the right


Trip = tuple[tuple[tuple[int, int], ...], tuple[Arrival, ...]]


@lru_cache(maxsize=256)
def trip(rank: int, size: int, numel: int, count: int, reduces: bool, gathers: bool) -> Trip:
    """Return the pieces that `rank` sends first, and its arrivals in order, if each chunk has `count` pieces.

    The trip is a scatter-reduce, an all-gather, or both in sequence. For an all-gather alone, no first pieces are
    returned, because the caller sends its own part, which is a separate tensor.
    """
    edges = [numel * i // size for i in range(size + 1)]
    chunks = [
        [(a + (b - a) * i // count, a + (b - a) * (i + 1) // count) for i in range(count)]
        for a, b in itertools.pairwise(edges)
    ]
    arrivals = []
    for step in range(size - 1 if reduces else 0):
        last = step == size - 2
        arrivals += [Arrival(*piece, False, last, gathers or not last) for piece in chunks[(rank - 2 - step) % size]]
    for step in range(size - 1 if gathers else 0):
        arrivals += [Arrival(*piece, True, False, step < size - 2) for piece in chunks[(rank - 1 - step) % size]]
    return tuple(chunks[(rank - 1) % size]) if reduces else (), tuple(arrivals)


def _travel(
    wire: Wire,
    arrivals: Sequence[Arrival],
    own: Sequence[Tensor],
    *,
    source: Tensor,
    partial: Tensor,
    target: Tensor,
    shift: int = 0,
    reduction: Reduction | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> None:
    """Send `own` pieces, then handle the arrivals, and call `meanwhile` while the first pieces travel.

    This rank's contributions are in `source`. Partial sums go to `partial`, and final pieces to `target`, which has the
    whole from element `shift` on.
    """
    right, left = (wire.rank + 1) % wire.size, (wire.rank - 1) % wire.size
    adding = [arrival for arrival in arrivals if not arrival.gathers]
    longest = max((arrival.end - arrival.begin for arrival in adding), default=0)
    receives: deque[tuple[Tensor, Message]] = deque()

    def post(number: int) -> None:
        if number < len(adding):
            numel = adding[number].end - adding[number].begin
            into = wire.scratch(f"ring {number % AHEAD}", source, longest)[:numel]
            receives.append((into, wire.recv(into, left)))

    # Post receives first, because their notices wait behind messages on the same connection.
    for number in range(AHEAD):
        post(number)
    places = [target[a.begin - shift : a.end - shift] for a in arrivals if a.gathers]
    landing = [(place, wire.recv(place, left, FINAL)) for place in places]
    sends = [wire.send(piece, right, 0 if adding else FINAL) for piece in own]
    if meanwhile is not None:
        meanwhile()
    for number, (begin, end, _, last, goes_on) in enumerate(adding):
        assert reduction is not None
        arrived, receive = receives.popleft()
        receive.wait()
        product = target[begin - shift : end - shift] if last else partial[begin:end]
        reduction.combine(product, source[begin:end], arrived)
        if last:
            reduction.finish(product)
        if goes_on:
            sends.append(wire.send(product, right, FINAL if last else 0))
        post(number + AHEAD)
    for arrival, (place, receive) in zip(arrivals[len(adding) :], landing, strict=True):
        receive.wait()
        if arrival.goes_on:
            sends.append(wire.send(place, right, FINAL))
    finish(sends)


def _count(wire: Wire, flat: Tensor) -> int:
    """Return the number of pieces of each rank's chunk of `flat`."""
    return pieces_of(-(-flat.nbytes // wire.size)) if wire.eager else 1


def reduce_scatter(wire: Wire, output: Tensor, flat: Tensor, reduction: Reduction) -> None:
    """Set rank r's `output` to the reduced r-th part of `flat`."""
    n, numel = wire.size, flat.numel()
    if n == 1:
        output.copy_(flat)
        reduction.finish(output)
        return
    first, arrivals = trip(wire.rank, n, numel, _count(wire, flat), True, False)
    own = [flat[begin:end] for begin, end in first]
    partial = flat if n == 2 else wire.scratch("ring partial", flat, numel)
    shift = numel * wire.rank // n
    _travel(wire, arrivals, own, source=flat, partial=partial, target=output, shift=shift, reduction=reduction)


def all_gather(wire: Wire, output: Tensor, part: Tensor) -> None:
    """Set `output` to the parts of all ranks, in order."""
    n = wire.size
    place = split(output, n)[wire.rank]
    copy = None if place.data_ptr() == part.data_ptr() else lambda: place.copy_(part)
    if n > 1:
        count = _count(wire, output)
        _, arrivals = trip(wire.rank, n, output.numel(), count, False, True)
        _travel(wire, arrivals, split(part, count), source=output, partial=output, target=output, meanwhile=copy)
    elif copy is not None:
        copy()


def all_reduce(wire: Wire, flat: Tensor, reduction: Reduction) -> None:
    """Reduce `flat` over all ranks, in place."""
    if wire.size == 1:
        reduction.finish(flat)
        return
    first, arrivals = trip(wire.rank, wire.size, flat.numel(), _count(wire, flat), True, True)
    own = [flat[begin:end] for begin, end in first]
    _travel(wire, arrivals, own, source=flat, partial=flat, target=flat, reduction=reduction)


def broadcast(wire: Wire, flat: Tensor, root: int) -> None:
    """Send the root's pieces along the ring. Each rank forwards a piece on arrival."""
    right, left = (wire.rank + 1) % wire.size, (wire.rank - 1) % wire.size
    cut = pieces(flat)
    receives = [] if wire.rank == root else [wire.recv(piece, left) for piece in cut]
    sends: list[Message] = []
    for place, piece in enumerate(cut):
        if wire.rank != root:
            receives[place].wait()
        if right != root:
            sends.append(wire.send(piece, right))
    finish(sends)


RING = Algorithm(
    name="ring", all_reduce=all_reduce, reduce_scatter=reduce_scatter, all_gather=all_gather, broadcast=broadcast
)
