"""Parameter server: all ranks send to rank 0, which sends the sum back: T = 2(n-1)K for messages that take K.

Li et al., "Scaling distributed machine learning with the parameter server", 2014, with one server.
"""

from __future__ import annotations

from collections import deque

from torch import Tensor

from parabench.collectives.algorithm import Algorithm, Reduction
from parabench.collectives.wire import Message, Wire, finish, pieces, split

SERVER = 0
# The number of receives that are posted ahead.
AHEAD = 4


def _collect(wire: Wire, flat: Tensor, total: Tensor, reduction: Reduction) -> None:
    """Reduce `flat` of all ranks into the server's `total`, worker by worker. Both may be the same."""
    if wire.rank != SERVER:
        finish([wire.send(piece, SERVER) for piece in pieces(flat)])
        return
    cut, whole = pieces(flat), pieces(total)
    arrivals = [(worker, place) for worker in range(1, wire.size) for place in range(len(cut))]
    receives: deque[tuple[Tensor, Message]] = deque()

    def post(number: int) -> None:
        worker, place = arrivals[number]
        into = wire.scratch(f"server {number % AHEAD}", flat, len(cut[-1]))[: len(cut[place])]
        receives.append((into, wire.recv(into, worker)))

    for number in range(min(AHEAD, len(arrivals))):
        post(number)
    for number, (worker, place) in enumerate(arrivals):
        theirs, receive = receives.popleft()
        receive.wait()
        reduction.combine(whole[place], cut[place] if worker == 1 else whole[place], theirs)
        if number + AHEAD < len(arrivals):
            post(number + AHEAD)
    if wire.size == 1 and flat.data_ptr() != total.data_ptr():
        total.copy_(flat)
    reduction.finish(total)


def broadcast(wire: Wire, flat: Tensor, root: int) -> None:
    """Send from the root to each rank."""
    if wire.rank == root:
        finish([wire.send(piece, peer) for peer in range(wire.size) if peer != root for piece in pieces(flat)])
    else:
        finish([wire.recv(piece, root) for piece in pieces(flat)])


def all_reduce(wire: Wire, flat: Tensor, reduction: Reduction) -> None:
    """Reduce `flat` over all ranks, in place."""
    _collect(wire, flat, flat, reduction)
    broadcast(wire, flat, SERVER)


def reduce_scatter(wire: Wire, output: Tensor, flat: Tensor, reduction: Reduction) -> None:
    """Reduce on the server, which sends each rank its part."""
    if wire.rank != SERVER:
        _collect(wire, flat, flat, reduction)
        wire.recv(output, SERVER).wait()
        return
    total = wire.scratch("server total", flat, flat.numel())
    _collect(wire, flat, total, reduction)
    parts = split(total, wire.size)
    sends = [wire.send(part, peer) for peer, part in enumerate(parts) if peer != SERVER]
    output.copy_(parts[SERVER])
    finish(sends)


def all_gather(wire: Wire, output: Tensor, part: Tensor) -> None:
    """Collect the parts on the server, which sends the whole to all ranks."""
    parts = split(output, wire.size)
    if wire.rank == SERVER:
        receives = [wire.recv(each, peer) for peer, each in enumerate(parts) if peer != SERVER]
        if parts[SERVER].data_ptr() != part.data_ptr():
            parts[SERVER].copy_(part)
        finish(receives)
    else:
        wire.send(part, SERVER).wait()
    broadcast(wire, output, SERVER)


PARAMETER_SERVER = Algorithm(
    name="parameter_server",
    all_reduce=all_reduce,
    reduce_scatter=reduce_scatter,
    all_gather=all_gather,
    broadcast=broadcast,
)
