"""How many messages of the trees of `parabench/collectives` go from node to node, of n ranks on nodes of g."""

from __future__ import annotations

from functools import lru_cache

import numpy as np


def log2(n: int) -> int:
    """The logarithm of n, rounded up."""
    return (n - 1).bit_length()


def messages_out(n: int, g: int) -> int:
    """How many messages of trees with every rank as root leave a node. A rank's parent is as far as its lowest bit
    counts, and over all roots every place between two nodes is met equally often."""
    heights = range((n - 1).bit_length())
    return sum(((n - 1 >> h) - (n - 1 >> h + 1)) * min(1 << h, g, n - (1 << h)) for h in heights)


def crossings(n: int, g: int) -> int:
    """How many edges of the double tree end in the node where most do, of several nodes of at least two ranks. Known
    where g is a power of two; else counted, once for each shape."""
    if g & (g - 1) == 0:
        return 4 if n // g <= 3 else 6 if n // g % 2 == 0 else 8
    return _counted_crossings(n, g)


@lru_cache(maxsize=256)
def _counted_crossings(n: int, g: int) -> int:
    even = n - n % 2
    ranks = np.arange(1, even)
    lowest = ranks & -ranks
    above = ranks - lowest | lowest << 1
    parents = np.where(above < even, above, ranks - lowest)
    # The second tree mirrors the first; of an odd number of ranks the last is a leaf of both roots.
    odd = [(n - 1, root) for root in (0, even - 1) if n % 2]
    edges = np.vstack([np.column_stack((ranks, parents)), even - 1 - np.column_stack((ranks, parents)), *odd]) // g
    crossing = edges[edges[:, 0] != edges[:, 1]]
    return int(np.bincount(crossing.ravel()).max())
