"""The rounds of every collective, against the messages that its algorithm really sends, and against its formula."""

from __future__ import annotations

import itertools
import math

import pytest

from message_logs import BYTES, sent
from parabench.analysis.collectives.cost_formula import NODE, terms
from parabench.analysis.prediction.schedule import BETWEEN, WITHIN, Round, messages_out, rounds
from parabench.collectives import LEVELS
from parabench.errors import UsageError
from parabench.plan.collective_case import OPS
from simulated import Record
from simulated import rounds as logical_times

MIB = 1 << 20
SHAPES = [(n, g) for n, g in itertools.product((2, 4, 8, 16), (1, 2, 4)) if g < n]
TWO_LEVELS = ("two_level", "two_level(tree,halving_doubling)", "two_level(parameter_server,tree)")


def link_bytes(record: Record[None], n: int, g: int, *, node: int | None = None) -> int:
    """Bytes over the busiest link of a node in its busier direction; with `node` in both directions of that one's."""
    out, into = [0] * (n // g), [0] * (n // g)
    for message in record.messages:
        a, b = message.src // g, message.dst // g
        if a != b:
            out[a] += message.nbytes
            into[b] += message.nbytes
    return max(*out, *into) if node is None else out[node] + into[node]


def across(found: tuple[Round, ...], tier: str = BETWEEN) -> float:
    """Shares of the collective's bytes over the busiest link of a tier."""
    return sum(each.times * each.share * each.flows for each in found if each.tier == tier)


# -- by hand -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "algorithm", "n", "g", "expected"),
    [
        ("all_reduce", "ring", 8, 8, [Round(14, 1 / 8, WITHIN)]),
        ("all_reduce", "ring", 8, 4, [Round(14, 1 / 8, BETWEEN)]),
        ("all_gather", "ring", 8, 1, [Round(7, 1 / 8, BETWEEN)]),
        # Two pieces: all of them over the first link, the last over two more links between nodes and five within.
        ("broadcast", "ring", 9, 3, [
            Round(1, 1, BETWEEN, pieces=2), Round(1, 1 / 2, BETWEEN), Round(6, 1 / 2, WITHIN),
        ]),
        ("all_reduce", "halving_doubling", 8, 2, [
            Round(2, 1 / 2, BETWEEN, 2), Round(2, 1 / 4, BETWEEN, 2), Round(2, 1 / 8, WITHIN),
        ]),
        ("reduce_scatter", "parameter_server", 8, 2, [
            Round(1, 1, WITHIN), Round(6, 1, BETWEEN), Round(1, 1 / 8, WITHIN), Round(6, 1 / 8, BETWEEN),
        ]),
        # Six edges of two trees of half the bytes end in a node of many.
        ("all_reduce", "tree", 16, 4, [
            Round(4, 1 / 2, BETWEEN, 1.5), Round(6, 1 / 2, BETWEEN), Round(4, 1 / 2, WITHIN),
        ]),
        ("all_reduce", "two_level", 8, 4, [
            Round(3, 1 / 4, WITHIN), Round(2, 1 / 8, BETWEEN, 4), Round(3, 1 / 4, WITHIN),
        ]),
        ("broadcast", "two_level", 8, 4, [
            Round(1, 1, BETWEEN, pieces=2), Round(1, 1, WITHIN, pieces=2), Round(2, 1 / 2, WITHIN),
        ]),
        ("all_reduce", "native", 8, 4, [Round(14, 1 / 8, BETWEEN)]),
        ("reduce_scatter", "native", 8, 4, [Round(14, 1 / 8, BETWEEN)]),
        ("broadcast", "native", 16, 4, [Round(2, 1, WITHIN), Round(2, 1, BETWEEN, 4)]),
    ],
)  # fmt: skip
def test_rounds_by_hand(op, algorithm, n, g, expected):
    size = 2 * MIB if op == "broadcast" else MIB
    assert rounds(op, algorithm, n, g, size, MIB) == tuple(expected)


@pytest.mark.parametrize("op", OPS)
def test_two_ranks_send_one_another_all_there_is_to_send(op):
    """So that times of two ranks tell how long one message takes, whatever its size."""
    for algorithm, g in itertools.product((*LEVELS, "native", *TWO_LEVELS), (1, 2)):
        small, large = (rounds(op, algorithm, 2, g, size, MIB) for size in (1000, 64 * MIB))
        assert small is not None
        assert large is not None
        assert [(each.times, each.share) for each in small] == [(each.times, each.share) for each in large]
        assert {each.tier for each in small} == {BETWEEN if g == 1 else WITHIN}


def test_one_rank_sends_nothing_and_unknown_algorithms_have_no_schedule():
    assert rounds("all_reduce", "ring", 1, 8, MIB, MIB) == ()
    for name in ("nccl:ring", "mine:ALGORITHM"):
        assert rounds("all_reduce", name, 4, 2, MIB, MIB) is None
    assert rounds("barrier", "ring", 4, 2, MIB, MIB) is None


def test_a_node_that_is_not_full_and_levels_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="6 ranks do not fill nodes of 4"):
        rounds("all_reduce", "ring", 6, 4, MIB, MIB)
    with pytest.raises(UsageError, match="two_level"):
        rounds("all_reduce", "two_level(ring,star)", 8, 4, MIB, MIB)
    assert rounds("all_reduce", "ring", 4, 8, MIB, MIB) == rounds("all_reduce", "ring", 4, 4, MIB, MIB)


# -- against the formulas, on one tier ---------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("algorithm", LEVELS)
def test_messages_and_bytes_on_one_tier_are_those_of_the_formula(algorithm, op, pieces):
    for n, g in itertools.product((2, 4, 8, 16, 1024), (1, 2048)):
        found = rounds(op, algorithm, n, g, MIB, MIB // pieces)
        (formula,) = terms(op, algorithm, n, MIB, None, MIB // pieces).values()
        assert {each.tier for each in found} == {WITHIN if g > 1 else BETWEEN}
        if (algorithm, op) == ("tree", "all_reduce"):
            continue
        assert sum(each.times * each.pieces for each in found) == pytest.approx(formula.messages)
        assert across(found, found[0].tier) * MIB == pytest.approx(formula.sent)


def test_many_pieces_come_near_to_the_formula_of_two_trees():
    for n in (4, 8, 16, 1024):
        found = rounds("all_reduce", "tree", n, n, MIB, MIB // 1000)
        assert across(found, WITHIN) * MIB == pytest.approx(
            terms("all_reduce", "tree", n, MIB, None, MIB)[NODE].sent, rel=0.05
        )


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_two_trees_of_one_piece_each_take_the_messages_that_are_counted(n):
    found = rounds("all_reduce", "tree", n, n, BYTES, BYTES)
    counted = max(logical_times(sent("all_reduce", "tree", n, None, BYTES), one_port=True).values())
    assert sum(each.times for each in found) == pytest.approx(counted, abs=1)


# -- against the messages, between nodes -------------------------------------------------------------------------


PIPELINED = {("tree", "all_reduce"), ("tree", "broadcast"), ("ring", "broadcast"), ("two_level", "broadcast")}


def piece_of(op: str, algorithm: str) -> int:
    """Small where pieces follow one another, so that the last one, which goes on alone, does not count."""
    return BYTES // 160 if (algorithm, op) in PIPELINED or "tree)" in algorithm else BYTES


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("algorithm", LEVELS)
def test_bytes_between_nodes_are_those_of_the_messages(algorithm, op):
    piece = piece_of(op, algorithm)
    for n, g in SHAPES:
        counted = across(rounds(op, algorithm, n, g, BYTES, piece)) * BYTES
        # What all send to the server comes before what the server sends to all.
        link = link_bytes(
            sent(op, algorithm, n, None, piece), n, g, node=0 if algorithm == "parameter_server" else None
        )
        if (algorithm, op) in PIPELINED:
            assert link * (1 - 1e-9) <= counted <= 1.1 * link
        elif algorithm == "tree" and 1 in {each.flows for each in rounds(op, algorithm, n, g, BYTES, piece)}:
            # Trees that wait for one another leave links idle.
            assert link * (1 - 1e-9) <= counted
        else:
            assert counted == pytest.approx(link)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("algorithm", TWO_LEVELS)
def test_two_levels_send_between_nodes_what_their_outer_part_does(algorithm, op):
    piece = piece_of(op, algorithm)
    for n, g in ((4, 2), (8, 2), (8, 4)):
        counted = across(rounds(op, algorithm, n, g, BYTES, piece)) * BYTES
        link = link_bytes(sent(op, algorithm, n, g, piece), n, g)
        if op in ("all_reduce", "broadcast"):
            assert link * (1 - 1e-9) <= counted <= 1.1 * link
        else:
            # Of more than two nodes a tree for each waits for the others.
            assert counted == pytest.approx(link) or (algorithm.endswith(",tree)") and n // g > 2 and counted > link)


@pytest.mark.parametrize(("n", "g"), [(6, 3), (9, 3), (15, 5), (12, 6), (14, 7), (10, 2), (12, 4)])
def test_a_tree_between_nodes_of_any_size_sends_as_many_bytes(n, g):
    """What goes in many pieces; pieces that are not all the same differ by rounding."""
    piece = BYTES // 50
    stream = [each for each in rounds("all_reduce", "tree", n, g, BYTES, piece) if each.pieces > 1]
    link = link_bytes(sent("all_reduce", "tree", n, None, piece), n, g)
    assert across(tuple(stream)) * BYTES == pytest.approx(link, rel=0.01)


@pytest.mark.parametrize(("n", "g"), [(6, 3), (15, 5), (12, 6), (14, 7), (10, 5), (12, 4)])
def test_trees_of_all_ranks_send_as_many_messages_out_of_a_node_of_any_size(n, g):
    record = sent("reduce_scatter", "tree", n, None, BYTES)
    for node in range(n // g):
        out = [m for m in record.messages if m.src // g == node and m.dst // g != node]
        assert len(out) == messages_out(n, g)


def test_ten_thousand_ranks_are_no_more_rounds_than_a_hundred():
    """Closed forms: the rounds that are written down grow with the logarithm of the ranks."""
    for op, algorithm in itertools.product(OPS, (*LEVELS, "native", *TWO_LEVELS)):
        found = rounds(op, algorithm, 10_000, 8, 100 * MIB, 2 * MIB)
        assert found is not None
        assert len(found) <= 2 * math.ceil(math.log2(10_000))
