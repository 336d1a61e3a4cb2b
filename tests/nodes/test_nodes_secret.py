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
