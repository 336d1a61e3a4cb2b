"""Ends processes that a test started."""

from __future__ import annotations

import signal
import subprocess

import psutil
from guard import GUARD_S


def signals_as_usual() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def end_all(family: list[psutil.Process]) -> None:
    for each in family:
        if each.is_running():
            each.kill()


def left_of(family: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run when all should have ended; a zombie that nobody reaps (in a container) is none."""
    _, alive = psutil.wait_procs(family, timeout=GUARD_S, callback=None)
    return alive
