"""Nodes that cannot join a session end with a remedy, before anything is stored."""

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from parabench.cli import main
from process_helpers import query

SUITE = '''\
"""Which bucket size?"""

from parabench import Protocol, sweep

CASES = sweep(strategy="ddp", bucket_mib=(0.5, 1, 25), world_size=4, data="synthetic", seq_len=8)
PROTOCOL = Protocol(warmup=2, steps=2, launches=1, instrumented=1)
'''

Words = Callable[..., list[str]]


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Words:
    """Return `words(node, *options)`, the command line of a node, for the folder `node0` or `node1`."""
    for name in ("node0", "node1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(SUITE)
    monkeypatch.chdir(tmp_path / "node0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"

    def of(node: int, *options: str) -> list[str]:
        nodes = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-endpoint", endpoint, "--node-rank", str(node)]
        return ["run", "mine.py", *nodes, "--out", "results", *options]

    return of


def here(words: list[str]) -> Result:
    return CliRunner().invoke(main, words)


def assert_nothing_stored(folder: Path) -> None:
    assert query(folder / "results" / "results.db", "SELECT * FROM session") == []


def test_node_0_ends_with_a_remedy_when_a_node_is_missing(words: Words) -> None:
    zero = here(words(0, "--rdzv-timeout", "1"))
    assert zero.exit_code == 2
    assert zero.stderr.startswith("parabench: node 1 did not join within 1 s; start it with the same --rdzv-endpoint ")
    assert_nothing_stored(Path())


def test_node_reports_that_node_0_was_not_reached(words: Words) -> None:
    one = here(words(1, "--rdzv-timeout", "1"))
    assert one.exit_code == 2
    assert re.search(
        r"^parabench: node 0 at 127\.0\.0\.1:\d+ was not reached within 1 s .*Connection refused", one.stderr
    )


def test_run_names_a_port_that_is_in_use(words: Words) -> None:
    given = words(0)
    port = int(given[given.index("--rdzv-endpoint") + 1].partition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        zero = here(given)
    assert zero.exit_code == 2
    assert f"node 0 cannot listen on 127.0.0.1 port {port}: " in zero.stderr
    assert "give another port" in zero.stderr
