"""Sessions on two hosts: every strategy and algorithm is verified, and two_level is fastest over a slow link."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster_helpers import cluster
from command_line import parabench
from nodes_helpers import Nodes
from parabench.strategies import STRATEGIES

HEAD = '"""What runs on two nodes?"""\n\nfrom parabench import Protocol, sweep\n'

SOME = f"""{HEAD}
COMMON = dict(world_size=4, data="synthetic", seq_len=8, model="gpt-nano")
CASES = [
    sweep(strategy="ddp", algorithm="two_level", **COMMON),
    sweep(strategy=("fsdp", "faulty_helpers:observing"), **COMMON),
]
PROTOCOL = Protocol(warmup=2, steps=2, launches=1, instrumented=1)
"""

EVERY = f"""{HEAD}
from parabench.collectives import ON_ANY_BACKEND
from parabench.strategies import STRATEGIES

COMMON = dict(world_size=4, data="synthetic", seq_len=8)
CASES = [
    sweep(strategy=("ddp", "fsdp", "tp"), algorithm=(*ON_ANY_BACKEND, "two_level(tree,ring)"), **COMMON),
    sweep(strategy=[name for name in STRATEGIES if name not in ("dp", "single")], **COMMON),
    sweep(strategy="pp", schedule=("gpipe", "1f1b"), **COMMON),
]
PROTOCOL = Protocol(warmup=2, steps=2, launches=1, instrumented=1)
"""

LINK = f"""{HEAD}
CASES = sweep(
    strategy="ddp", algorithm=("native", "ring", "two_level"), bucket_mib=25, world_size=4, data="synthetic", seq_len=8,
)
PROTOCOL = Protocol(warmup=3, steps=8, launches=5, instrumented=2)
"""

SECRET = "0123456789abcdef-in-no-other-process"


@contextmanager
def session(folder: Path, suite: str, *options: str, rates: Any = None) -> Iterator[Nodes]:
    """Run a session of `suite` on two hosts, which must succeed on both."""
    with cluster(2, rates) as hosts:
        nodes = Nodes(hosts, folder, suite)
        drivers = nodes.all(*options)
        codes = [driver.ends() for driver in drivers]
        assert codes == [0, 0], "\n".join(drivers[0].lines)
        yield nodes


def all_ok(nodes: Nodes) -> Sequence[dict[str, Any]]:
    launches = nodes.launches()
    assert {launch["status"] for launch in launches} == {"ok"}
    return launches


@pytest.fixture(scope="module")
def with_a_secret(tmp_path_factory: pytest.TempPathFactory) -> Nodes:
    """Run a session; node 0 reads the secret from its environment, and node 1 reads it from a file."""
    folder = tmp_path_factory.mktemp("nodes")
    secret = folder / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    with cluster(2) as hosts:
        nodes = Nodes(hosts, folder, SOME)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PARABENCH_SECRET", SECRET)
            zero = nodes.start(0)
        one = nodes.start(1, "--secret-file", str(secret))
        assert [zero.ends(), one.ends()] == [0, 0], "\n".join(zero.lines)
    assert zero.said(r"^node 0 listens on 10\.231\.7\.1 port 29400, .* interface pb0$")
    assert zero.said("^node 0 accepts only messages that are signed with the secret")
    assert zero.said("^warning: c10d has no authentication")
    assert SECRET not in "\n".join(zero.lines + one.lines)
    return nodes


def test_a_session_on_two_hosts_is_verified_and_knows_its_nodes(with_a_secret: Nodes) -> None:
    nodes = with_a_secret
    launches = all_ok(nodes)
    assert len(launches) == 3
    for launch in launches:
        case, facts = json.loads(launch["case_json"]), json.loads(launch["facts"])
        assert (case["nodes"], case["world_size"]) == (2, 4)
        assert [(n["node"], n["host"], n["first_rank"], n["ranks"]) for n in facts["nodes"]] == [
            (0, "h0", 0, 2),
            (1, "h1", 2, 2),
        ]
        # Both hosts are this machine and have the same clock.
        clock = facts["nodes"][1]["clock"]
        assert abs(clock["offset_s"]) <= clock["error_s"]
    two_level = next(each for each in launches if each["algorithm"] == "two_level")
    assert json.loads(two_level["case_json"])["ranks_per_node"] == 2
    environment = json.loads(nodes.rows("SELECT environment FROM session")[0]["environment"])
    assert [each["host"] for each in environment["nodes"]] == ["h0", "h1"]
    assert environment["cluster"] == {"nodes": 2, "ranks_per_node": 2}
    assert {row["node"] for row in nodes.rows("SELECT DISTINCT node FROM host_sample")} == {0, 1}
    ranks = nodes.rows("SELECT DISTINCT rank FROM span ORDER BY rank")
    assert [row["rank"] for row in ranks] == [0, 1, 2, 3]
    assert not nodes.rows("SELECT * FROM finding WHERE code = 'unverified'")
    refused = parabench("run", "--resume", "--out", nodes.out(0))
    assert refused.exit_code == 2
    assert "ran on 2 nodes of 2 ranks, and cannot be resumed on one machine; give --nnodes 2" in refused.stderr


def test_no_rank_and_no_file_has_the_secret_of_a_session(with_a_secret: Nodes) -> None:
    (observing,) = (each for each in with_a_secret.launches() if each["strategy"] == "faulty_helpers:observing")
    seen = json.loads(observing["facts"])["environment"]
    assert "PATH" in seen
    assert "PARABENCH_SECRET" not in seen
    for path in with_a_secret.folder.rglob("*"):
        if path.is_file() and path.name != "secret":
            assert SECRET.encode() not in path.read_bytes(), path


# Half a minute of launches: every strategy, and every algorithm in the three that differ in what travels.
@pytest.mark.slow
def test_strategies_and_algorithms_are_correct_on_two_hosts(tmp_path: Path) -> None:
    with session(tmp_path, EVERY) as nodes:
        launches = all_ok(nodes)
        every = {name for name, entry in STRATEGIES.items() if entry.missing is None} - {"dp", "single"}
        assert {launch["strategy"] for launch in launches} == every
        assert not nodes.rows("SELECT * FROM finding WHERE code = 'unverified'")


@pytest.mark.slow  # fifteen launches over a link of 200 Mbit/s
@pytest.mark.alone
def test_with_a_slow_link_two_levels_are_found_to_be_the_fastest(tmp_path: Path) -> None:
    with session(tmp_path, LINK, "--links", rates="200mbit") as nodes:
        all_ok(nodes)
        said = " ".join(answer(nodes))
        assert said.startswith("Fastest: ddp two_level 25 MiB, 4 ranks on 2 nodes: "), said
        assert "It is faster than the 2 other configurations" in said, said
        assert "across nodes 0.024 GB/s, in a node " in said, said


@pytest.mark.slow
def test_with_a_fast_link_they_are_not(tmp_path: Path) -> None:
    with session(tmp_path, LINK, "--links") as nodes:
        all_ok(nodes)
        said = " ".join(answer(nodes))
        assert "Fastest: ddp two_level" not in said, said


def answer(nodes: Nodes) -> list[str]:
    """Return the last lines of the session: the answer and its notes."""
    from parabench.analysis.ranking.best import closing_lines
    from parabench.analysis.session import session_data
    from parabench.store.results import load

    return closing_lines(session_data(load(nodes.out(0) / "results.db"), "1"))


@pytest.mark.slow  # another session on two hosts
def test_single_operations_run_on_two_hosts(tmp_path: Path) -> None:
    with cluster(2) as hosts:
        nodes = Nodes(hosts, tmp_path, SOME)
        words = "collectives --op all_reduce --algorithm ring,two_level --max 64KiB --launches 1 --iterations 3"
        drivers = nodes.all(command=tuple(words.split()))
        assert [driver.ends() for driver in drivers] == [0, 0], drivers[0].lines
        assert [launch["status"] for launch in nodes.launches()] == ["ok", "ok"]
        wrong = nodes.rows("SELECT sum(n_wrong) AS wrong, count(DISTINCT rank) AS ranks FROM collective")
        assert wrong == [{"wrong": 0, "ranks": 4}]
