"""Ends the processes that ranks start and leave behind: by the driver, or by the fork server if the driver was
killed."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import warnings
from collections.abc import Collection

import psutil

from parabench.signals import adopt_orphans

# Killed processes end at once, unless a device or a file system holds them.
GONE_S = 2.0


def left(others: Collection[int] = ()) -> list[psutil.Process]:
    """Return the descendants of this process, without the process ids of `others`."""
    return [child for child in psutil.Process().children(recursive=True) if child.pid not in others]


def end(others: Collection[int] = (), gone_s: float = GONE_S) -> None:
    """Kill all descendants of this process, including those that start meanwhile.

    Args:
        others: Process ids to spare.
        gone_s: The time to wait for killed processes, in seconds.
    """
    ended: set[int] = set()
    while found := [each for each in left(others) if each.pid not in ended]:
        for each in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
        if gone_s:
            psutil.wait_procs(found, timeout=gone_s)
        ended |= {each.pid for each in found}


def end_with_this_process() -> None:
    """Adopt the processes that descendants leave behind, and end all of them when this process ends. Forks of this
    process do not do so."""
    adopt_orphans()
    # The fork server warns when a process ends that it has not forked itself.
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")
    me = os.getpid()
    atexit.register(lambda: end(gone_s=0.0) if os.getpid() == me else None)
