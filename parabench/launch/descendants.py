"""What ranks start and leave behind ends with them: by the driver's hand, or where that one was killed, by the fork
server's."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import warnings
from collections.abc import Collection

import psutil

from parabench.signals import adopt_orphans

# Processes that are killed go at once, but where a device or a file system holds them.
GONE_S = 2.0


def left(others: Collection[int] = ()) -> list[psutil.Process]:
    """What this process has started, and what that has, but for the process ids of `others`."""
    return [child for child in psutil.Process().children(recursive=True) if child.pid not in others]


def end(others: Collection[int] = (), gone_s: float = GONE_S) -> None:
    """End all that is left, and what it starts meanwhile; what was killed is waited for so long."""
    ended: set[int] = set()
    while found := [each for each in left(others) if each.pid not in ended]:
        for each in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
        if gone_s:
            psutil.wait_procs(found, timeout=gone_s)
        ended |= {each.pid for each in found}


def end_with_this_process() -> None:
    """From now on what descendants of this process leave behind becomes its child, and when it ends all are ended. What
    it forks does not do so in its turn."""
    adopt_orphans()
    # The fork server has not forked them itself, and says so as they end.
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")
    me = os.getpid()
    atexit.register(lambda: end(gone_s=0.0) if os.getpid() == me else None)
