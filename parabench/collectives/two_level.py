"""Two levels: inside each node a ring, between nodes only what one rank of each node must exchange.

Reduce-scatter inside the node, all-reduce of each shard across nodes (all shards at once), all-gather inside:
a slow link between nodes carries S/g bytes a rank for nodes of g ranks, where a flat ring carries all of S.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from parabench.collectives import ring
from parabench.collectives.wire import Algorithm, Reduction, Wire, split


@dataclass(frozen=True, slots=True)
class Levels:
    """This rank's two wires: `inner` among the ranks of its node, `outer` among its peers on the other nodes."""

    inner: Wire
    outer: Wire


def levels(wire: Wire, ranks_per_node: int) -> Levels:
    """Consecutive ranks form a node. Raises ValueError when they don't come out even."""
    if wire.size % ranks_per_node:
        raise ValueError(f"ranks_per_node is {ranks_per_node}; it must divide the group's {wire.size} ranks")
    node, place = divmod(wire.rank, ranks_per_node)
    first = node * ranks_per_node
    return Levels(
        inner=wire.among(range(first, first + ranks_per_node)),
        outer=wire.among(range(place, wire.size, ranks_per_node)),
    )


# In each part's reduction only the last step may divide by n, so the inner one combines without finishing.
def _combining(reduction: Reduction) -> Reduction:
    return Reduction(reduction.combine, lambda total: None)


def two_level(ranks_per_node: int) -> Algorithm:
    """The algorithm for nodes of `ranks_per_node` ranks; a group that does not divide into them is one node."""

    def of(wire: Wire) -> Levels:
        # A sub-group of a 2-D mesh may be smaller than a node.
        return levels(wire, ranks_per_node if wire.size % ranks_per_node == 0 else wire.size)

    def all_reduce(wire: Wire, flat: Tensor, reduction: Reduction) -> None:
        at = of(wire)
        shards = split(flat, at.inner.size)
        ring.scatter_reduce(at.inner, shards, _combining(reduction))
        ring.all_reduce(at.outer, shards[at.inner.rank], reduction)
        ring.gather(at.inner, shards)

    def reduce_scatter(wire: Wire, output: Tensor, flat: Tensor, reduction: Reduction) -> None:
        at = of(wire)
        # Parts lie in rank order, node by node; inside a node they are exchanged by place.
        by_place = wire.scratch("two_level", flat, flat.numel())
        shape = (at.outer.size, at.inner.size, output.numel())
        by_place.view(shape[1], shape[0], shape[2]).copy_(flat.view(shape).transpose(0, 1))
        shards = split(by_place, at.inner.size)
        ring.scatter_reduce(at.inner, shards, _combining(reduction))
        ring.reduce_scatter(at.outer, output, shards[at.inner.rank], reduction)

    def all_gather(wire: Wire, output: Tensor, part: Tensor) -> None:
        at = of(wire)
        by_place = wire.scratch("two_level", output, output.numel())
        shape = (at.outer.size, at.inner.size, part.numel())
        shards = split(by_place, at.inner.size)
        ring.all_gather(at.outer, shards[at.inner.rank], part)
        ring.gather(at.inner, shards)
        output.view(shape).copy_(by_place.view(shape[1], shape[0], shape[2]).transpose(0, 1))

    return Algorithm(name="two_level", all_reduce=all_reduce, reduce_scatter=reduce_scatter, all_gather=all_gather)
