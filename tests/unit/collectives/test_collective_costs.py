"""Messages, bytes and rounds of every algorithm, counted on the simulated wire, against its formula."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch.distributed import ReduceOp

from parabench.collectives import LEVELS, wire
from parabench.collectives.algorithm import make, reduction
from parabench.collectives.wire import Wire
from simulated import Record, Simulation, rounds

TWO_LEVELS = tuple(f"two_level({inner},{outer})" for inner, outer in itertools.product(LEVELS, LEVELS))
SUM = ReduceOp.SUM


@pytest.fixture(autouse=True)
def whole_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The formulas count messages, so nothing is cut into pieces."""
    monkeypatch.setattr(wire, "PIECE_BYTES", 1 << 20)


def traffic(name: str, size: int, ranks_per_node: int | None = None) -> tuple[Record[None], int]:
    """One all-reduce, of a number of elements that divides by up to 8 and by 16; and its bytes, S."""
    algorithm, op = make(name, ranks_per_node), reduction(SUM, size)
    flats = [torch.ones(4 * 840, dtype=torch.int64) for _ in range(size)]
    record = Simulation(size).run(lambda wire: algorithm.all_reduce(wire, flats[wire.rank], op))
    assert all(bool((flat == size).all()) for flat in flats)
    return record, flats[0].nbytes


def sent_bytes(record: Record[None], rank: int) -> int:
    return sum(message.nbytes for message in record.sent(rank))


@pytest.mark.parametrize(
    ("name", "size"), [*(("ring", size) for size in range(1, 9)), *(("halving_doubling", 2**k) for k in range(5))]
)
def test_ring_and_halving_doubling_send_the_least_bytes(name: str, size: int) -> None:
    record, total = traffic(name, size)
    messages = 2 * (size - 1) if name == "ring" else 2 * math.log2(size)
    for rank in range(size):
        assert len(record.sent(rank)) == len(record.received(rank)) == messages
        assert sent_bytes(record, rank) == 2 * (size - 1) * total // size
    if name == "ring":
        assert {(m.dst - m.src) % size for m in record.messages} <= {1}


@pytest.mark.parametrize("size", [*range(2, 9), 15, 16, 31, 32])
def test_a_tree_is_shallow_and_no_rank_sends_more_than_twice_the_data(size: int) -> None:
    record, total = traffic("tree", size)
    assert all(sent_bytes(record, rank) <= 2 * total for rank in range(size))
    assert sum(message.nbytes for message in record.messages) == 2 * (size - 1) * total
    # Up and down, both trees at the same time.
    assert max(rounds(record, one_port=False).values()) <= 2 * math.ceil(math.log2(size))


@pytest.mark.parametrize("name", TWO_LEVELS)
@pytest.mark.parametrize(("size", "node"), [(4, 2), (6, 2), (6, 3), (8, 2), (8, 4)])
def test_two_level_is_the_sum_of_its_parts(name: str, size: int, node: int) -> None:
    """reduce-scatter and all-gather in the node, and an all-reduce of S over the node's ranks across."""
    record, total = traffic(name, size, node)
    inner, outer = name.removeprefix("two_level(").removesuffix(")").split(",")
    across, whole = traffic(outer, size // node)
    for rank in range(size):
        there = [m for m in record.sent(rank) if m.dst // node != rank // node]
        assert {(m.dst - rank) % node for m in there} <= {0}
        assert sum(m.nbytes for m in there) * whole == sent_bytes(across, rank // node) * total // node
        assert len(there) == len(across.sent(rank // node))
    inside = [m for m in record.messages if m.dst // node == m.src // node]

    def part(work: Callable[[Wire], None]) -> int:
        return sum(m.nbytes for m in Simulation(node).run(work).messages)

    level, numel = make(inner, None), total // 8
    zeros = [torch.zeros(numel, dtype=torch.int64) for _ in range(node)]
    parts = [torch.zeros(numel // node, dtype=torch.int64) for _ in range(node)]
    op = reduction(SUM, node)
    scattered = part(lambda w: level.reduce_scatter(w, parts[w.rank], zeros[w.rank], op))
    gathered = part(lambda w: level.all_gather(w, zeros[w.rank], parts[w.rank]))
    assert sum(m.nbytes for m in inside) == (size // node) * (scattered + gathered)
