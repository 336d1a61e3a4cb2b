"""A process that does not outlive the one which started it. Free of torch."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Make this process die at once when `parent`, which started it, does, even while it is stopped.

    A process whose parent is gone already is somebody else's child by now, perhaps the driver's: it dies here.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
