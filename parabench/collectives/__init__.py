"""All-reduce algorithms: one file each, and the process group that routes a strategy's reductions through them.

This table is free of torch, so that names can be checked and listed at once.
"""

from parabench.registry import Entry

# `native` has nothing to load: the backend itself is the process group.
NATIVE = ""

ALGORITHMS: dict[str, Entry] = {
    "native": Entry(target=NATIVE, summary="the backend's own"),
    "ring": Entry(target="parabench.collectives.ring:RING", summary="scatter-reduce, then all-gather, round a ring"),
    "tree": Entry(target="parabench.collectives.tree:TREE", summary="double binary tree, in chunks"),
    "two_level": Entry(
        target="parabench.collectives.two_level:two_level",
        summary="ring inside a node, all-reduce of each shard across nodes, ring inside again",
    ),
}
