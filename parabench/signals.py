"""Raise one exception for all stop requests (Ctrl-C, SIGTERM, a closed terminal); end processes with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# A rank that seems to hang receives it, and reports its position (`launch.hang`).
HANG_REQUEST = signal.SIGUSR2

# The exit code of a command that was stopped.
STOPPED = 130

# A signal whose exception was lost is sent again after this time.
AGAIN_S = 0.01

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Interrupted(BaseException):
    """A stop request for this driver, or for the driver of another node (`where`). No rank is running here any more.

    Like KeyboardInterrupt, it is not an Exception, so that code that catches errors does not catch it.
    """

    def __init__(self, signal_number: int, where: str | None = None) -> None:
        name = signal.Signals(signal_number).name
        super().__init__(name if where is None else f"{name} on {where}")
        self.signal = signal_number


@contextmanager
def stop_signals() -> Iterator[None]:
    """Let the first stop signal in the block raise Interrupted. Later ones are ignored, because the process is ending.

    Python drops an exception that is raised in a destructor or in a callback from C. Then the signal is sent again.
    """
    before, hook = {number: signal.getsignal(number) for number in watched()}, sys.unraisablehook
    again: list[threading.Timer] = []

    def stop(number: int, frame: FrameType | None) -> None:
        _restore(dict.fromkeys(STOP_SIGNALS, signal.SIG_IGN))
        raise Interrupted(number)

    def dropped(unraisable: sys.UnraisableHookArgs) -> None:
        lost = unraisable.exc_value
        if not isinstance(lost, Interrupted):
            try:
                hook(unraisable)
                return
            except Interrupted as error:
                lost = error
        again.append(threading.Timer(AGAIN_S, os.kill, (os.getpid(), lost.signal)))
        again[-1].start()
        _restore(dict.fromkeys(before, stop))

    _restore(dict.fromkeys(before, stop))
    sys.unraisablehook = dropped
    try:
        yield
    except Interrupted:
        _restore(dict.fromkeys(STOP_SIGNALS, signal.SIG_IGN))
        for timer in again:
            timer.cancel()
        raise
    except BaseException:
        _restore(before)
        raise
    finally:
        sys.unraisablehook = hook
    _restore(before)


def watched() -> list[signal.Signals]:
    """Return the stop signals that are not ignored; nohup, for example, ignores SIGHUP."""
    return [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def signals_restored() -> Iterator[None]:
    """Restore the signal handlers that the block replaces."""
    before = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGQUIT)}
    try:
        yield
    finally:
        _restore(before)


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, even if it is stopped; now if the parent has ended.

    `parent` is the process id of the expected parent.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def outlive_parent() -> None:
    """Undo `die_with_parent`: this process keeps running when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Let orphaned descendants of this process become its children."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
