"""Double binary tree: two trees carry half of the data each, and a rank that is a leaf in one is inner in the other.

Depth log2(n), and every rank sends and receives about 2S, pipelined in pieces
(Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from torch import Tensor

from parabench.collectives.algorithm import Algorithm
from parabench.collectives.reduction import Reduction
from parabench.collectives.wire import Pending, Wire, pieces, split


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


# So many pieces climb before the first one is waited for on its way down: the reduction and the broadcast overlap.
LAG = 4


def _up(wire: Wire, node: Node, slot: int, piece: Tensor, target: Tensor, reduction: Reduction) -> Pending | None:
    """Add the children's pieces to mine and pass the sum to the parent; the root's is `target`, which may be mine."""
    arriving = [wire.scratch(f"tree {slot} {i}", piece, piece.numel()) for i in range(len(node.children))]
    receives = [wire.exchange(recvs=[(t, child)]) for t, child in zip(arriving, node.children, strict=True)]
    total = piece
    for theirs, receive in zip(arriving, receives, strict=True):
        receive.wait()
        into = target if node.parent is None else arriving[0]
        reduction.combine(into, total, theirs)
        total = into
    if node.parent is not None:
        return wire.exchange([(total, node.parent)])
    if total is not target:
        target.copy_(total)
    reduction.finish(target)
    return None


def _down(wire: Wire, node: Node, piece: Tensor) -> Pending:
    """Take the finished piece from the parent and pass it to the children."""
    if node.parent is not None:
        wire.exchange(recvs=[(piece, node.parent)]).wait()
    return wire.exchange([(piece, child) for child in node.children])


def _work(flat: Tensor, size: int) -> list[tuple[tuple[Node, ...], Tensor]]:
    """Every piece with its tree: each tree carries half of `flat`. All ranks walk this order: no cycle of waits."""
    even = flat.numel() // 2 * 2
    trees = double_tree(size)
    halves = [pieces(half) for half in split(flat[:even], 2)]
    work = [(nodes, piece) for both in zip(*halves, strict=True) for nodes, piece in zip(trees, both, strict=True)]
    if flat.numel() > even:
        work.append((trees[0], flat[even:]))
    return work


def all_reduce(wire: Wire, flat: Tensor, reduction: Reduction) -> None:
    """Reduce `flat` over all ranks, in place."""
    work = [(nodes[wire.rank], piece) for nodes, piece in _work(flat, wire.size)]
    ups: list[Pending | None] = []
    downs: list[Pending] = []
    for step in range(len(work) + LAG):
        if step < len(work):
            node, piece = work[step]
            # A slot is free when what was sent from it has left.
            slot = step % (LAG + 1)
            if step > LAG and (before := ups[step - LAG - 1]) is not None:
                before.wait()
            ups.append(_up(wire, node, slot, piece, piece, reduction))
        if step >= LAG:
            downs.append(_down(wire, *work[step - LAG]))
    _finish(ups)
    _finish(downs)


def _finish(sends: Sequence[Pending | None]) -> None:
    for send in sends:
        if send is not None:
            send.wait()


def reduce_scatter(wire: Wire, output: Tensor, flat: Tensor, reduction: Reduction) -> None:
    """Part r climbs the tree whose root is rank r, so that every rank sends (n-1)/n S in all."""
    ups: list[Pending | None] = []
    for root, part in enumerate(split(flat, wire.size)):
        target = output if root == wire.rank else part
        for piece, whole in zip(pieces(part), pieces(target), strict=True):
            if len(ups) > LAG and (before := ups[-LAG - 1]) is not None:
                before.wait()
            ups.append(_up(wire, tree(wire.size, root)[wire.rank], len(ups) % (LAG + 1), piece, whole, reduction))
    _finish(ups)


def all_gather(wire: Wire, output: Tensor, part: Tensor) -> None:
    """Part r goes down the tree whose root is rank r."""
    parts = split(output, wire.size)
    parts[wire.rank].copy_(part)
    _finish(
        [
            _down(wire, tree(wire.size, root)[wire.rank], piece)
            for root, each in enumerate(parts)
            for piece in pieces(each)
        ]
    )


def broadcast(wire: Wire, flat: Tensor, root: int) -> None:
    """Pieces go down one tree from the root."""
    _finish([_down(wire, tree(wire.size, root)[wire.rank], piece) for piece in pieces(flat)])


TREE = Algorithm(
    name="tree", all_reduce=all_reduce, reduce_scatter=reduce_scatter, all_gather=all_gather, broadcast=broadcast
)
