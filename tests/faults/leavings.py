"""What ranks leave behind, deaf to SIGTERM or in sessions of their own, is gone once the driver is, however it ends."""

from __future__ import annotations

import signal
import time
from random import Random

from tests.faults.drivers import STOPPED
from tests.faults.ranks import DEADLINE, STATUS
from tests.faults.subject import (
    BUILDING,
    CLOSES,
    DAEMONISES,
    GOES_ON,
    HANGS,
    JOINING,
    LEAVINGS,
    LEFT,
    RAISES,
    STEPPING,
    Fault,
)
from tests.faults.trial import GIVE_UP_S, LAUNCHES, Trial, Verdict

PHASES = (JOINING, BUILDING, STEPPING)


def left_by_rank(lot: Random) -> Verdict:
    """A launch ends well, or its rank fails or is killed; processes that it has started are left."""
    kind = lot.choice((GOES_ON, RAISES, "SIGKILL"))
    fault = Fault(
        kind, lot.choice(PHASES), lot.randrange(2), launch=lot.randrange(LAUNCHES), leaves=(lot.choice(LEAVINGS),)
    )
    with Trial() as trial:
        driver = trial.start(*DEADLINE, environment=fault.environment(trial.folder))
        rows = trial.check_complete(driver, trial.ended(driver))
        trial.check_statuses(rows, [STATUS[kind]] if kind in STATUS else [], most=0 if kind == GOES_ON else 1)
        _check_struck(trial)
    trial.verdict.words[:] = [f"{fault}: {each}" for each in trial.verdict.words]
    return trial.verdict


def left_by_driver(lot: Random) -> Verdict:
    """The driver is told to end, or killed, when a rank has left processes and hangs."""
    fault = Fault(
        HANGS, lot.choice(PHASES), lot.randrange(2), launch=lot.randrange(LAUNCHES), leaves=(lot.choice(LEAVINGS),)
    )
    told = lot.choice((signal.SIGTERM, signal.SIGKILL))
    with Trial() as trial:
        driver = trial.start(environment=fault.environment(trial.folder))
        until = time.monotonic() + GIVE_UP_S
        while not (trial.folder / LEFT).exists() and driver.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        driver.send_signal(told)
        code = trial.ended(driver)
        trial.check_orphans()
        trial.check_exit(driver, code, -told if told == signal.SIGKILL else STOPPED)
        trial.check_statuses(trial.check_kept(driver))
        _check_struck(trial)
        trial.check_statuses(trial.resume())
    trial.verdict.words[:] = [f"{told.name}, {fault}: {each}" for each in trial.verdict.words]
    return trial.verdict


def _check_struck(trial: Trial) -> None:
    """The launch of which the lot said came to the phase: else nothing was tried."""
    if not (trial.folder / LEFT).exists():
        trial.verdict.fault("wrong_status", "the fault was never met")


def rank_gone(lot: Random) -> Verdict:
    """A rank goes on as a daemon, or without any descriptor: its launch may fail in any way, and ends."""
    kind = lot.choice((DAEMONISES, CLOSES))
    fault = Fault(kind, lot.choice(PHASES), lot.randrange(2), launch=lot.randrange(LAUNCHES))
    with Trial() as trial:
        driver = trial.start(*DEADLINE, environment=fault.environment(trial.folder))
        rows = trial.check_complete(driver, trial.ended(driver))
        trial.check_statuses(rows, ["crashed", "failed", "hung"], most=1)
    trial.verdict.words[:] = [f"{fault}: {each}" for each in trial.verdict.words]
    return trial.verdict


FAMILIES = {
    "processes left by a rank": left_by_rank,
    "processes left when the driver ends": left_by_driver,
    "rank daemonises or closes its descriptors": rank_gone,
}
