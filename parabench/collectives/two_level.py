"""Two levels: reduce-scatter inside each node, all-reduce of each shard across nodes, all-gather inside.

All shards travel at once. To all-reduce S bytes on m nodes of g ranks, each rank sends 2(m-1)/m S/g bytes over the slow
links between nodes. A flat ring of n ranks sends 2(n-1)/n S bytes over each link. Each level has a separate algorithm:
`two_level(ring,tree)` is a ring in a node and trees across. NCCL's CollNet and Horovod's hierarchical all-reduce have
these levels (Cho et al., "BlueConnect", 2019).
"""

from __future__ import annotations

from torch import Tensor

from parabench.collectives.algorithm import Algorithm, Reduction
from parabench.collectives.ring import RING
from parabench.collectives.wire import Wire, split


def levels(wire: Wire, ranks_per_node: int | None) -> tuple[Wire, Wire]:
    """Return the wires of this rank inside its node, and to its peers on other nodes.

    Nodes have consecutive ranks. A group that does not divide into nodes is one node.
    """
    inside = ranks_per_node if ranks_per_node and wire.size % ranks_per_node == 0 else wire.size
    node, place = divmod(wire.rank, inside)
    return wire.among(range(node * inside, (node + 1) * inside)), wire.among(range(place, wire.size, inside))


def two_level(ranks_per_node: int | None, inner: Algorithm = RING, outer: Algorithm = RING) -> Algorithm:
    """Return the algorithm for nodes of `ranks_per_node` ranks, with `inner` inside and `outer` across nodes."""

    def all_reduce(wire: Wire, flat: Tensor, reduction: Reduction) -> None:
        inside, across = levels(wire, ranks_per_node)
        shard = split(flat, inside.size)[inside.rank]
        inner.reduce_scatter(inside, shard, flat, reduction.partly())
        outer.all_reduce(across, shard, reduction)
        inner.all_gather(inside, flat, shard)

    def reduce_scatter(wire: Wire, output: Tensor, flat: Tensor, reduction: Reduction) -> None:
        inside, across = levels(wire, ranks_per_node)
        # Parts are in the order of ranks. Inside a node, they are exchanged by position.
        by_place = wire.scratch("two_level", flat, flat.numel())
        by_rank = flat.view(across.size, inside.size, output.numel())
        by_place.view(inside.size, across.size, output.numel()).copy_(by_rank.transpose(0, 1))
        shard = split(by_place, inside.size)[inside.rank]
        inner.reduce_scatter(inside, shard, by_place, reduction.partly())
        outer.reduce_scatter(across, output, shard, reduction)

    def all_gather(wire: Wire, output: Tensor, part: Tensor) -> None:
        inside, across = levels(wire, ranks_per_node)
        by_place = wire.scratch("two_level", output, output.numel())
        shard = split(by_place, inside.size)[inside.rank]
        outer.all_gather(across, shard, part)
        inner.all_gather(inside, by_place, shard)
        by_rank = output.view(across.size, inside.size, part.numel())
        by_rank.copy_(by_place.view(inside.size, across.size, part.numel()).transpose(0, 1))

    def broadcast(wire: Wire, flat: Tensor, root: int) -> None:
        assert inner.broadcast is not None
        assert outer.broadcast is not None
        inside, across = levels(wire, ranks_per_node)
        node, place = divmod(root, inside.size)
        # First across nodes, between the ranks at the root's position; then inside every node.
        if inside.rank == place:
            outer.broadcast(across, flat, node)
        inner.broadcast(inside, flat, place)

    plain = inner is RING and outer is RING
    return Algorithm(
        name="two_level" if plain else f"two_level({inner.name},{outer.name})",
        all_reduce=all_reduce,
        reduce_scatter=reduce_scatter,
        all_gather=all_gather,
        broadcast=broadcast if inner.broadcast and outer.broadcast else None,
    )
