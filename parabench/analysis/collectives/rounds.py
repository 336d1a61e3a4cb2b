"""Model the messages of a collective among ranks on several nodes as successive rounds.

- one-port model: a rank sends and receives one message at a time (Thakur, Rabenseifner and Gropp, "Optimization of
  collective communication operations in MPICH", 2005), and ranks of a node share its network card
- Hockney's model: a message of x bytes takes a + x b seconds, and adding x bytes takes x c ("The communication
  challenge for MPP: Intel Paragon and Meiko CS-2", 1994)
- a round that uses both tiers counts as a round between nodes
- tests count the same messages and bytes on a simulated network
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
    """A number of equal rounds, `times`, where each message has a `share` of the collective's bytes.

    The messages are sent in `tier`. The busiest link (a node's network card, or a rank's end within a node) carries
    `flows` of them.
    """

    times: float
    share: float
    tier: str
    flows: float = 1


@dataclass(frozen=True, slots=True)
class _Shape:
    """The layout of a collective: `n` ranks, `g` on each of `m` nodes, and a buffer of `parts` pieces.

    `parts` may be a fraction.
    """

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
    """Return the rounds of a collective of `size` bytes, or None for an unknown operation or algorithm.

    The root of a broadcast is rank 0. The ranks fill whole nodes.
    """
    levels = levels_of(algorithm)
    if op not in OPS or (levels is None and algorithm not in _FLAT):
        return None
    shape = _Shape(ranks, ranks_per_node, size / piece_bytes)
    return tuple(_flat(op, algorithm, shape) if levels is None else _two_level(op, *levels, shape))


def _flat(op: str, algorithm: str, shape: _Shape) -> Iterator[Round]:
    """Yield the rounds of a flat algorithm, without rounds that do not happen."""
    if shape.n > 1:
        yield from (each for each in _FLAT[algorithm](op, shape) if each.times > 0)


def _two_level(op: str, inner: str, outer: str, shape: _Shape) -> Iterator[Round]:
    """Yield the rounds of `inner` in every node, and of `outer` between nodes, in the order of the operation.

    `outer` runs once for each rank position in a node, at the same time; for a broadcast, for one position only.
    """
    inside = replace(shape, n=shape.g)
    positions = 1 if op == "broadcast" else shape.g
    outside = _Shape(shape.m, 1, shape.parts / positions)
    outer_rounds = _flat(op, outer, outside)
    across = [replace(each, share=each.share / positions, flows=each.flows * positions) for each in outer_rounds]
    order = {"all_reduce": ("reduce_scatter", "", "all_gather"), "reduce_scatter": (op, "")}.get(op, ("", op))
    for part in order:
        yield from _flat(part, inner, inside) if part else across


def _ring(op: str, shape: _Shape) -> Iterator[Round]:
    """Yield the rounds of a ring, where each node sends and receives one message in every round.

    A broadcast is a chain from rank 0 to the last rank.
    """
    if op != "broadcast":
        hops = (2 if op == "all_reduce" else 1) * (shape.n - 1)
        # A part crosses between nodes once in g hops, but the card carries a part in every round.
        crossed = math.ceil(hops / shape.g) if shape.m > 1 else hops
        yield Round(crossed, 1 / shape.n, shape.across, hops / crossed)
        return
    k = shape.pieces()
    crossed = shape.m - 2 if shape.m > 1 else 0
    yield Round(k, 1 / k, shape.across)
    # The last piece goes the rest of the chain alone.
    yield Round(crossed, 1 / k, BETWEEN)
    yield Round(shape.n - 2 - crossed, 1 / k, WITHIN)


def _parameter_server(op: str, shape: _Shape) -> Iterator[Round]:
    """Yield the rounds of a parameter server: all messages start or end at rank 0, one after another."""
    part = 1 / shape.n
    shares = {
        "all_reduce": (1.0, 1.0), "reduce_scatter": (1.0, part), "all_gather": (part, 1.0), "broadcast": (1.0,),
    }  # fmt: skip
    for share in shares[op]:
        yield Round(shape.g - 1, share, WITHIN)
        yield Round(shape.n - shape.g, share, BETWEEN)


def _halving_doubling(op: str, shape: _Shape) -> Iterator[Round]:
    """Yield the rounds of halving and doubling: in each, distance and exchanged bytes of pairs are halved.

    A broadcast scatters by halves, then gathers. Exact for powers of two.
    """
    left, times, splits = shape.n, 2 if op == "all_reduce" else 1, list[Round]()
    while left > 1:
        distance = (left + 1) // 2
        # Spans of `left` ranks are inside nodes if both are cut evenly.
        inside = shape.m == 1 or (shape.n % left == 0 and shape.g % left == 0)
        flows = 1 if inside else min(distance, shape.g)
        splits.append(Round(times, distance / shape.n, WITHIN if inside else BETWEEN, flows))
        left = distance
    if op == "broadcast":
        yield from (replace(each, flows=1) for each in splits)
    yield from splits


def _tree(op: str, shape: _Shape) -> Iterator[Round]:
    """Yield the rounds of one tree (broadcast), two trees (all_reduce), or else one tree for the part of each rank.

    All trees use the same ranks, so their messages delay each other.
    """
    if op == "all_reduce":
        yield from _double_tree(shape)
    elif op == "broadcast":
        yield from _one_tree(shape)
    else:
        total = shape.n * (log2(shape.n) - 1) / (2 if op == "reduce_scatter" else 1) + 1
        yield Round(total, 1 / shape.n, shape.across, max(1.0, shape.g * (shape.n - 1) / total) if shape.m > 1 else 1)


def _one_tree(shape: _Shape) -> Iterator[Round]:
    """Yield the rounds of a binary tree: a rank passes each piece to two children, one after the other.

    With up to 3 ranks, the tree is a chain.
    """
    k, depth = shape.pieces(), log2(shape.n)
    children, last = (2, 2 * depth - 3) if shape.n > 3 else (1, depth - 1)
    # On 2 or 3 nodes a rank has one child elsewhere, on more it has two.
    far = min(children, 2 if shape.m > 3 else 1) if shape.m > 1 else 0
    down = 0 if shape.m == 1 else last if shape.g == 1 else min(last, 2 * log2(shape.m) - 1)
    yield Round(far * k, 1 / k, BETWEEN)
    yield Round((children - far) * k, 1 / k, WITHIN)
    # The last piece then goes down the tree.
    yield Round(down, 1 / k, BETWEEN)
    yield Round(last - down, 1 / k, WITHIN)


def _double_tree(shape: _Shape) -> Iterator[Round]:
    """Yield the rounds of two trees with half the bytes each.

    The first piece goes up alone, and the last goes down alone. Their messages were counted on a simulated network.
    """
    k, depth = shape.pieces(0.5), log2(shape.n)
    stream, alone = {2: (2, 0), 3: (3, 2)}.get(shape.n, (4, 4 * depth - 6))
    share = 1 / 2 / k
    if shape.m == 1 or shape.g == 1:
        yield Round(stream * k + alone, share, shape.across)
        return
    far = 4 if shape.m > 3 else 2
    crossed = min(alone, 4 * log2(shape.m) - 2)
    # Edges of both trees that end in the busiest node: its card sends for one tree while the other waits.
    crossings = 4 if shape.m <= 3 else 6 if shape.m % 2 == 0 else 8
    if crossings > far + crossed / k:
        yield Round(far * k, share, BETWEEN, crossings / far)
        return
    yield Round(far * k + crossed, share, BETWEEN)
    yield Round((stream - far) * k + alone - crossed, share, WITHIN)


def _binomial(op: str, shape: _Shape) -> Iterator[Round]:
    """Yield the rounds of gloo's own algorithms (pytorch/gloo, gloo/allreduce.cc, allgather.cc, broadcast.cc).

    - broadcast: a rank with the bytes sends them to the rank at a distance of 1, then 2, 4, ...
    - reduce_scatter: torch runs an all_reduce of the whole buffer (pytorch/pytorch, pull request 118911)
    """
    if op != "broadcast":
        yield from _ring("all_reduce" if op == "reduce_scatter" else op, shape)
        return
    inside = log2(shape.g)
    yield Round(inside, 1, WITHIN)
    yield Round(log2(shape.n) - inside, 1, BETWEEN, shape.g)


_FLAT = {
    "native": _binomial, "ring": _ring, "tree": _tree, "halving_doubling": _halving_doubling,
    "parameter_server": _parameter_server,
}  # fmt: skip


def log2(n: int) -> int:
    """Return the logarithm of n, rounded up."""
    return (n - 1).bit_length()
