"""What forks the ranks is killed: the fork server, or the tracker of what processes share."""

from __future__ import annotations

import signal
import time
from random import Random

import psutil

from tests.faults.drivers import moment_s
from tests.faults.trial import Trial, Verdict

# By what stands in their command lines.
SERVER, TRACKER = "multiprocessing.forkserver", "multiprocessing.resource_tracker"


def server_killed(lot: Random) -> Verdict:
    """The launch of that moment has crashed, its ranks with it; the next one starts another server."""
    return _killed(lot, SERVER, most=1)


def tracker_killed(lot: Random) -> Verdict:
    """Nothing depends on it."""
    return _killed(lot, TRACKER, most=0)


def _killed(lot: Random, name: str, most: int) -> Verdict:
    with Trial() as trial:
        driver = trial.start()
        time.sleep(moment_s(lot))
        for each in _named(driver.pid, name):
            each.send_signal(lot.choice([signal.SIGKILL, signal.SIGSEGV]))
        rows = trial.check_complete(driver, trial.ended(driver))
        # Of a launch that cases share it may be that nobody knows whose turn it was.
        trial.check_statuses(rows, ["crashed"], most=most)
    return trial.verdict


def _named(driver: int, name: str) -> list[psutil.Process]:
    """The child of the driver with that name: ranks are forked from the server and have its name too."""
    try:
        return [each for each in psutil.Process(driver).children() if name in " ".join(each.cmdline())]
    except psutil.Error:  # it has ended
        return []


FAMILIES = {"fork server killed": server_killed, "resource tracker killed": tracker_killed}
