"""Two nodes joined by a slow link: real ranks in two network namespaces."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from benchmarks import two_nodes
from benchmarks.slow_link import RANKS_PER_NODE, RankFailed, measure
from benchmarks.two_nodes import Node, NoNodes

pytestmark = pytest.mark.alone

RATE = "1gbit"
# In pieces of their own, and too short for every rank to have a part.
SIZES = (65_540, 4)


def namespaces() -> set[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in listed.stdout.splitlines()}


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    try:
        with two_nodes.two_nodes(RATE) as made:
            yield made
    except NoNodes as why:
        pytest.skip(str(why))
    assert not {node.namespace for node in made} & namespaces()


def test_sums_over_the_link_are_exact_and_two_levels_send_less(nodes: tuple[Node, Node]) -> None:
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


def test_a_rank_that_fails_ends_all_and_leaves_no_namespace(nodes: tuple[Node, Node]) -> None:
    with pytest.raises(RankFailed, match=r"rank . ended with exit code 1"):
        measure(nodes, ("no_such_algorithm",), SIZES, pairs=1)


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(NoNodes, match="two nodes need root"), two_nodes.two_nodes(RATE):
        pass


@pytest.mark.parametrize("missing", ["ip", "tc"])
def test_a_missing_command_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda tool: None if tool == missing else f"/sbin/{tool}")
    with pytest.raises(NoNodes, match=f"need the command {missing}; install iproute2"), two_nodes.two_nodes(RATE):
        pass
