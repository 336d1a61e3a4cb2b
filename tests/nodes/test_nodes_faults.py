"""Faults in sessions on two hosts: they are recorded on every node, and no process is left.

`make faults` ends, kills and stops either node, and cuts the link."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster_helpers import cluster
from nodes_helpers import Nodes, nothing_left
from parabench.cli import main

SUITE = '''\
"""Which bucket size is held up?"""

from parabench import Protocol, sweep

CASES = sweep(strategy="faulty_helpers:held_up", bucket_mib=(0.5, 1, 25), world_size=4, data="synthetic", seq_len=8)
PROTOCOL = Protocol(warmup=2, steps=2, launches=1, instrumented=1)
'''


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with cluster(2) as hosts:
        os.mkfifo(tmp_path / "pipe")
        yield Nodes(hosts, tmp_path, SUITE)


def held_up(nodes: Nodes) -> None:
    """Wait until the second launch is held up, and hold up no further one."""
    assert (nodes.folder / "pipe").read_text() == "held up"
    (nodes.folder / "go").touch()


def statuses(nodes: Nodes) -> list[str]:
    return [launch["status"] for launch in nodes.launches()]


@pytest.mark.slow  # three nodes and two sessions
def test_session_resumes_after_ctrl_c_and_names_a_killed_rank(nodes: Nodes) -> None:
    drivers = nodes.all()
    held_up(nodes)
    with nothing_left(*drivers):
        drivers[1].process.send_signal(signal.SIGINT)
        assert [driver.ends() for driver in drivers] == [130, 130]
    assert statuses(nodes) == ["ok"]
    assert drivers[0].said(r"^stopped by SIGINT on node 1 \(h1\); .* resume with: ")
    assert drivers[1].said("^stopped by SIGINT")
    refused = CliRunner().invoke(main, ["run", "--resume", "--out", str(nodes.out(0))])
    assert refused.exit_code == 2
    assert "ran on 2 nodes of 2 ranks, and cannot be resumed on one machine; give --nnodes 2" in refused.stderr

    (nodes.folder / "go").unlink()
    zero = nodes.start(0, "--resume")
    zero.says("waiting for node 1, 600 s at most")
    one = nodes.start(1, "--resume")
    held_up(nodes)
    os.kill(int((nodes.folder / "rank3").read_text()), signal.SIGKILL)
    assert [zero.ends(), one.ends()] == [1, 1]
    # The launch after it runs.
    assert statuses(nodes) == ["ok", "crashed", "ok"]
    crashed = nodes.launches()[1]
    assert (crashed["failed_rank"], crashed["failed_signal"]) == (3, "SIGKILL")
    assert "on node 1 (h1)" in crashed["error"]
    for driver in (zero, one):
        assert driver.said(r"crashed: rank 3: ended by SIGKILL .* on node 1 \(h1\)"), driver.lines
    assert len(nodes.rows("SELECT * FROM launch WHERE repetition < 0")) == 1
    assert (nodes.out(0) / "report.html").is_file()
    assert not nodes.out(1).exists()
    assert zero.said(r"^node 0 listens on 10\.231\.7\.1 port 29400, .* interface pb0$")
    assert zero.said("^warning: c10d has no authentication")


@pytest.mark.slow  # waits until a node counts as lost, 10 s
def test_without_its_node_a_session_ends_in_order(nodes: Nodes) -> None:
    zero, one = nodes.all("--rdzv-timeout", "3")
    held_up(nodes)
    one.kill()
    assert zero.ends() == 1
    assert statuses(nodes) == ["ok", "crashed"]
    why = "^the session ends here: node 1 did not join within 3 s; .* resume with: parabench run --resume"
    assert re.search(why, zero.lines[-1])
    assert (nodes.out(0) / "report.html").is_file()
