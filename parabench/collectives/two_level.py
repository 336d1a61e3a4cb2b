"""Two levels: reduce-scatter inside each node, all-reduce of each shard across nodes (all shards at once), all-gather
inside. A slow link between nodes carries 2(m-1)/m S/g bytes a rank for m nodes of g ranks, where a flat ring carries
2(n-1)/n S.

Each level has its own algorithm: two_level(ring,tree) is a ring in a node and trees across, two_level(tree,tree) the
tree of trees (the levels of NCCL's CollNet and of Horovod's hierarchical all-reduce; Cho et al., "BlueConnect", 2019).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from parabench.collectives.algorithm import Algorithm, Reduction
from parabench.collectives.ring import RING
from parabench.collectives.wire import Wire, split

Broadcast = Callable[[Wire, Tensor, int], None]


@dataclass(frozen=True, slots=True)
class Levels:
    """The two wires of this rank: `inner` to the ranks of its node, `outer` to its peers on other nodes."""

    inner: Wire
    outer: Wire


def levels(wire: Wire, ranks_per_node: int | None) -> Levels:
    """Return the wires for nodes of consecutive ranks. A group that does not divide into nodes is one node."""
    inside = ranks_per_node if ranks_per_node and wire.size % ranks_per_node == 0 else wire.size
    node, place = divmod(wire.rank, inside)
    return Levels(
        inner=wire.among(range(node * inside, (node + 1) * inside)),
        outer=wire.among(range(place, wire.size, inside)),
    )


def two_level(ranks_per_node: int | None, inner: Algorithm = RING, outer: Algorithm = RING) -> Algorithm:
    """Return the algorithm for nodes of `ranks_per_node` ranks, with `inner` inside and `outer` across nodes."""
    of = partial(levels, ranks_per_node=ranks_per_node)

    def all_reduce(wire: Wire, flat: Tensor, reduction: Reduction) -> None:
        at = of(wire)
        shard = split(flat, at.inner.size)[at.inner.rank]
        inner.reduce_scatter(at.inner, shard, flat, reduction.partly())
        outer.all_reduce(at.outer, shard, reduction)
        inner.all_gather(at.inner, flat, shard)

    def reduce_scatter(wire: Wire, output: Tensor, flat: Tensor, reduction: Reduction) -> None:
        at = of(wire)
        # Parts are in the order of ranks. Inside a node, they are exchanged by position.
        by_place = wire.scratch("two_level", flat, flat.numel())
        shape = (at.outer.size, at.inner.size, output.numel())
        by_place.view(shape[1], shape[0], shape[2]).copy_(flat.view(shape).transpose(0, 1))
        shard = split(by_place, at.inner.size)[at.inner.rank]
        inner.reduce_scatter(at.inner, shard, by_place, reduction.partly())
        outer.reduce_scatter(at.outer, output, shard, reduction)

    def all_gather(wire: Wire, output: Tensor, part: Tensor) -> None:
        at = of(wire)
        by_place = wire.scratch("two_level", output, output.numel())
        shape = (at.outer.size, at.inner.size, part.numel())
        shard = split(by_place, at.inner.size)[at.inner.rank]
        outer.all_gather(at.outer, shard, part)
        inner.all_gather(at.inner, by_place, shard)
        output.view(shape).copy_(by_place.view(shape[1], shape[0], shape[2]).transpose(0, 1))

    parts = (inner.name, outer.name)
    name = "two_level" if parts == (RING.name, RING.name) else f"two_level({parts[0]},{parts[1]})"
    return Algorithm(
        name=name,
        all_reduce=all_reduce,
        reduce_scatter=reduce_scatter,
        all_gather=all_gather,
        broadcast=_broadcast(of, inner.broadcast, outer.broadcast),
    )


def _broadcast(
    levels_of: Callable[[Wire], Levels], inside: Broadcast | None, across: Broadcast | None
) -> Broadcast | None:
    """Return the broadcast of both levels; None for the backend if a level does not have one."""
    if inside is None or across is None:
        return None

    def broadcast(wire: Wire, flat: Tensor, root: int) -> None:
        at = levels_of(wire)
        node, place = divmod(root, at.inner.size)
        # First across nodes, between the ranks at the root's position; then inside every node.
        if at.inner.rank == place:
            across(at.outer, flat, node)
        inside(at.inner, flat, place)

    return broadcast
