"""Collectives among many ranks from what a message takes, and what a message takes from what two ranks took."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from message_logs import BYTES, Line, clocked, sent
from parabench.analysis.prediction.collective_times import BEYOND, Collective, MeasuredTimes
from parabench.analysis.prediction.network import Extrapolated, Link, given_link, measured_link
from parabench.analysis.prediction.schedule import BETWEEN, WITHIN, rounds
from parabench.collectives import LEVELS
from parabench.errors import UsageError
from parabench.plan.collective_case import OPS

MIB = 1 << 20
PIECE = 2 * MIB
SIZES = 2.0 ** np.arange(12, 25)
ALGORITHMS = (*LEVELS, "native", "two_level", "two_level(tree,halving_doubling)", "two_level(ring,parameter_server)")
FAST, SLOW = given_link("50GB/s,2us"), given_link("1GB/s,20us")


def measured(op, algorithm, seconds, sizes=SIZES):
    return MeasuredTimes(Collective(op, algorithm, 2), sizes, np.asarray(seconds, dtype=float), 3)


def taken(op, algorithm, n, g, within=FAST, between=SLOW):
    return Extrapolated(op, algorithm, n, g, {WITHIN: within, BETWEEN: between}, PIECE)


# -- a link that is given ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "bytes_per_s", "latency_s"),
    [
        ("25GB/s,20us", 25e9, 20e-6),
        ("20us, 25 GB/s", 25e9, 20e-6),
        ("200Gbit/s,5 µs", 25e9, 5e-6),
        ("200Gbit/s,5 μs", 25e9, 5e-6),
        ("100Mbit/s,1.5ms", 12.5e6, 1.5e-3),
        ("1.5GiB/s,800ns", 1.5 * 2**30, 800e-9),
        ("1e3MB/s,.5s", 1e9, 0.5),
        ("64KiB/s,1s", 65536, 1),
    ],
)
def test_a_link_is_a_latency_and_a_bandwidth(text, bytes_per_s, latency_s):
    link = given_link(text)
    assert link.seconds(np.array([0.0, 1e6])) == pytest.approx([latency_s, latency_s + 1e6 / bytes_per_s])
    assert (link.least, link.most) == (0, math.inf)


@pytest.mark.parametrize(
    "text",
    [
        "", "25GB/s", "20us", "25GB/s,", "25GB/s,20us,1us", "25GB/s,25GB/s", "20us,20us", "0GB/s,20us", "25GB/s,0us",
        "-1GB/s,20us", "25GB/s,-20us", "nanGB/s,20us", "infGB/s,20us", "1e999GB/s,20us", "25GBps,20us", "25gb/s,20us",
        "25GB/s,20min", "25,20", "25 GB/s 20 us", "fast,near",
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_what_to_write(text):
    with pytest.raises(UsageError) as raised:
        given_link(text)
    assert str(raised.value).startswith(f"link {text!r} is not a bandwidth and a latency")
    assert "write it as 25GB/s,20us" in str(raised.value)


# -- a link that was measured ------------------------------------------------------------------------------------


def test_a_ring_of_two_sends_half_twice():
    times = measured("all_reduce", "ring", 1e-4 + SIZES**0.9 * 1e-9)
    link = measured_link(times, WITHIN, PIECE)
    assert link.seconds(SIZES / 2) == pytest.approx(times.seconds / 2)
    assert (link.least, link.most) == (SIZES[0] / 2, SIZES[-1] / 2 * BEYOND)
    assert np.isinf(link.seconds(np.array([link.most * 1.01])))[0]
    assert link.seconds(np.array([1.0])) == pytest.approx(times.seconds[0] / 2)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("op", OPS)
def test_two_ranks_of_a_straight_line_give_the_line_of_a_message(op, algorithm):
    truth = given_link("2GB/s,30us")
    for tier, g in ((WITHIN, 2), (BETWEEN, 1)):
        found = rounds(op, algorithm, 2, g, MIB, PIECE)
        times = measured(op, algorithm, sum(each.times * truth.seconds(each.share * SIZES) for each in found))
        link = measured_link(times, tier, PIECE)
        at = SIZES * (link.least / SIZES[0])
        assert link.seconds(at) == pytest.approx(truth.seconds(at))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("op", OPS)
def test_two_ranks_take_what_they_took(op, algorithm):
    """To rounding where all messages are alike, and near to it where a server sends more than it is sent."""
    times = measured(op, algorithm, 3e-5 + SIZES**0.95 * 1e-9)
    for g in (1, 2):
        link = measured_link(times, WITHIN if g == 2 else BETWEEN, PIECE)
        alike = len({each.share for each in rounds(op, algorithm, 2, g, MIB, PIECE)}) == 1
        inner = SIZES[2:]
        took = taken(op, algorithm, 2, g, link, link)(inner)
        assert took == pytest.approx(times(inner), rel=1e-12 if alike else 0.02)


def test_only_two_ranks_tell_of_a_message_and_only_of_what_has_a_schedule():
    times = MeasuredTimes(Collective("all_reduce", "ring", 4), SIZES, SIZES * 1e-9, 3)
    with pytest.raises(ValueError, match="all_reduce ring among 4 ranks: only 2 ranks"):
        measured_link(times, WITHIN, PIECE)
    assert measured_link(measured("all_reduce", "nccl:ring", SIZES * 1e-9), WITHIN, PIECE) is None


# -- against messages that share links ---------------------------------------------------------------------------

# Latency counts, or bytes, or both; nodes near one another, or not.
TIERS: list[tuple[Line, Line]] = [
    ((2e-6, 1e-9), (2e-6, 1e-9)), ((2e-6, 1e-9), (20e-6, 1e-9)), ((0, 1e-9), (0, 1e-8)), ((2e-6, 1e-9), (20e-6, 1e-8)),
]  # fmt: skip
# How many times as long as the messages a call is said to take, at most, over all shapes and tiers here.
NEAR = {
    "ring": 1.15, "tree": 1.5, "halving_doubling": 1.15, "parameter_server": 1.5, "two_level": 1.2,
    "two_level(tree,halving_doubling)": 1.2,
}  # fmt: skip


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("algorithm", NEAR)
def test_seconds_are_near_those_of_messages_that_share_links(algorithm, op):
    def line(latency, a_byte):
        return Link(lambda sizes: latency + sizes * a_byte)

    found = {}
    for (n, g), (within, between) in itertools.product(((4, 1), (4, 2), (8, 2), (8, 4), (8, 8)), TIERS):
        links = {WITHIN: line(*within), BETWEEN: line(*between)}
        (took,) = Extrapolated(op, algorithm, n, g, links, BYTES)(np.array([float(BYTES)]))
        record = sent(op, algorithm, n, g if "two" in algorithm else None, BYTES)
        found[n, g, within, between] = took / clocked(record, g, within, between)
    # Where parts go on all trees at once, they wait for one another longer than `cost_formula` has it.
    least = 0.45 if "tree" in algorithm and op != "broadcast" and (algorithm, op) != ("tree", "all_reduce") else 0.999
    assert {key: ratio for key, ratio in found.items() if not least <= ratio <= NEAR[algorithm]} == {}


# -- many ranks --------------------------------------------------------------------------------------------------


def test_seconds_by_hand():
    size = np.array([8e6])
    # 14 eighths over the slower link; a part goes over it 4 times, and 10 times within a node.
    assert taken("all_reduce", "ring", 8, 4)(size) == pytest.approx([4 * 20e-6 + 14 * 1e6 / 1e9])
    expected = 4 * (20e-6 + 1000 / 1e9) + 10 * (2e-6 + 1000 / 50e9)
    assert taken("all_reduce", "ring", 8, 4)(size / 1000) == pytest.approx([expected])
    assert taken("all_reduce", "ring", 8, 1)(size) == pytest.approx([14 * (20e-6 + 1e6 / 1e9)])
    assert taken("all_reduce", "ring", 8, 8)(size) == pytest.approx([14 * (2e-6 + 1e6 / 50e9)])
    # Inside thrice a quarter, twice; across two messages of an eighth, of four ranks at once.
    expected = 6 * (2e-6 + 2e6 / 50e9) + 2 * (20e-6 + 4e6 / 1e9)
    assert taken("all_reduce", "two_level", 8, 4)(size) == pytest.approx([expected])
    # Six workers are elsewhere, and one is here; all in, all out.
    expected = 2 * (2e-6 + 8e6 / 50e9) + 12 * (20e-6 + 8e6 / 1e9)
    assert taken("all_reduce", "parameter_server", 8, 2)(size) == pytest.approx([expected])


def test_sizes_that_are_cut_into_more_pieces_are_reckoned_apart():
    collective = taken("broadcast", "tree", 64, 4)
    sizes = np.array([5 * PIECE, 1000.0, PIECE, PIECE + 1.0, 5 * PIECE])
    one_by_one = [collective(np.array([size]))[0] for size in sizes]
    assert collective(sizes).tolist() == one_by_one
    # Twice all of it between nodes from rank to rank; five hops between and four within take a piece.
    expected = 2 * (20e-6 + 5 * PIECE / 1e9) + 7 * (20e-6 + PIECE / 1e9) + 2 * (2e-6 + PIECE / 50e9)
    assert one_by_one[0] == pytest.approx(expected)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_more_bytes_and_slower_links_take_longer_and_one_rank_takes_nothing(algorithm):
    sizes = np.array([1e3, 1e5, 1e7, 1e9])
    for op, (n, g) in itertools.product(OPS, [(2, 1), (3, 1), (6, 3), (12, 4), (64, 8), (10_000, 8)]):
        took = taken(op, algorithm, n, g)(sizes)
        assert (np.diff(took) > 0).all()
        assert (took > taken(op, algorithm, n, g, between=FAST)(sizes)).all()
    assert taken("all_reduce", algorithm, 1, 8)(sizes).tolist() == [0] * 4


def test_messages_beyond_what_was_measured_are_told():
    link = measured_link(measured("all_reduce", "ring", SIZES * 1e-9 + 1e-5), BETWEEN, PIECE)
    collective = taken("all_reduce", "ring", 1024, 8, between=link)
    assert collective.beyond(64 * MIB) == {}
    # One part of a thousand, and what crosses for each time that it does.
    assert collective.beyond(MIB) == {BETWEEN: (1024.0, pytest.approx(8 * 1024, rel=0.01))}
    too_large = 256 * link.most
    assert np.isinf(collective(np.array([too_large / 4, too_large]))).tolist() == [False, True]
    assert set(collective.beyond(int(too_large))) == {BETWEEN}


def test_what_is_lacking_is_named():
    sizes = np.array([1e6])
    with pytest.raises(ValueError, match="all_reduce ring also goes between nodes"):
        Extrapolated("all_reduce", "ring", 4, 2, {WITHIN: FAST}, PIECE)(sizes)
    with pytest.raises(ValueError, match="all_reduce nccl:ring has no schedule"):
        taken("all_reduce", "nccl:ring", 4, 2)(sizes)
    assert isinstance(FAST, Link)
