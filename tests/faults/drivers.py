"""Stop or kill the driver at any time, also twice in a row and during `--resume`."""

import fcntl
import os
import pty
import signal
import subprocess
import termios
import time
from functools import cache
from random import Random

from tests.faults.trial import Trial, Verdict, default_signals, sleep_within

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
STOPPED = 130


@cache
def _session_s() -> float:
    with Trial() as trial:
        began = time.monotonic()
        trial.ended(trial.start())
        return time.monotonic() - began


def wait_random_time(random: Random) -> None:
    """Sleep until a random time within a session that was just started."""
    sleep_within(random, _session_s)


def driver_stopped(random: Random, resumed: bool = False) -> Verdict:
    """Send a signal once or many times, then resume the session. If `resumed`, stop the resumed session as well."""
    with Trial() as trial:
        for options in ((), ("--resume",)) if resumed else ((),):
            number = random.choice(SIGNALS)
            driver = trial.start(*(options if trial.rows() else ()))
            wait_random_time(random)
            _send(driver, number, random)
            code = trial.ended(driver)
            trial.check_left_behind()
            rows = trial.check_kept(driver)
            # Until Python has started, only the default action of the signal applies.
            trial.check_exit(driver, code, *((-number, 0) if number == signal.SIGKILL else (STOPPED, -number, 0)))
            trial.check_statuses(rows)
            if code == STOPPED and rows:
                trial.check_output(driver, f"stopped by {number.name}", "parabench")
        trial.check_statuses(trial.resume())
    return trial.verdict


def _send(driver: subprocess.Popen[bytes], number: signal.Signals, random: Random) -> None:
    # The terminal's Ctrl-C reaches all processes of the driver's group.
    whole_group = number == signal.SIGINT and random.random() < 0.5
    for _ in range(random.choice((1, 1, 2, 20))):
        if driver.poll() is None:
            (os.killpg if whole_group else os.kill)(driver.pid, number)
            time.sleep(random.uniform(0.0, 0.1))


def driver_stopped_while_resuming(random: Random) -> Verdict:
    return driver_stopped(random, resumed=True)


def _on_terminal() -> None:
    """Make standard input the controlling terminal of this new session, which receives SIGHUP when it is closed."""
    default_signals()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def terminal_closed(random: Random) -> Verdict:
    """Close the terminal of the driver, then resume the session."""
    with Trial() as trial:
        ours, theirs = pty.openpty()
        driver = trial.start(stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=_on_terminal)
        os.close(theirs)
        wait_random_time(random)
        os.close(ours)
        trial.check_exit(driver, trial.ended(driver), STOPPED, -signal.SIGHUP, 0)
        trial.check_left_behind()
        trial.check_statuses(trial.rows())
        trial.check_statuses(trial.resume())
    return trial.verdict


def output_closed(random: Random) -> Verdict:
    """Close standard output or standard error while the session runs; it must continue to its end."""
    with Trial() as trial:
        pipes = {name: {name: subprocess.PIPE} for name in ("stdout", "stderr")}
        pipes["both"] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        driver = trial.start(**pipes[random.choice(["stdout", "stderr", "both"])])
        wait_random_time(random)
        for each in (driver.stdout, driver.stderr):
            if each is not None:
                each.close()
        trial.check_statuses(trial.check_complete(driver, trial.ended(driver)))
    return trial.verdict


FAMILIES = {
    "driver told to end": driver_stopped,
    "driver told to end while resuming": driver_stopped_while_resuming,
    "terminal closed": terminal_closed,
    "output closed": output_closed,
}
