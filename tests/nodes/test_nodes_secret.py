"""Sessions on two hosts that share a secret, and a third host that does not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.hosts import Host
from cluster_helpers import cluster
from nodes_helpers import PORT, Nodes

SUITE = '''\
"""What does a rank see?"""

from parabench import Protocol, sweep

CASES = sweep(strategy="faulty_helpers:observing", world_size=4, data="synthetic", seq_len=8)
PROTOCOL = Protocol(warmup=2, steps=2, launches=1, instrumented=1)
'''

# A program that opens connections to an address and port, and keeps them.
HOLDING = """
import socket, sys, time
held = []
while len(held) < 100:
    try:
        held.append(socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5.0))
    except OSError:
        time.sleep(0.05)
time.sleep(1e6)
"""

VALUE = "0123456789abcdef-in-no-other-process"


@pytest.fixture
def three(tmp_path: Path) -> Iterator[tuple[Nodes, Host]]:
    """Two nodes, and somebody else in their network."""
    with cluster(3) as (*hosts, stranger):
        yield Nodes(tuple(hosts), tmp_path, SUITE), stranger


def secret_of(nodes: Nodes, value: str = VALUE) -> str:
    path = nodes.folder / f"secret-{len(value)}"
    path.write_text(value)
    path.chmod(0o600)
    return str(path)


def test_a_session_with_a_secret_runs_and_no_rank_has_it(
    three: tuple[Nodes, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node has it in its environment, the other in a file; a stranger holds connections all the time."""
    nodes, stranger = three
    words = [sys.executable, "-c", HOLDING, nodes.hosts[0].address, str(PORT)]
    stranger.start(words, folder=nodes.folder, output=subprocess.DEVNULL, errors=subprocess.DEVNULL)
    monkeypatch.setenv("PARABENCH_SECRET", VALUE)
    zero = nodes.start(0)
    monkeypatch.delenv("PARABENCH_SECRET")
    one = nodes.start(1, "--secret-file", secret_of(nodes))
    assert [zero.ends(), one.ends()] == [0, 0], zero.lines
    assert zero.said("^node 0 takes from other nodes only what is signed with the secret")
    (launch,) = nodes.launches()
    assert launch["status"] == "ok"
    seen = json.loads(launch["facts"])["environment"]
    assert "PATH" in seen
    assert "PARABENCH_SECRET" not in seen
    for path in nodes.folder.rglob("*"):
        if path.is_file() and path.name != f"secret-{len(VALUE)}":
            assert VALUE.encode() not in path.read_bytes(), path
    assert VALUE not in "\n".join(zero.lines + one.lines)


@pytest.mark.slow  # six nodes that join in turns; what is refused, and how, has tests of its own
def test_who_has_another_secret_or_none_is_refused_and_who_has_it_is_not(three: tuple[Nodes, Host]) -> None:
    nodes, _ = three
    zero = nodes.start(0, "--secret-file", secret_of(nodes))
    zero.says("waiting for node 1")
    refused = [nodes.start(1), nodes.start(1, "--secret-file", secret_of(nodes, f"{VALUE}!"))]
    assert [each.ends() for each in refused] == [2, 2]
    for each, said in zip(refused, ("a secret, and this node has none", "another secret than this node"), strict=True):
        assert each.said(
            rf"^parabench: node 0 at 10\.231\.7\.1:29400 has {said}; give all nodes the same --secret-file"
        )
        assert len(each.lines) == 1
    one = nodes.start(1, "--secret-file", secret_of(nodes))
    assert [zero.ends(), one.ends()] == [0, 0], zero.lines
