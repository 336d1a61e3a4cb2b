"""On one machine nothing listens beyond loopback: every socket of every process of a run. (test_serve has a server.)"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from listening_helpers import EVERY_S, Place, beyond_this_machine, places, seen
from process_helpers import end

SUITE = '''\
"""What listens?"""

from parabench import Protocol, sweep

COMMON = dict(world_size=2, data="synthetic", seq_len=8, model="gpt-nano")
CASES = [sweep(strategy="ddp", **COMMON), sweep(strategy="fsdp", algorithm="ring", **COMMON)]
PROTOCOL = Protocol(warmup=2, steps=4, launches=2, instrumented=1)
'''


def start(here: Path, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "parabench", *words]
    return subprocess.Popen(
        command, cwd=here, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def over_all(process: subprocess.Popen[str]) -> set[tuple[str, Place]]:
    """What was there at any moment until the process ended."""
    found: set[tuple[str, Place]] = set()
    while process.poll() is None:
        found |= seen(process.pid)
        with suppress(subprocess.TimeoutExpired):
            process.wait(EVERY_S)
    assert process.stdout is not None
    assert process.returncode == 0, process.stdout.read()
    return found


def test_run_listens_only_on_loopback(tmp_path: Path) -> None:
    """Separate launches of each case, and shared launches."""
    (tmp_path / "mine.py").write_text(SUITE)
    process = start(tmp_path, "run", "mine.py", "--out", "out", "--launches", "1", "--rounds", "3")
    try:
        found = over_all(process)
    finally:
        end(process)
    assert beyond_this_machine(found) == set()
    kinds = {(kind, place.kind) for kind, place in found}
    # The check found sockets: gloo's ports and the rendezvous.
    assert ("rank", "tcp") in kinds
    assert {kind for kind, place in found if place.kind != "unix"} == {"rank"}
    assert ("forkserver", "unix") in kinds


@pytest.mark.parametrize(
    ("family", "kind", "address"),
    [
        (socket.AF_INET, socket.SOCK_STREAM, "0.0.0.0"),
        (socket.AF_INET6, socket.SOCK_STREAM, "::"),
        (socket.AF_INET, socket.SOCK_DGRAM, "0.0.0.0"),
        (socket.AF_INET6, socket.SOCK_DGRAM, "::"),
    ],
)
def test_other_listening_sockets_are_detected(family: int, kind: int, address: str) -> None:
    if family == socket.AF_INET6 and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    with socket.socket(family, kind) as one:
        one.bind((address, 0))
        if kind == socket.SOCK_STREAM:
            one.listen()
        mine = Place("tcp" if kind == socket.SOCK_STREAM else "udp", address, one.getsockname()[1])
        assert mine in set(places(os.getpid()))
        assert beyond_this_machine({("test", mine)}) == {("test", mine)}
