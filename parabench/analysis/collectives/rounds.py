"""The messages of a collective among ranks on several nodes, as successive rounds, and their cost.

- one-port model: a rank sends and receives one message at a time (Thakur, Rabenseifner and Gropp, "Optimization of
  collective communication operations in MPICH", 2005), and ranks of a node share its network card
- Hockney's model: a message of x bytes takes a + x b seconds, and adding x bytes takes x c ("The communication
  challenge for MPP: Intel Paragon and Meiko CS-2", 1994)
- a round that uses both tiers counts as a round between nodes
- tests count the same messages and bytes on a simulated wire
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from parabench.collectives import levels_of

WITHIN, BETWEEN = "within a node", "between nodes"
OPS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")

# Chains and trees pass on pieces of at most this many bytes (`collectives.wire.PIECE_BYTES`).
PIECE_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class Round:
    """A number of rounds whose messages have a `share` of the collective's bytes and cross `tier`.

    `flows` messages share the busiest link: a node's network card, or one rank's end within a node.
    """

    times: float
    share: float
    tier: str
    flows: float = 1


@dataclass(frozen=True, slots=True)
class _Shape:
    """`n` ranks on `m` nodes of `g`, and the length of the whole buffer in pieces, which may be a fraction."""

    n: int
    g: int
    parts: float

    @property
    def m(self) -> int:
        return self.n // self.g

    @property
    def across(self) -> str:
        return BETWEEN if self.m > 1 else WITHIN

    def pieces(self, share: float = 1.0) -> int:
        return max(1, math.ceil(self.parts * share))


def rounds(
    op: str, algorithm: str, ranks: int, ranks_per_node: int, size: float, piece_bytes: float = PIECE_BYTES
) -> tuple[Round, ...] | None:
    """Return the rounds of a collective of `size` bytes, or None if its schedule is unknown.

    `algorithm` is flat or two_level. The root of a broadcast is rank 0. Raises ValueError if ranks do not fill nodes.
    """
    if min(ranks, ranks_per_node) < 1 or (ranks > ranks_per_node and ranks % ranks_per_node):
        raise ValueError(f"{ranks} ranks do not fill nodes of {ranks_per_node}")
    levels = levels_of(algorithm)
    if op not in OPS or (levels is None and algorithm not in _FLAT):
        return None
    shape = _Shape(ranks, min(ranks, ranks_per_node), size / piece_bytes)
    return tuple(_flat(op, algorithm, shape) if levels is None else _two_level(op, *levels, shape))


def _flat(op: str, algorithm: str, at: _Shape) -> Iterator[Round]:
    if at.n > 1:
        yield from (each for each in _FLAT[algorithm](op, at) if each.times > 0)


def _two_level(op: str, inner: str, outer: str, at: _Shape) -> Iterator[Round]:
    """Yield `inner` in every node, and `outer` once for each place in a node; a broadcast has one place."""
    inside = replace(at, n=at.g)
    places = 1 if op == "broadcast" else at.g
    outside = _Shape(at.m, 1, at.parts / places)
    across = [replace(each, share=each.share / places, flows=each.flows * places) for each in _flat(op, outer, outside)]
    order = {"all_reduce": ("reduce_scatter", "", "all_gather"), "reduce_scatter": (op, "")}.get(op, ("", op))
    for part in order:
        yield from _flat(part, inner, inside) if part else across


def _ring(op: str, at: _Shape) -> Iterator[Round]:
    """In every round, one message leaves each node and one arrives; a broadcast is a chain from rank 0 to the last."""
    if op != "broadcast":
        hops = (2 if op == "all_reduce" else 1) * (at.n - 1)
        # A part crosses between nodes once in g hops, but the card carries a part in every round.
        crossed = math.ceil(hops / at.g) if at.m > 1 else hops
        yield Round(crossed, 1 / at.n, at.across, hops / crossed)
        return
    k = at.pieces()
    crossed = at.m - 2 if at.m > 1 else 0
    yield Round(k, 1 / k, at.across)
    # The last piece goes the rest of the chain alone.
    yield Round(crossed, 1 / k, BETWEEN)
    yield Round(at.n - 2 - crossed, 1 / k, WITHIN)


def _parameter_server(op: str, at: _Shape) -> Iterator[Round]:
    """All messages end or start at rank 0, one after another."""
    shares = {
        "all_reduce": (1.0, 1.0), "reduce_scatter": (1.0, 1 / at.n), "all_gather": (1 / at.n, 1.0), "broadcast": (1.0,),
    }  # fmt: skip
    for share in shares[op]:
        yield Round(at.g - 1, share, WITHIN)
        yield Round(at.n - at.g, share, BETWEEN)


def _halving_doubling(op: str, at: _Shape) -> Iterator[Round]:
    """Pairs at half the distance in each round exchange half the bytes; a broadcast scatters by halves, then gathers.

    Exact for powers of two.
    """
    left, times, splits = at.n, 2 if op == "all_reduce" else 1, list[Round]()
    while left > 1:
        distance = (left + 1) // 2
        # Spans of `left` ranks are inside nodes if both are cut evenly.
        inside = at.m == 1 or (at.n % left == 0 and at.g % left == 0)
        flows = 1 if inside else min(distance, at.g)
        splits.append(Round(times, distance / at.n, WITHIN if inside else BETWEEN, flows))
        left = distance
    if op == "broadcast":
        yield from (replace(each, flows=1) for each in splits)
    yield from splits


def _tree(op: str, at: _Shape) -> Iterator[Round]:
    """Yield the rounds of one tree for broadcast, of two trees for all_reduce, and otherwise of a tree for each rank.

    Part r goes up or down the tree of rank r. All trees use the same ranks, so their messages delay each other.
    """
    if op == "all_reduce":
        yield from _double_tree(at)
    elif op == "broadcast":
        yield from _one_tree(at)
    else:
        total = at.n * (log2(at.n) - 1) / (2 if op == "reduce_scatter" else 1) + 1
        yield Round(total, 1 / at.n, at.across, max(1.0, at.g * (at.n - 1) / total) if at.m > 1 else 1)


def _one_tree(at: _Shape) -> Iterator[Round]:
    """A rank passes each piece to two children, one after the other; up to 3 ranks, the tree is a chain."""
    k, depth = at.pieces(), log2(at.n)
    children, last = (2, 2 * depth - 3) if at.n > 3 else (1, depth - 1)
    # On 2 or 3 nodes a rank has one child elsewhere, on more it has two.
    far = min(children, 2 if at.m > 3 else 1) if at.m > 1 else 0
    down = 0 if at.m == 1 else last if at.g == 1 else min(last, 2 * log2(at.m) - 1)
    yield Round(far * k, 1 / k, BETWEEN)
    yield Round((children - far) * k, 1 / k, WITHIN)
    # The last piece then goes down the tree.
    yield Round(down, 1 / k, BETWEEN)
    yield Round(last - down, 1 / k, WITHIN)


def _double_tree(at: _Shape) -> Iterator[Round]:
    """Two trees of half the bytes each: an inner rank takes from two children and gives to them.

    The first piece climbs and the last descends alone; the numbers of those messages were counted on a simulated wire.
    """
    k, depth = at.pieces(0.5), log2(at.n)
    stream, alone = {2: (2, 0), 3: (3, 2)}.get(at.n, (4, 4 * depth - 6))
    share = 1 / 2 / k
    if at.m == 1 or at.g == 1:
        yield Round(stream * k + alone, share, at.across)
        return
    far = 4 if at.m > 3 else 2
    crossed = min(alone, 4 * log2(at.m) - 2)
    # Edges of both trees that end in the busiest node: its card sends for one tree while the other waits.
    crossings = 4 if at.m <= 3 else 6 if at.m % 2 == 0 else 8
    if crossings > far + crossed / k:
        yield Round(far * k, share, BETWEEN, crossings / far)
        return
    yield Round(far * k + crossed, share, BETWEEN)
    yield Round((stream - far) * k + alone - crossed, share, WITHIN)


def _binomial(op: str, at: _Shape) -> Iterator[Round]:
    """Yield the rounds of gloo's algorithms (pytorch/gloo, gloo/allreduce.cc, allgather.cc, broadcast.cc).

    - broadcast: a rank with the bytes sends them to the rank at a distance of 1, then 2, 4, ...
    - reduce_scatter: torch runs an all_reduce of the whole buffer (pytorch/pytorch, pull request 118911)
    """
    if op != "broadcast":
        yield from _ring("all_reduce" if op == "reduce_scatter" else op, at)
        return
    inside = log2(at.g)
    yield Round(inside, 1, WITHIN)
    yield Round(log2(at.n) - inside, 1, BETWEEN, at.g)


_FLAT = {
    "native": _binomial, "ring": _ring, "tree": _tree, "halving_doubling": _halving_doubling,
    "parameter_server": _parameter_server,
}  # fmt: skip


def log2(n: int) -> int:
    """Return the logarithm of n, rounded up."""
    return (n - 1).bit_length()
