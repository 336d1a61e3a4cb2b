"""Ring: each rank talks to its two neighbours only.

Scatter-reduce, then all-gather: 2(n-1) steps of S/n bytes, which is the least a rank can send
(Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from parabench.collectives.wire import Algorithm, Pending, Reduction, Wire, pieces, split


def scatter_reduce(wire: Wire, chunks: Sequence[Tensor], reduction: Reduction) -> None:
    """Reduce chunk r of every rank into rank r's; the other chunks are left with partial results."""
    n, rank = wire.size, wire.rank
    if n == 1:
        reduction.finish(chunks[0])
        return
    right, left = (rank + 1) % n, (rank - 1) % n
    sends: list[Pending] = [wire.exchange([(piece, right)]) for piece in pieces(chunks[(rank - 1) % n])]
    for step in range(n - 1):
        chunk = chunks[(rank - 2 - step) % n]
        arriving = wire.scratch(f"ring {step % 2}", chunk, chunk.numel())
        receives = [(part, wire.exchange(recvs=[(part, left)])) for part in pieces(arriving)]
        for mine, (theirs, receive) in zip(pieces(chunk), receives, strict=True):
            receive.wait()
            reduction.combine(mine, theirs)
            # A piece goes on as soon as it is reduced, while the next one is still arriving.
            if step < n - 2:
                sends.append(wire.exchange([(mine, right)]))
    reduction.finish(chunks[rank])
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
    scatter_reduce(wire, chunks, reduction)
    gather(wire, chunks)


def reduce_scatter(wire: Wire, output: Tensor, flat: Tensor, reduction: Reduction) -> None:
    """Rank r's `output` becomes the reduced r-th part of `flat`."""
    chunks = split(flat, wire.size)
    scatter_reduce(wire, chunks, reduction)
    output.copy_(chunks[wire.rank])


def all_gather(wire: Wire, output: Tensor, part: Tensor) -> None:
    """`output` becomes the parts of all ranks, in their order."""
    chunks = split(output, wire.size)
    chunks[wire.rank].copy_(part)
    gather(wire, chunks)


RING = Algorithm(name="ring", all_reduce=all_reduce, reduce_scatter=reduce_scatter, all_gather=all_gather)
