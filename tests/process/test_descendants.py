"""Orphans that ignore SIGTERM end with the process that started them."""

from __future__ import annotations

import subprocess
import sys

import psutil

from guard import GUARD_S
from parabench.launch.processes import PRELOAD

# An orphan in a separate session. It prints its process id once it ignores signals.
DEAF = """
def leave():
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(os.getpid(), flush=True)
    signal.pause()
"""


def test_forked_processes_end_with_the_fork_server() -> None:
    """So does what a rank has left behind, when the driver is killed: the server sees that one's end."""
    code = f"import os, signal, sys, {PRELOAD}\n{DEAF}\nleave()\nleave()\nsys.stdin.read()"
    server = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    left = [psutil.Process(int(server.stdout.readline())) for _ in range(2)]
    server.communicate(timeout=GUARD_S)
    assert psutil.wait_procs(left, timeout=GUARD_S)[1] == []
