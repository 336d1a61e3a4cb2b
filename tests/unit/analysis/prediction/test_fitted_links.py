"""Links from the times of collectives, and the times of collectives over links."""

import pytest

from fake_base import pair_rows
from parabench.analysis.collectives.rounds import BETWEEN, OPS, WITHIN
from parabench.analysis.prediction.links import BEYOND, Link, Links, Row, given_link, links_from_rows
from parabench.errors import UsageError

MIB = 1 << 20
FAST, SLOW = Link(2e-6, 1 / 50e9), Link(20e-6, 1 / 1e9)
OVER = Links({}, {WITHIN: FAST, BETWEEN: SLOW})


@pytest.mark.parametrize(
    ("text", "bytes_per_s", "latency_s"),
    [
        ("25GB/s,20us", 25e9, 20e-6),
        ("200Gbit/s,5 µs", 25e9, 5e-6),
        ("1.5GiB/s,800ns", 1.5 * 2**30, 800e-9),
    ],
)
def test_given_link_reads_latency_and_bandwidth(text: str, bytes_per_s: float, latency_s: float) -> None:
    assert given_link(text) == Link(pytest.approx(latency_s), pytest.approx(1 / bytes_per_s))


@pytest.mark.parametrize(("ranks", "nodes"), [(8, 1), (2, 2), (16, 2)])
@pytest.mark.parametrize(
    ("op", "algorithm"), [*((op, "native") for op in OPS), ("all_gather", "nccl:ring"), ("all_reduce", "nccl:tree")]
)
def test_links_from_rows_reproduce_a_log_of_nccl_tests(op: str, algorithm: str, ranks: int, nodes: int) -> None:
    """All sizes of one number of ranks, as nccl-tests prints them. NCCL's default is assumed to be a ring."""
    truth = Links({}, {WITHIN: FAST, BETWEEN: SLOW}, "nccl")
    rows = [
        Row(op, algorithm, ranks, nodes, size, truth.seconds(op, algorithm, ranks, ranks // nodes, size))
        for size in (1 << power for power in range(10, 28))
    ]
    links = Links(links_from_rows(rows, "nccl"), {}, "nccl")
    for row in rows:
        assert links.seconds(op, algorithm, ranks, ranks // nodes, row.bytes) == pytest.approx(row.seconds, rel=0.05)
    # The link of the slower tier is known, so more ranks can be predicted.
    tier = WITHIN if nodes == 1 else BETWEEN
    expected = {WITHIN: FAST, BETWEEN: SLOW}[tier].byte_s
    assert links.fitted[op, algorithm, tier].byte_s == pytest.approx(expected, rel=0.05)


def test_seconds_by_hand() -> None:
    def took(algorithm: str, ranks_per_node: int, size: int) -> float:
        return OVER.seconds("all_reduce", algorithm, 8, ranks_per_node, size)

    # 14 eighths over the slower link; a part crosses it 4 times.
    assert took("ring", 4, 8_000_000) == pytest.approx(4 * 20e-6 + 14 * 1e6 / 1e9)
    assert took("ring", 1, 8_000_000) == pytest.approx(14 * (20e-6 + 1e6 / 1e9))
    assert took("ring", 8, 8_000_000) == pytest.approx(14 * (2e-6 + 1e6 / 50e9))
    # Inside thrice a quarter, twice; across two messages of an eighth, of four ranks at once.
    expected = 6 * (2e-6 + 2e6 / 50e9) + 2 * (20e-6 + 4e6 / 1e9)
    assert took("two_level", 4, 8_000_000) == pytest.approx(expected)
    # Six workers are elsewhere, and one is here; all in, all out.
    expected = 2 * (2e-6 + 8e6 / 50e9) + 12 * (20e-6 + 8e6 / 1e9)
    assert took("parameter_server", 2, 8_000_000) == pytest.approx(expected)
    # Two groups that send for one node share its card.
    alone, shared = (OVER.seconds("all_reduce", "ring", 2, 1, 10**9, groups) for groups in (1, 2))
    assert shared == pytest.approx(2 * alone, rel=1e-3)


def test_unmeasured_links_are_refused_with_the_command() -> None:
    links = Links(links_from_rows([row for row in pair_rows() if row.nodes == 1], "gloo"), {})
    with pytest.raises(UsageError, match="links between nodes were not measured for ring; measure them: parabench col"):
        links.seconds("all_reduce", "ring", 4, 2, MIB)
    with pytest.raises(UsageError, match="links within a node were not measured for tree"):
        links.seconds("all_reduce", "tree", 4, 4, MIB)
    with pytest.raises(UsageError, match="its schedule is unknown"):
        links.seconds("all_reduce", "nccl:nvls", 4, 4, MIB)


def test_messages_far_beyond_the_measured_ones_are_refused() -> None:
    links = Links(links_from_rows(pair_rows(MIB), "gloo"), {})
    most = BEYOND * MIB
    assert links.seconds("all_gather", "ring", 2, 2, most) > 0
    with pytest.raises(UsageError, match="more than 8 times the largest measured") as raised:
        links.seconds("all_gather", "ring", 2, 2, 2 * most)
    assert "--op all_gather --algorithm ring --world-size 2 --max 32MiB" in str(raised.value)
