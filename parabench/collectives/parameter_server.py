"""Parameter server: everybody sends to rank 0, which sums and sends back: T = 2(n-1)K for messages that take K.

Rank 0's link carries everything, so it is the least that scales, and what the others are measured against
(Li et al., "Scaling distributed machine learning with the parameter server", 2014, with one server).
"""

from __future__ import annotations

from torch import Tensor

from parabench.collectives.algorithm import Algorithm
from parabench.collectives.reduction import Reduction
from parabench.collectives.wire import Pending, Wire, pieces, split

SERVER = 0


def _collect(wire: Wire, flat: Tensor, total: Tensor, reduction: Reduction) -> None:
    """Sum everybody's `flat` into the server's `total`, worker by worker; both may be the same."""
    if wire.rank != SERVER:
        for send in [wire.exchange([(piece, SERVER)]) for piece in pieces(flat)]:
            send.wait()
        return
    mine = flat
    for worker in range(1, wire.size):
        arriving = wire.scratch(f"server {worker % 2}", flat, flat.numel())
        receives = [wire.exchange(recvs=[(piece, worker)]) for piece in pieces(arriving)]
        for whole, part, theirs, receive in zip(pieces(total), pieces(mine), pieces(arriving), receives, strict=True):
            receive.wait()
            reduction.combine(whole, part, theirs)
        mine = total
    if mine is not total:
        total.copy_(mine)
    reduction.finish(total)


def broadcast(wire: Wire, flat: Tensor, root: int) -> None:
    """The root sends to everybody itself."""
    if wire.rank == root:
        pending: list[Pending] = [
            wire.exchange([(piece, peer)]) for peer in range(wire.size) if peer != root for piece in pieces(flat)
        ]
    else:
        pending = [wire.exchange(recvs=[(piece, root)]) for piece in pieces(flat)]
    for each in pending:
        each.wait()


def all_reduce(wire: Wire, flat: Tensor, reduction: Reduction) -> None:
    """Reduce `flat` over all ranks, in place."""
    _collect(wire, flat, flat, reduction)
    broadcast(wire, flat, SERVER)


def reduce_scatter(wire: Wire, output: Tensor, flat: Tensor, reduction: Reduction) -> None:
    """The server sums everything and sends each rank its part."""
    if wire.rank != SERVER:
        _collect(wire, flat, flat, reduction)
        wire.exchange(recvs=[(output, SERVER)]).wait()
        return
    total = wire.scratch("server total", flat, flat.numel())
    _collect(wire, flat, total, reduction)
    parts = split(total, wire.size)
    sends = wire.exchange([(part, peer) for peer, part in enumerate(parts) if peer != SERVER])
    output.copy_(parts[SERVER])
    sends.wait()


def all_gather(wire: Wire, output: Tensor, part: Tensor) -> None:
    """The server collects the parts and sends the whole to everybody."""
    parts = split(output, wire.size)
    if wire.rank == SERVER:
        receives = wire.exchange(recvs=[(each, peer) for peer, each in enumerate(parts) if peer != SERVER])
        parts[SERVER].copy_(part)
        receives.wait()
    else:
        wire.exchange([(part, SERVER)]).wait()
    broadcast(wire, output, SERVER)


PARAMETER_SERVER = Algorithm(
    name="parameter_server",
    all_reduce=all_reduce,
    reduce_scatter=reduce_scatter,
    all_gather=all_gather,
    broadcast=broadcast,
)
