"""All-reduce algorithms: one file each, and the process group that routes a strategy's reductions through them.

This table is free of torch, so that names can be checked and listed at once.
"""

from parabench.registry import Entry

ALGORITHMS: dict[str, Entry] = {
    "native": Entry(target="parabench.collectives.native:NATIVE", summary="the backend's own"),
    "ring": Entry(target="parabench.collectives.ring:RING", summary="scatter-reduce, then all-gather, round a ring"),
    "tree": Entry(target="parabench.collectives.tree:TREE", summary="double binary tree, in chunks"),
    "two_level": Entry(
        target="parabench.collectives.two_level:TWO_LEVEL",
        summary="ring inside a node, all-reduce of each shard across nodes, ring inside again",
    ),
}
