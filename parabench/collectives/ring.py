"""Ring: each rank talks to its two neighbours only.

Scatter-reduce, then all-gather: 2(n-1) steps of S/n bytes, which is the least a rank can send
(Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from parabench.collectives.algorithm import Algorithm
from parabench.collectives.reduction import Reduction
from parabench.collectives.wire import Pending, Wire, pieces, split


def scatter_reduce(wire: Wire, chunks: Sequence[Tensor], target: Tensor, reduction: Reduction) -> None:
    """Reduce chunk r of every rank into rank r's `target`, which may be that chunk; the chunks stay as they are."""
    n, rank = wire.size, wire.rank
    if n == 1:
        target.copy_(chunks[0])
        reduction.finish(target)
        return
    right, left = (rank + 1) % n, (rank - 1) % n
    sends = [[wire.exchange([(piece, right)]) for piece in pieces(chunks[(rank - 1) % n])]]
    for step in range(n - 1):
        chunk = chunks[(rank - 2 - step) % n]
        last = step == n - 2
        if step >= 2:
            _finish(sends[step - 1])  # what left from this step's buffer
        arriving = wire.scratch(f"ring {step % 2}", chunk, chunk.numel())
        receives = [(part, wire.exchange(recvs=[(part, left)])) for part in pieces(arriving)]
        sent = []
        for mine, (theirs, receive), whole in zip(
            pieces(chunk), receives, pieces(target if last else arriving), strict=True
        ):
            receive.wait()
            reduction.combine(whole, mine, theirs)
            # A piece goes on as soon as it is reduced, while the next one is still arriving.
            if not last:
                sent.append(wire.exchange([(whole, right)]))
        sends.append(sent)
    reduction.finish(target)
    for sent in sends:
        _finish(sent)


def _finish(sends: Sequence[Pending]) -> None:
    for send in sends:
        send.wait()


def gather(wire: Wire, chunks: Sequence[Tensor]) -> None:
    """Send rank r's chunk r to everybody: afterwards all ranks hold all chunks."""
    n, rank = wire.size, wire.rank
    if n == 1:
        return
    right, left = (rank + 1) % n, (rank - 1) % n
    receives = [
        (piece, wire.exchange(recvs=[(piece, left)]), step < n - 2)
        for step in range(n - 1)
        for piece in pieces(chunks[(rank - 1 - step) % n])
    ]
    sends = [wire.exchange([(piece, right)]) for piece in pieces(chunks[rank])]
    for piece, receive, passes_on in receives:
        receive.wait()
        if passes_on:
            sends.append(wire.exchange([(piece, right)]))
    for send in sends:
        send.wait()


def all_reduce(wire: Wire, flat: Tensor, reduction: Reduction) -> None:
    """Reduce `flat` over all ranks, in place."""
    chunks = split(flat, wire.size)
    scatter_reduce(wire, chunks, chunks[wire.rank], reduction)
    gather(wire, chunks)


def reduce_scatter(wire: Wire, output: Tensor, flat: Tensor, reduction: Reduction) -> None:
    """Rank r's `output` becomes the reduced r-th part of `flat`."""
    scatter_reduce(wire, split(flat, wire.size), output, reduction)


def all_gather(wire: Wire, output: Tensor, part: Tensor) -> None:
    """`output` becomes the parts of all ranks, in their order."""
    chunks = split(output, wire.size)
    chunks[wire.rank].copy_(part)
    gather(wire, chunks)


def broadcast(wire: Wire, flat: Tensor, root: int) -> None:
    """The root's pieces go along the ring: each rank passes a piece on as soon as it has come."""
    right, left = (wire.rank + 1) % wire.size, (wire.rank - 1) % wire.size
    sends: list[Pending] = []
    for piece in pieces(flat):
        if wire.rank != root:
            wire.exchange(recvs=[(piece, left)]).wait()
        if right != root:
            sends.append(wire.exchange([(piece, right)]))
    for send in sends:
        send.wait()


RING = Algorithm(
    name="ring", all_reduce=all_reduce, reduce_scatter=reduce_scatter, all_gather=all_gather, broadcast=broadcast
)
