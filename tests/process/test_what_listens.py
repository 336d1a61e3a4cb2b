"""On one machine nothing listens beyond loopback: every socket of every process of a run. (test_serve has a server.)"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from listening_helpers import EVERY_S, Place, beyond_this_machine, seen
from process_helpers import end

SUITE = '''\
"""What listens?"""

from parabench import Protocol, sweep

CASES = sweep(strategy="fsdp", algorithm="ring", world_size=2, data="synthetic", seq_len=8, model="gpt-nano")
PROTOCOL = Protocol(warmup=2, steps=4, launches=1, instrumented=1)
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


@pytest.mark.slow  # test_driver.py looks at one moment of a session
def test_run_listens_only_on_loopback(tmp_path: Path) -> None:
    """A separate launch, and a shared one."""
    (tmp_path / "mine.py").write_text(SUITE)
    process = start(tmp_path, "run", "mine.py", "--out", "out", "--launches", "1", "--rounds", "2")
    try:
        found = over_all(process)
    finally:
        end(process)
    assert beyond_this_machine(found) == set()
    # The check found sockets: gloo's ports and the rendezvous.
    assert {(kind, place.kind) for kind, place in found} == {("rank", "tcp")}
