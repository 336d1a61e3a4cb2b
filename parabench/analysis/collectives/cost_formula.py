"""What each algorithm should cost: messages, bytes and additions on its critical path.

Hockney's model ("The communication challenge for MPP: Intel Paragon and Meiko CS-2", 1994): a message of x bytes takes
a + x b seconds, and adding x bytes to others takes x c. Counts for n ranks and S bytes follow the source of
`parabench/collectives`; Thakur, Rabenseifner and Gropp ("Optimization of collective communication operations in
MPICH", 2005) derive those of ring and halving/doubling, Sanders, Speck and Träff (2009) those of the two trees.

The tests count the same messages on a simulated wire, where n is a power of two. Elsewhere halving/doubling takes up to
twice its terms; and the tree's all_reduce is what many pieces come near to.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

# One node's ranks; or the two levels of two_level.
NODE, INNER, OUTER = "node", "inner", "outer"

FORMULAS = {
    ("ring", "all_reduce"): "2(n-1) a + 2(n-1)/n S b + (n-1)/n S c",
    ("ring", "reduce_scatter"): "(n-1) a + (n-1)/n S b + (n-1)/n S c",
    ("ring", "all_gather"): "(n-1) a + (n-1)/n S b",
    ("ring", "broadcast"): "(n-2+k) (a + S/k b), k pieces along the ring",
    ("tree", "all_reduce"): "2 log2(n) a + 2 S b + S c: up and down two trees of half the data each, in "
    "pieces; of 2 ranks S b + S/2 c, of 3 3/2 S b",
    ("tree", "reduce_scatter"): "(n/2 (log2(n)-1) + 1) (a + S/n b) + (n-1)/n S c: n parts up n trees that wait for "
    "one another",
    ("tree", "all_gather"): "(n (log2(n)-1) + 1) (a + S/n b): n parts down n trees that wait for one another",
    ("tree", "broadcast"): "(2k + 2 log2(n) - 3) (a + S/k b), k pieces to two children each; up to 3 ranks one child",
    ("halving_doubling", "all_reduce"): "2 log2(n) a + 2(n-1)/n S b + (n-1)/n S c",
    ("halving_doubling", "reduce_scatter"): "log2(n) a + (n-1)/n S b + (n-1)/n S c",
    ("halving_doubling", "all_gather"): "log2(n) a + (n-1)/n S b",
    ("halving_doubling", "broadcast"): "2 log2(n) a + 2(n-1)/n S b: scattered by halves, gathered by doubling",
    ("parameter_server", "all_reduce"): "2(n-1) (a + S b) + (n-1) S c, all at the server",
    ("parameter_server", "reduce_scatter"): "2(n-1) a + (n-1)(1 + 1/n) S b + (n-1) S c: whole in, parts out",
    ("parameter_server", "all_gather"): "2(n-1) a + (n-1)(1 + 1/n) S b: parts in, whole out",
    ("parameter_server", "broadcast"): "(n-1) (a + S b)",
}


@dataclass(frozen=True, slots=True)
class Terms:
    """How often each constant counts on the critical path: `messages` a, `sent` bytes b, `added` bytes c."""

    messages: float
    sent: float
    added: float = 0.0

    def __add__(self, other: Terms) -> Terms:
        return Terms(self.messages + other.messages, self.sent + other.sent, self.added + other.added)


def terms(
    op: str, algorithm: str, world_size: int, size: int, ranks_per_node: int | None, piece_bytes: int
) -> dict[str, Terms] | None:
    """The terms of each tier for `size` bytes in all; None for an algorithm that has no formula here.

    What travels along a chain or down a tree goes in pieces of at most `piece_bytes`.
    two_level's `reduce_scatter` and `all_gather` also reorder the buffer in memory; that is left out.
    """
    levels = _levels(algorithm)
    if levels is None:
        flat = _flat(op, algorithm, world_size, size, piece_bytes)
        return None if flat is None else {NODE: flat}
    g = ranks_per_node if ranks_per_node and world_size % ranks_per_node == 0 else world_size
    m = world_size // g
    inner, outer = levels
    parts: dict[str, tuple[tuple[str, str, int, float], ...]] = {
        "all_reduce": (
            (INNER, "reduce_scatter", g, size), (OUTER, "all_reduce", m, size / g), (INNER, "all_gather", g, size),
        ),
        "reduce_scatter": ((INNER, "reduce_scatter", g, size), (OUTER, "reduce_scatter", m, size / g)),
        "all_gather": ((OUTER, "all_gather", m, size / g), (INNER, "all_gather", g, size)),
        "broadcast": ((OUTER, "broadcast", m, size), (INNER, "broadcast", g, size)),
    }  # fmt: skip
    total = {INNER: Terms(0, 0), OUTER: Terms(0, 0)}
    for tier, part, ranks, count in parts[op]:
        of_part = _flat(part, inner if tier == INNER else outer, ranks, count, piece_bytes)
        if of_part is None:
            return None
        total[tier] += of_part
    return total


def formula(op: str, algorithm: str) -> str:
    """The formula in words, for people."""
    levels = _levels(algorithm)
    if levels is None:
        return FORMULAS.get((algorithm, op), "a + S b, a straight line: what the backend does is not known here")
    inner, outer = levels
    return {
        "all_reduce": f"reduce_scatter and all_gather ({inner}) of S inside, all_reduce ({outer}) of S/g across",
        "reduce_scatter": f"reduce_scatter ({inner}) of S inside, then ({outer}) of S/g across",
        "all_gather": f"all_gather ({outer}) of S/g across, then ({inner}) of S inside",
        "broadcast": f"broadcast ({outer}) of S across, then ({inner}) inside",
    }[op]


def _levels(algorithm: str) -> tuple[str, str] | None:
    match = re.fullmatch(r"two_level(?:\((\w+),(\w+)\))?", algorithm)
    return (match[1] or "ring", match[2] or "ring") if match else None


def _flat(op: str, algorithm: str, n: int, size: float, piece_bytes: int) -> Terms | None:
    """The terms of a one-level algorithm; see FORMULAS."""
    if (algorithm, op) not in FORMULAS:
        return None
    if n == 1:
        return Terms(0, 0)
    share, depth = (n - 1) / n * size, math.ceil(math.log2(n))
    pieces = max(1, math.ceil(size / piece_bytes))
    if algorithm == "ring":
        return {
            "all_reduce": Terms(2 * (n - 1), 2 * share, share),
            "reduce_scatter": Terms(n - 1, share, share),
            "all_gather": Terms(n - 1, share),
            "broadcast": Terms(n - 2 + pieces, (n - 2 + pieces) * size / pieces),
        }[op]
    if algorithm == "tree":
        # A rank sends each piece to both children, one after the other; up to 3 ranks the tree is a chain.
        down = depth - 1 + pieces if n < 4 else 2 * pieces + 2 * depth - 3
        # All n trees at once: how long their messages wait for one another was counted, on links that carry several.
        up, down_all = n * (depth - 1) / 2 + 1, n * (depth - 1) + 1
        # An inner rank of a tree has two children; of fewer than 4 ranks none has two children and a parent.
        halves = {2: 2, 3: 3}.get(n, 4)
        return {
            "all_reduce": Terms(2 * depth, halves * size / 2, size / 2 if n == 2 else size),
            "reduce_scatter": Terms(up, up * size / n, share),
            "all_gather": Terms(down_all, down_all * size / n),
            "broadcast": Terms(down, down * size / pieces),
        }[op]
    if algorithm == "halving_doubling":
        return {
            "all_reduce": Terms(2 * depth, 2 * share, share),
            "reduce_scatter": Terms(depth, share, share),
            "all_gather": Terms(depth, share),
            "broadcast": Terms(2 * depth, 2 * share),
        }[op]
    peers = n - 1
    return {
        "all_reduce": Terms(2 * peers, 2 * peers * size, peers * size),
        "reduce_scatter": Terms(2 * peers, peers * (1 + 1 / n) * size, peers * size),
        "all_gather": Terms(2 * peers, peers * (1 + 1 / n) * size),
        "broadcast": Terms(peers, peers * size),
    }[op]
