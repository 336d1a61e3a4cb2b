"""Stop or kill the driver at any time, also twice in a row and during `--resume`."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import termios
import time
from functools import cache
from random import Random
from threading import Lock

from tests.faults.trial import Trial, Verdict, signals_as_usual

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPED = 130

_measuring = Lock()


@cache
def _session_s() -> float:
    with Trial() as trial:
        began = time.monotonic()
        trial.ended(trial.start())
        return time.monotonic() - began


def moment_s(lot: Random) -> float:
    """Return a random time of a session, in seconds from its start."""
    with _measuring:
        return lot.uniform(0.0, _session_s())


def allowed(told: signal.Signals) -> tuple[int, ...]:
    """Return the allowed exit codes of a driver that receives a signal: because of it, or before it was handled. Until
    Python has started, only the default action of the signal applies.
    """
    return (-told, 0) if told == signal.SIGKILL else (STOPPED, -told, 0)


def told_to_end(lot: Random) -> Verdict:
    """One signal, or the same again and again, then the session is resumed."""
    told = lot.choice([*STOPS, signal.SIGKILL])
    with Trial() as trial:
        driver = trial.start()
        _tell(driver, told, moment_s(lot), lot)
        _check(trial, driver, told)
        trial.check_statuses(trial.resume())
    return trial.verdict


def told_while_resuming(lot: Random) -> Verdict:
    """Stop the resumed session as well, and resume it again."""
    with Trial() as trial:
        for options in ((), ("--resume",)):
            told = lot.choice([*STOPS, signal.SIGKILL])
            if options and not trial.rows():
                options = ()
            driver = trial.start(*options)
            _tell(driver, told, moment_s(lot), lot)
            _check(trial, driver, told)
        trial.check_statuses(trial.resume())
    return trial.verdict


def _tell(driver: subprocess.Popen[bytes], told: signal.Signals, after_s: float, lot: Random) -> None:
    time.sleep(after_s)
    # The terminal's Ctrl-C reaches all processes of the driver's group.
    whole_group = told == signal.SIGINT and lot.random() < 0.5
    for _ in range(lot.choice((1, 1, 2, 20))):
        if driver.poll() is None:
            (os.killpg if whole_group else os.kill)(driver.pid, told)
            time.sleep(lot.uniform(0.0, 0.1))


def _check(trial: Trial, driver: subprocess.Popen[bytes], told: signal.Signals) -> None:
    code = trial.ended(driver)
    trial.check_orphans()
    rows = trial.check_kept(driver)
    trial.check_exit(driver, code, *allowed(told))
    trial.check_statuses(rows)
    if code == STOPPED and rows:
        trial.check_says(driver, f"stopped by {told.name}", "parabench")


def _on_terminal() -> None:
    """Make standard input the terminal that governs this new session, which hears of its end by SIGHUP."""
    signals_as_usual()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def terminal_closed(lot: Random) -> Verdict:
    """The terminal of the driver is closed."""
    with Trial() as trial:
        ours, theirs = pty.openpty()
        driver = trial.start(stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=_on_terminal)
        os.close(theirs)
        time.sleep(moment_s(lot))
        os.close(ours)
        trial.check_exit(driver, trial.ended(driver), STOPPED, -signal.SIGHUP, 0)
        trial.check_orphans()
        trial.check_statuses(trial.rows())
        trial.check_statuses(trial.resume())
    return trial.verdict


def reader_gone(lot: Random) -> Verdict:
    """Close standard output or standard error while the session runs; it must continue to its end."""
    with Trial() as trial:
        which = lot.choice(["stdout", "stderr", "both"])
        pipes = (
            {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if which == "both" else {which: subprocess.PIPE}
        )
        driver = trial.start(**pipes)
        time.sleep(moment_s(lot))
        for each in (driver.stdout, driver.stderr):
            if each is not None:
                each.close()
        trial.check_statuses(trial.check_complete(driver, trial.ended(driver)))
    return trial.verdict


FAMILIES = {
    "driver told to end": told_to_end,
    "driver told to end while resuming": told_while_resuming,
    "terminal closed": terminal_closed,
    "output closed": reader_gone,
}
