"""Being asked to stop: one exception for Ctrl-C, SIGTERM and a closed terminal; and to end with one's parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# A rank that seems to hang is asked by it where it stands (`launch.hang`).
HANG_REQUEST = signal.SIGUSR2

# The exit code of a command that was asked to stop.
STOPPED = 130

# How long after it was lost a signal is given again.
AGAIN_S = 0.01

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Interrupted(BaseException):
    """The driver was asked to stop, or that of another node (`where`); when this is raised no rank is left here.

    Like KeyboardInterrupt it is no Exception: whoever catches what a user's code or a library may raise lets it pass.
    """

    def __init__(self, signal_number: int, where: str | None = None) -> None:
        name = signal.Signals(signal_number).name
        super().__init__(name if where is None else f"{name} on {where}")
        self.signal = signal_number


@contextmanager
def stop_signals() -> Iterator[None]:
    """Inside, a stop signal raises Interrupted. From then on more of them are ignored: the process is ending.

    A signal that comes while an object is deleted, or in a callback from C, would be lost there, as Python lets no
    exception out of these: it is given again a moment later.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code is swallowed.__code__:
                # An exception raised in a hook is lost as well.
                give_again(number)
                return
            frame = frame.f_back
        _ignore()
        raise Interrupted(number)

    def give_again(number: int) -> None:
        again.append(threading.Timer(AGAIN_S, os.kill, (os.getpid(), number)))
        again[-1].start()

    def swallowed(ignored: sys.UnraisableHookArgs) -> None:
        if not isinstance(ignored.exc_value, Interrupted):
            hook(ignored)
            return
        for each in before:
            signal.signal(each, stop)
        give_again(ignored.exc_value.signal)

    before, hook = {number: signal.getsignal(number) for number in watched()}, sys.unraisablehook
    again: list[threading.Timer] = []
    for each in before:
        signal.signal(each, stop)
    sys.unraisablehook = swallowed
    try:
        yield
    except Interrupted:
        _ignore()
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
    """The stop signals that mean something here: nohup, for one, has SIGHUP ignored."""
    return [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def _ignore() -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextmanager
def signals_restored() -> Iterator[None]:
    """Put back whatever handlers the block replaces."""
    before = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGQUIT)}
    try:
        yield
    finally:
        _restore(before)


def die_with_parent(parent: int) -> None:
    """Make this process die at once when `parent`, which started it, does, even while it is stopped.

    A process whose parent is gone already is somebody else's child by now, perhaps the driver's: it dies here.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def outlive_parent() -> None:
    """Undo `die_with_parent`: this process ends by itself, and in order."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """What a child of this process leaves behind becomes this process' child, which can then end it."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
