"""Double binary tree: two trees carry half of the data each, and a rank that is a leaf in one is inner in the other.

Depth log2(n), and every rank sends and receives about 2S, pipelined in pieces
(Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from torch import Tensor

from parabench.collectives.wire import Algorithm, Pending, Reduction, Wire, pieces, split


@dataclass(frozen=True, slots=True)
class Node:
    """A rank's neighbours in one tree."""

    parent: int | None
    children: tuple[int, ...]


def _parent(rank: int, size: int) -> int | None:
    """In-order binary tree: odd ranks are leaves; a rank's height is its number of trailing zero bits."""
    if rank == 0:
        return None
    lowest = rank & -rank
    above = (rank ^ lowest) | lowest << 1
    return above if above < size else rank ^ lowest


@cache
def tree(size: int, root: int = 0) -> tuple[Node, ...]:
    """The in-order binary tree over `size` ranks, turned so that `root` is its root."""
    parents = [_parent(r, size) for r in range(size)]
    turned = [
        Node(
            None if (p := parents[(r - root) % size]) is None else (p + root) % size,
            tuple((c + root) % size for c, q in enumerate(parents) if q == (r - root) % size),
        )
        for r in range(size)
    ]
    return tuple(turned)


@cache
def double_tree(size: int) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Two trees in which no rank is inner twice: the second mirrors the first. In an in-order tree the root has one
    child only, so of an odd number of ranks the last one becomes a leaf of both roots."""
    even = size - size % 2
    if even == 0:
        return tree(1), tree(1)

    def mirror(rank: int) -> int:
        return even - 1 - rank

    first = list(tree(even))
    second = [
        Node(
            None if (p := first[mirror(r)].parent) is None else mirror(p),
            tuple(map(mirror, first[mirror(r)].children)),
        )
        for r in range(even)
    ]
    if size % 2:
        for nodes, root in ((first, 0), (second, mirror(0))):
            nodes[root] = Node(None, (*nodes[root].children, even))
            nodes.append(Node(root, ()))
    return tuple(first), tuple(second)


def _up(wire: Wire, node: Node, piece: Tensor, reduction: Reduction, sends: list[Pending]) -> None:
    """Add the children's pieces to mine and pass the sum to the parent."""
    arriving = [wire.scratch(f"tree {i}", piece, piece.numel()) for i in range(len(node.children))]
    receives = [wire.exchange(recvs=[(t, child)]) for t, child in zip(arriving, node.children, strict=True)]
    for theirs, receive in zip(arriving, receives, strict=True):
        receive.wait()
        reduction.combine(piece, theirs)
    if node.parent is None:
        reduction.finish(piece)
    else:
        sends.append(wire.exchange([(piece, node.parent)]))


def _down(wire: Wire, node: Node, piece: Tensor, sends: list[Pending]) -> None:
    """Take the finished piece from the parent and pass it to the children."""
    if node.parent is not None:
        wire.exchange(recvs=[(piece, node.parent)]).wait()
    sends.append(wire.exchange([(piece, child) for child in node.children]))


def _finish(sends: Sequence[Pending]) -> None:
    for send in sends:
        send.wait()


def all_reduce(wire: Wire, flat: Tensor, reduction: Reduction) -> None:
    """Reduce `flat` over all ranks, in place. All walk the same order of pieces and trees: no cycle of waits."""
    trees = double_tree(wire.size)
    work = [
        (nodes[wire.rank], piece)
        for both in zip(*(pieces(half) for half in split(_even(flat), 2)), strict=True)
        for nodes, piece in zip(trees, both, strict=True)
    ]
    if flat.numel() % 2:
        work.append((trees[0][wire.rank], flat[-1:]))
    ups: list[Pending] = []
    for node, piece in work:
        _up(wire, node, piece, reduction, ups)
    _finish(ups)
    downs: list[Pending] = []
    for node, piece in work:
        _down(wire, node, piece, downs)
    _finish(downs)


def _even(flat: Tensor) -> Tensor:
    return flat[: flat.numel() // 2 * 2]


def reduce_scatter(wire: Wire, output: Tensor, flat: Tensor, reduction: Reduction) -> None:
    """Part r climbs the tree whose root is rank r, so that every rank sends (n-1)/n S in all."""
    sends: list[Pending] = []
    for root, part in enumerate(split(flat, wire.size)):
        for piece in pieces(part):
            _up(wire, tree(wire.size, root)[wire.rank], piece, reduction, sends)
    _finish(sends)
    output.copy_(split(flat, wire.size)[wire.rank])


def all_gather(wire: Wire, output: Tensor, part: Tensor) -> None:
    """Part r goes down the tree whose root is rank r."""
    parts = split(output, wire.size)
    parts[wire.rank].copy_(part)
    sends: list[Pending] = []
    for root, each in enumerate(parts):
        for piece in pieces(each):
            _down(wire, tree(wire.size, root)[wire.rank], piece, sends)
    _finish(sends)


TREE = Algorithm(name="tree", all_reduce=all_reduce, reduce_scatter=reduce_scatter, all_gather=all_gather)
