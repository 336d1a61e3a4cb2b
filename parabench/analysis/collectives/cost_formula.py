"""Cost of a collective on its critical path: messages, bytes sent and bytes added.

In Hockney's model ("The communication challenge for MPP: Intel Paragon and Meiko CS-2", 1994), a message of x bytes
takes a + x b seconds, and adding x bytes takes x c. Messages and bytes are counted from the rounds of each algorithm
(`rounds`). FORMULAS states them for the report, for powers of two; the tests compare them with the messages on a
simulated wire.
"""

from __future__ import annotations

from dataclasses import dataclass

from parabench.analysis.collectives.rounds import WITHIN, rounds
from parabench.collectives import levels_of

# The tiers of an algorithm with one level, and of two_level.
NODE, INNER, OUTER = "node", "inner", "outer"

FORMULAS = {
    ("ring", "all_reduce"): "2(n-1) a + 2(n-1)/n S b + (n-1)/n S c",
    ("ring", "reduce_scatter"): "(n-1) a + (n-1)/n S b + (n-1)/n S c",
    ("ring", "all_gather"): "(n-1) a + (n-1)/n S b",
    ("ring", "broadcast"): "(n-2+k) (a + S/k b), k pieces along the ring",
    ("tree", "all_reduce"): "(4k + 4 log2(n) - 6) (a + S/2k b) + S c: two trees of half the data each, in k pieces; "
    "2k messages for 2 ranks, 3k + 2 for 3",
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
    """Return the terms of each tier for a buffer of `size` bytes, or None for an algorithm without a formula.

    Chains and trees send pieces of at most `piece_bytes`. The copies by which two_level's reduce_scatter and all_gather
    reorder the buffer are left out.
    """
    levels = levels_of(algorithm)
    if levels is None:
        if (algorithm, op) not in FORMULAS:
            return None
        added = _added(op, algorithm, world_size) * size
        return {NODE: _counted(op, algorithm, world_size, world_size, size, piece_bytes)[0] + Terms(0, 0, added)}
    g = ranks_per_node if ranks_per_node and world_size % ranks_per_node == 0 else world_size
    inner, outer = _counted(op, algorithm, world_size, g, size, piece_bytes)
    # In an all_reduce, ranks add within their node during the reduce_scatter only.
    inner_op = "reduce_scatter" if op == "all_reduce" else op
    return {
        INNER: inner + Terms(0, 0, _added(inner_op, levels[0], g) * size),
        OUTER: outer + Terms(0, 0, _added(op, levels[1], world_size // g) * size / g),
    }


def _counted(op: str, algorithm: str, n: int, g: int, size: int, piece_bytes: int) -> tuple[Terms, Terms]:
    """Return messages and bytes within a node and between nodes."""
    within, between = Terms(0, 0), Terms(0, 0)
    for each in rounds(op, algorithm, n, g, size, piece_bytes) or ():
        one = Terms(each.times, each.times * each.share * size)
        if each.tier == WITHIN:
            within += one
        else:
            between += one
    return within, between


def _added(op: str, algorithm: str, n: int) -> float:
    """Return the bytes that the busiest rank adds, as a share of the whole buffer."""
    if op not in ("all_reduce", "reduce_scatter"):
        return 0.0
    if algorithm == "parameter_server":
        return n - 1
    if algorithm == "tree" and op == "all_reduce":
        # An inner rank adds what two children send, and of 2 ranks there is one child.
        return min(n - 1, 2) / 2
    return (n - 1) / n


def formula(op: str, algorithm: str) -> str:
    """Return the formula as text."""
    levels = levels_of(algorithm)
    if levels is None:
        return FORMULAS.get((algorithm, op), "a + S b, a straight line: the backend's algorithm is not known")
    inner, outer = levels
    return {
        "all_reduce": f"reduce_scatter and all_gather ({inner}) of S inside, all_reduce ({outer}) of S/g across",
        "reduce_scatter": f"reduce_scatter ({inner}) of S inside, then ({outer}) of S/g across",
        "all_gather": f"all_gather ({outer}) of S/g across, then ({inner}) of S inside",
        "broadcast": f"broadcast ({outer}) of S across, then ({inner}) inside",
    }[op]
