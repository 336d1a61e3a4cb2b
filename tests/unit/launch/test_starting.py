"""Where the machine gives no process or thread, it is an error of the machine, which names it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from guard import GUARD_S
from parabench.files import own_folder
from parabench.launch import processes


def test_a_fork_server_that_has_ended_has_said_why() -> None:
    log = own_folder() / processes.SERVER_LOG
    log.write_text("Traceback (most recent call last):\n  ...\nBlockingIOError: [Errno 11] no process left\n")
    said = "the fork server, which starts the ranks, has ended: BlockingIOError: [Errno 11] no process left"
    with pytest.raises(OSError, match=f"^{said.replace('[', '.').replace(']', '.')}$"), processes._starting():
        raise EOFError
    log.write_text("UserWarning: of another matter\n")
    with pytest.raises(processes.ServerKilled, match="was killed"), processes._starting():
        raise ConnectionResetError


def test_start_fails_if_the_fork_server_is_killed_as_it_imports(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    start = "from parabench.launch import processes; processes.PRELOAD = 'killed'\n"
    start += "try:\n    processes.start_server()\nexcept processes.ServerKilled:\n    raise SystemExit(2)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", start], env=environment, cwd=tmp_path, timeout=GUARD_S)
    assert done.returncode == 2


def test_a_fork_server_that_is_killed_ends_one_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(config: object, entry: object) -> Callable[..., object]:
        raise EOFError

    monkeypatch.setattr(processes, "start_server", lambda: None)
    monkeypatch.setattr(processes, "elastic_launch", gone)
    (own_folder() / processes.SERVER_LOG).write_text("")
    outcome = processes.run_processes(print, (), size=2, deadline_s=GUARD_S, logs=tmp_path)
    assert (outcome.ok, outcome.hung, outcome.rank, outcome.signal) == (False, False, 0, None)


def test_killed_fork_server_is_replaced(tmp_path: Path) -> None:
    def ends_well() -> bool:
        return processes.run_processes(os.getpid, (), size=1, deadline_s=GUARD_S, logs=tmp_path).ok

    assert ends_well()
    killed = processes._server_pid()
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
    assert [ends_well(), ends_well()] == [True, True]
    assert processes._server_pid() not in (None, killed)
