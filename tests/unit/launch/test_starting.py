"""A fork server that was killed is replaced by the next launch."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from guard import GUARD_S
from parabench.launch import processes


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
