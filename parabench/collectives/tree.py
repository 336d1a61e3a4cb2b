"""Double binary tree: each tree has half of the data, and a leaf of one tree is an inner rank of the other.

Depth log2(n), and every rank sends and receives about 2S, pipelined in pieces
(Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from torch import Tensor

from parabench.collectives.algorithm import Algorithm, Reduction
from parabench.collectives.wire import Message, Wire, finish, pieces_of, split


@dataclass(frozen=True, slots=True)
class Node:
    """The neighbors of a rank in one tree."""

    parent: int | None
    children: tuple[int, ...]


@cache
def tree(size: int, root: int = 0) -> tuple[Node, ...]:
    """Return the in-order binary tree over `size` ranks, rotated to have the root `root`.

    Before the rotation, the height of a rank is its number of trailing zero bits.
    """
    parents: list[int | None] = [None]
    for rank in range(1, size):
        lowest = rank & -rank
        above = (rank ^ lowest) | lowest << 1
        parents.append(above if above < size else rank ^ lowest)
    nodes = [Node(None, ())] * size
    for rank, parent in enumerate(parents):
        children = [(child + root) % size for child, above in enumerate(parents) if above == rank]
        nodes[(rank + root) % size] = Node(None if parent is None else (parent + root) % size, tuple(children))
    return tuple(nodes)


@cache
def double_tree(size: int) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Return a tree and its mirror image, so that no rank is inner in both.

    With an odd number of ranks, the last one is a leaf of both roots.
    """
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


# The number of receives that are posted ahead, and of pieces that climb before a wait for the first one to come down.
AHEAD = 4


class Piece(NamedTuple):
    """A piece that is reduced to the root of one tree, on the tree's channel.

    `own` is this rank's contribution. `total` is for the sum of this rank and the ranks below, and may be `own`.
    """

    node: Node
    channel: int
    own: Tensor
    total: Tensor


def _climb(wire: Wire, pieces: Sequence[Piece], reduction: Reduction, sends: list[Message]) -> Iterator[Piece]:
    """Add the children's pieces to each piece, and send the sum to the parent. Yield each piece that was added.

    A leaf does not wait, so its pieces are sent at once.
    """
    inner = [piece for piece in pieces if piece.node.children]
    receives: deque[list[tuple[Tensor, Message]]] = deque()

    def post(number: int) -> None:
        if number < len(inner):
            node, channel, own, _ = inner[number]
            slots = [wire.scratch(f"tree {number % AHEAD} {i}", own, own.numel()) for i in range(len(node.children))]
            receives.append(
                [(slot, wire.recv(slot, child, channel)) for slot, child in zip(slots, node.children, strict=True)]
            )

    # Post receives first, because their notices wait behind messages on the same connection.
    for number in range(AHEAD):
        post(number)
    sends += [
        wire.send(own, node.parent, channel)
        for node, channel, own, _ in pieces
        if not node.children and node.parent is not None
    ]
    for number, piece in enumerate(inner):
        partial = piece.own
        for theirs, receive in receives.popleft():
            receive.wait()
            reduction.combine(piece.total, partial, theirs)
            partial = piece.total
        if piece.node.parent is None:
            reduction.finish(piece.total)
        else:
            sends.append(wire.send(piece.total, piece.node.parent, piece.channel))
        post(number + AHEAD)
        yield piece


def _descend(wire: Wire, pieces: Sequence[Piece], sends: list[Message]) -> Iterator[None]:
    """Pass each finished piece from the parent to the children. Yield after each, with further receives posted."""
    receives: deque[Message | None] = deque()

    def post(number: int) -> None:
        if number < len(pieces):
            node, channel, _, total = pieces[number]
            receives.append(None if node.parent is None else wire.recv(total, node.parent, channel))

    for number in range(AHEAD):
        post(number)
    for number, (node, channel, _, total) in enumerate(pieces):
        if (receive := receives.popleft()) is not None:
            receive.wait()
        sends += [wire.send(total, child, channel) for child in node.children]
        post(number + AHEAD)
        yield


def all_reduce(wire: Wire, flat: Tensor, reduction: Reduction) -> None:
    """Reduce `flat` over all ranks, in place. Each tree has one half, and both climb and descend at the same time."""
    if wire.size == 1:
        reduction.finish(flat)
        return
    halves = split(flat, 2)
    count = pieces_of(halves[1].nbytes) if wire.eager else 1
    trees = [
        [Piece(nodes[wire.rank], channel, piece, piece) for piece in split(half, count)]
        for channel, (nodes, half) in enumerate(zip(double_tree(wire.size), halves, strict=True))
    ]
    # Without channels, one tree after the other.
    for group in [trees] if wire.eager else [[each] for each in trees]:
        _up_and_down(wire, [piece for tree in group for piece in tree], reduction)


def _up_and_down(wire: Wire, pieces: Sequence[Piece], reduction: Reduction) -> None:
    """Reduce pieces at the roots of their trees, and send the results back to all ranks."""
    sends: list[Message] = []
    # A rank adds in one tree at most. In the other tree it is a leaf, and waits for the results at the end.
    added = [piece for piece in pieces if piece.node.children]
    climbing, descending = _climb(wire, pieces, reduction, sends), _descend(wire, added, sends)
    lag = AHEAD if added and added[0].node.parent is not None else 0
    landing = [
        wire.recv(p.total, p.node.parent, p.channel)
        for p in pieces
        if not p.node.children and p.node.parent is not None
    ]
    if next(climbing, None) is not None:
        for turn in range(len(added) + lag):
            if turn >= lag:
                next(descending)
            if turn < len(added) - 1:
                next(climbing)
    finish(landing)
    finish(sends)


def reduce_scatter(wire: Wire, output: Tensor, flat: Tensor, reduction: Reduction) -> None:
    """Send part r up the tree with the root r. Every rank sends (n-1)/n S in total."""
    if wire.size == 1:
        output.copy_(flat)
        reduction.finish(output)
        return
    partial = split(wire.scratch("tree partial", flat, flat.numel()), wire.size)
    parts = split(flat, wire.size)
    trees = [_cut(wire, root, part, output if root == wire.rank else partial[root]) for root, part in enumerate(parts)]
    sends: list[Message] = []
    for group in [[piece for each in trees for piece in each]] if wire.eager else trees:
        for _ in _climb(wire, group, reduction, sends):
            pass
    finish(sends)


def all_gather(wire: Wire, output: Tensor, part: Tensor) -> None:
    """Send part r down the tree with the root r."""
    parts = split(output, wire.size)
    if parts[wire.rank].data_ptr() != part.data_ptr():
        parts[wire.rank].copy_(part)
    trees = [_cut(wire, root, each, each) for root, each in enumerate(parts)]
    if wire.eager:
        # This rank's part does not wait for others.
        trees.insert(0, trees.pop(wire.rank))
    sends: list[Message] = []
    for _ in _descend(wire, [piece for each in trees for piece in each], sends):
        pass
    finish(sends)


def broadcast(wire: Wire, flat: Tensor, root: int) -> None:
    """Send pieces down one tree from the root."""
    sends: list[Message] = []
    for _ in _descend(wire, _cut(wire, root, flat, flat), sends):
        pass
    finish(sends)


def _cut(wire: Wire, root: int, own: Tensor, total: Tensor) -> list[Piece]:
    """Return the pieces that climb to `root`, or descend from it."""
    count = pieces_of(own.nbytes) if wire.eager else 1
    node = tree(wire.size, root)[wire.rank]
    return [Piece(node, root, *both) for both in zip(split(own, count), split(total, count), strict=True)]


TREE = Algorithm(
    name="tree", all_reduce=all_reduce, reduce_scatter=reduce_scatter, all_gather=all_gather, broadcast=broadcast
)
