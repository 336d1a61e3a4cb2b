"""Processes that do not end when they are asked to, and are nobody's child any more: they end with who started them."""

from __future__ import annotations

import subprocess
import sys

import psutil

from guard import GUARD_S
from parabench.launch.processes import PRELOAD

# A deaf process in a session of its own, whose parent has ended; its number is said when it is deaf.
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


def test_what_a_fork_server_has_forked_ends_with_it() -> None:
    """So does what a rank has left behind, when the driver is killed: the server sees that one's end."""
    code = f"import os, signal, sys, {PRELOAD}\n{DEAF}\nleave()\nleave()\nsys.stdin.read()"
    server = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    left = [psutil.Process(int(server.stdout.readline())) for _ in range(2)]
    server.communicate(timeout=GUARD_S)
    assert psutil.wait_procs(left, timeout=GUARD_S)[1] == []
