"""The messages of a collective among ranks that are spread over nodes, as rounds one after another.

What one rank sends or receives one message after another counts as `times` (the one-port model of Thakur, Rabenseifner
and Gropp, "Optimization of collective communication operations in MPICH", 2005); what ranks of a node send through its
network card at the same time as `flows`. Where a round goes over both tiers at once it is counted between nodes. The
rounds follow the source of `parabench/collectives`; the tests count the same messages and bytes on a simulated wire.

`native` is gloo's own: a ring for all_reduce and all_gather, a binomial tree for broadcast (pytorch/gloo,
gloo/allreduce.cc, allgather.cc, broadcast.cc), and for reduce_scatter torch reduces the whole buffer by all_reduce
(pytorch/pytorch, pull request 118911). Closed forms: no rank is visited, with one exception (`crossings`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from parabench.collectives import levels_of

WITHIN, BETWEEN = "within a node", "between nodes"
OPS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")


@dataclass(frozen=True, slots=True)
class Round:
    """`times` rounds one after another, in each of which a message of `share` of the collective's bytes goes over
    `tier`, and `flows` such messages share the busiest link: a node's network card in one direction, or one rank's end
    within a node. A message of several `pieces` is passed on while it arrives."""

    times: float
    share: float
    tier: str
    flows: float = 1
    pieces: int = 1


Rounds = tuple[Round, ...]


@dataclass(frozen=True, slots=True)
class _Shape:
    """`n` ranks on `m` nodes of `g`, numbered node by node; `size` bytes, in pieces of at most `piece_bytes`."""

    n: int
    g: int
    size: float
    piece_bytes: int

    @property
    def m(self) -> int:
        return self.n // self.g

    @property
    def across(self) -> str:
        """The tier of what goes round all ranks."""
        return BETWEEN if self.m > 1 else WITHIN

    def pieces(self, share: float = 1.0) -> int:
        return max(1, math.ceil(self.size * share / self.piece_bytes))


def rounds(
    op: str, algorithm: str, world_size: int, ranks_per_node: int, size: float, piece_bytes: int
) -> Rounds | None:
    """The rounds of `size` bytes in all among `world_size` ranks, so many of them on each node of the machine, which is
    also what two_level takes for a node; one node where there are more than ranks. The root of a broadcast is rank 0.

    What goes along a chain or down a tree does so in pieces of at most `piece_bytes`. () for one rank, None for an
    algorithm or operation that has no schedule here. Raises ValueError for ranks that do not fill their nodes, and
    UsageError for unknown parts of two_level.
    """
    if min(world_size, ranks_per_node) < 1 or (world_size > ranks_per_node and world_size % ranks_per_node):
        raise ValueError(f"{world_size} ranks do not fill nodes of {ranks_per_node}")
    if op not in OPS:
        return None
    shape = _Shape(world_size, min(world_size, ranks_per_node), size, piece_bytes)
    levels = levels_of(algorithm)
    if levels is not None:
        return tuple(_two_level(op, *levels, shape))
    if algorithm not in _FLAT:
        return None
    return tuple(_flat(op, algorithm, shape))


def chains(
    op: str, algorithm: str, world_size: int, ranks_per_node: int, size: float, piece_bytes: int
) -> tuple[Rounds, ...] | None:
    """Rounds of which the longest are what a call takes; arguments and errors are those of `rounds`.

    Where ranks do not wait for one another's rounds, what takes longest is either a part's own way or the link, which
    carries what all ranks of a node send: in a ring one part is between nodes while others go on within, and one tree
    sends while the other waits. All else is one chain.
    """
    found = rounds(op, algorithm, world_size, ranks_per_node, size, piece_bytes)
    if found is None:
        return None
    if not 1 < ranks_per_node < world_size:
        return (found,)
    if algorithm in ("ring", "native") and op != "broadcast":
        hops, share = found[0].times, found[0].share
        crossed = math.ceil(hops / ranks_per_node)
        way = Round(crossed, share, BETWEEN), Round(hops - crossed, share, WITHIN)
        return way, (Round(crossed, share, BETWEEN, hops / crossed),)
    if algorithm == "tree" and op == "all_reduce":
        # The last piece's way back overlaps with what the other tree sends.
        link = found[0]
        return (replace(link, flows=1), *found[1:]), (link,)
    return (found,)


def _flat(op: str, algorithm: str, at: _Shape) -> Iterator[Round]:
    if at.n > 1:
        yield from (each for each in _FLAT[algorithm](op, at) if each.times > 0)


def _two_level(op: str, inner: str, outer: str, at: _Shape) -> Iterator[Round]:
    """`inner` in every node, and `outer` once for each place in a node, all at once; a broadcast has one place."""
    inside = replace(at, n=at.g)
    places = 1 if op == "broadcast" else at.g
    outside = replace(at, n=at.m, g=1, size=at.size / places)
    across = [replace(each, share=each.share / places, flows=each.flows * places) for each in _flat(op, outer, outside)]
    if op == "all_reduce":
        yield from _flat("reduce_scatter", inner, inside)
        yield from across
        yield from _flat("all_gather", inner, inside)
    elif op == "reduce_scatter":
        yield from _flat(op, inner, inside)
        yield from across
    else:
        yield from across
        yield from _flat(op, inner, inside)


def _ring(op: str, at: _Shape) -> Iterator[Round]:
    """In every round one message leaves each node and one comes; a broadcast is a chain from rank 0 to the last."""
    if op != "broadcast":
        yield Round((2 if op == "all_reduce" else 1) * (at.n - 1), 1 / at.n, at.across)
        return
    k = at.pieces()
    crossed = at.m - 2 if at.m > 1 else 0
    yield Round(1, 1, at.across, pieces=k)
    # The last piece goes the rest of the chain alone.
    yield Round(crossed, 1 / k, BETWEEN)
    yield Round(at.n - 2 - crossed, 1 / k, WITHIN)


def _parameter_server(op: str, at: _Shape) -> Iterator[Round]:
    """All messages end or begin at rank 0, one after another."""
    shares = {
        "all_reduce": (1.0, 1.0), "reduce_scatter": (1.0, 1 / at.n), "all_gather": (1 / at.n, 1.0), "broadcast": (1.0,),
    }  # fmt: skip
    for share in shares[op]:
        yield Round(at.g - 1, share, WITHIN)
        yield Round(at.n - at.g, share, BETWEEN)


def _halving_doubling(op: str, at: _Shape) -> Iterator[Round]:
    """Pairs at a distance of half the ranks that remain, the widest first, exchange as many parts; a broadcast is
    scattered by one rank of each half, then gathered. Exact for powers of two; where a half is one rank larger, that
    rank's share goes beside another's, which takes up to twice as long and is left out."""
    splits = list(_splits(at))
    times = 2 if op == "all_reduce" else 1
    if op == "broadcast":
        yield from (replace(each, flows=1) for each in splits)
    yield from (replace(each, times=times) for each in splits)


def _splits(at: _Shape) -> Iterator[Round]:
    left = at.n
    while left > 1:
        distance = (left + 1) // 2
        # Spans of `left` ranks lie inside nodes where both are cut evenly.
        inside = at.m == 1 or (at.n % left == 0 and at.g % left == 0)
        flows = 1 if inside else min(distance, at.g)
        yield Round(1, distance / at.n, WITHIN if inside else BETWEEN, flows)
        left = distance


def _tree(op: str, at: _Shape) -> Iterator[Round]:
    if op in ("reduce_scatter", "all_gather"):
        return _trees_of_all(op, at)
    return _double_tree(at) if op == "all_reduce" else _one_tree(at)


def _one_tree(at: _Shape) -> Iterator[Round]:
    """A rank passes each piece to two children, one after the other; up to 3 ranks the tree is a chain. The last piece
    then goes down the tree."""
    k, depth, high = at.pieces(), log2(at.n), log2(at.m)
    children, last = (2, 2 * depth - 3) if at.n > 3 else (1, depth - 1)
    if at.m == 1:
        yield Round(children, 1, WITHIN, pieces=k)
        yield Round(last, 1 / k, WITHIN)
        return
    # Of up to 3 nodes a rank has one child elsewhere, of more two.
    far = min(children, 2 if at.m > 3 else 1)
    down = last if at.g == 1 else min(last, 2 * high - 1)
    yield Round(far, 1, BETWEEN, pieces=k)
    yield Round(children - far, 1, WITHIN, pieces=k)
    yield Round(down, 1 / k, BETWEEN)
    yield Round(last - down, 1 / k, WITHIN)


def _double_tree(at: _Shape) -> Iterator[Round]:
    """Two trees of half the bytes each: an inner rank takes from two children and gives to them. The first piece climbs
    and the last descends before and after that; so many single messages were counted on the simulated wire, one port
    a rank, where all is one piece (`cost_formula` leaves them out)."""
    k, depth, high = at.pieces(0.5), log2(at.n), log2(at.m)
    stream, alone = {2: (2, 0), 3: (3, 2)}.get(at.n, (4, 4 * depth - 6))
    if at.m == 1 or at.g == 1:
        yield Round(stream, 1 / 2, at.across, pieces=k)
        yield Round(alone, 1 / 2 / k, at.across)
        return
    far = 4 if at.m > 3 else 2
    crossed = min(alone, 4 * high - 2)
    yield Round(far, 1 / 2, BETWEEN, crossings(at.n, at.g) / far, pieces=k)
    yield Round(stream - far, 1 / 2, WITHIN, pieces=k)
    yield Round(crossed, 1 / 2 / k, BETWEEN)
    yield Round(alone - crossed, 1 / 2 / k, WITHIN)


def _trees_of_all(op: str, at: _Shape) -> Iterator[Round]:
    """Part r goes up or down the tree of rank r. That all trees' messages wait for one another was counted
    (`cost_formula`); as many of these rounds cross as do of all messages, several at once where more bytes cross than
    that."""
    depth = log2(at.n)
    total = at.n * (depth - 1) / (2 if op == "reduce_scatter" else 1) + 1
    if at.m == 1:
        yield Round(total, 1 / at.n, WITHIN)
        return
    crossed = total * messages_out(at.n, at.g) / (at.g * (at.n - 1))
    yield Round(crossed, 1 / at.n, BETWEEN, max(1.0, at.g * (at.n - 1) / total))
    yield Round(total - crossed, 1 / at.n, WITHIN)


def _binomial(op: str, at: _Shape) -> Iterator[Round]:
    """gloo's own: who has a broadcast's bytes sends them all to the rank at a distance of 1, then 2, 4, ..."""
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


# -- trees of `parabench/collectives`: messages from node to node, of n ranks on nodes of g ----------------------------


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
