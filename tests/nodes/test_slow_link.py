"""Two nodes joined by a slow link: real ranks in two network namespaces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.hosts import Host
from benchmarks.slow_link import RANKS_PER_NODE, RankFailed, measure
from cluster_helpers import cluster

pytestmark = pytest.mark.alone

RATE = "1gbit"
# In pieces of their own, and too short for every rank to have a part.
SIZES = (65_540, 4)


@pytest.fixture
def nodes() -> Iterator[tuple[Host, ...]]:
    with cluster(2, RATE) as made:
        yield made


def test_sums_over_the_link_are_exact_and_two_levels_send_less(nodes: tuple[Host, ...]) -> None:
    algorithms = ("two_level", "ring")
    seen = measure(nodes, algorithms, SIZES, pairs=2)
    assert len(seen) == len(nodes) * RANKS_PER_NODE
    for rank in seen:
        for size in rank:
            assert {name: size[name]["wrong"] for name in algorithms} == {"two_level": 0, "ring": 0}
    # One rank's view of its node: what ranks of a node send each other never leaves it.
    size, here = SIZES[0], seen[0][0]
    assert size <= min(here["two_level"]["bytes"]) <= 1.2 * size
    assert 1.5 * size <= min(here["ring"]["bytes"])


def test_a_rank_that_fails_ends_all_and_leaves_nothing(nodes: tuple[Host, ...]) -> None:
    with pytest.raises(RankFailed, match=r"rank . ended with exit code 1"):
        measure(nodes, ("no_such_algorithm",), SIZES, pairs=1)
    assert not any(node.processes() for node in nodes)
