"""The wall clock is stepped by an hour during a session, or all of it is suspended for a while."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import psutil

from tests.faults.drivers import moment_s
from tests.faults.trial import Trial, Verdict

# A module in this folder gives processes a wall clock of their own, which is ahead by what a file says.
STEPPED, CLOCK = Path(__file__).with_name("stepped"), "PARABENCH_FAULT_CLOCK"
HOUR_S = 3600.0

# A session is suspended for so long; no step of one takes an hour, on however busy a machine.
SUSPENDED_S = float(os.environ.get("PARABENCH_FAULT_SUSPENDED_S", "30"))
# Shorter than that, and longer than a launch takes on a machine that others use too.
DEADLINE_S = 25.0

# What answers from a store, and how it may end: well, or without a verdict.
READERS = {
    "best": (["best", "results"], (0, 3)),
    "history": (["history", "results"], (0, 1, 3)),
    "compare": (["compare", "results@1", "results@2"], (0, 1, 3)),
    "report": (["report", "results"], (0,)),
}


def wall_clock_stepped(lot: Random) -> Verdict:
    """Two sessions in one store. In the first the clock goes an hour on or back, several times, at any moment; the
    second is resumed with the clock of this machine. Both are whole, and in the order in which they were begun."""
    with Trial() as trial:
        clock = trial.folder / "clock"
        offset = lot.choice((-HOUR_S, 0.0, HOUR_S))
        _set(clock, offset)
        path = os.pathsep.join([str(STEPPED), trial.environment()["PYTHONPATH"]])
        environment = {"PYTHONPATH": path, CLOCK: str(clock)}
        driver = trial.start(environment=environment)
        steps = [(moment_s(lot), lot.choice((-HOUR_S, HOUR_S))) for _ in range(lot.choice((1, 1, 2, 5)))]
        began = time.monotonic()
        for at, step in sorted(steps):
            with suppress(subprocess.TimeoutExpired):
                driver.wait(max(0.0, began + at - time.monotonic()))
            offset += step
            _set(clock, offset)
        trial.check_statuses(trial.check_complete(driver, trial.ended(driver)))
        _check_times(trial)
        again = trial.start("--label", "again")
        trial.check_statuses(trial.check_complete(again, trial.ended(again)))
        _check_readers(trial)
    trial.verdict.words[:] = [f"steps {steps}: {each}" for each in trial.verdict.words]
    return trial.verdict


def _set(clock: Path, offset: float) -> None:
    part = clock.with_suffix(".part")
    part.write_text(f"{offset:g}")
    part.replace(clock)


def _check_times(trial: Trial) -> None:
    """No time that was measured is less than nothing, or has the hour in it."""
    with closing(sqlite3.connect(trial.store)) as db:
        walls = [wall for (wall,) in db.execute("SELECT wall_s FROM launch")]
        steps = [s for (s,) in db.execute("SELECT value FROM sample WHERE metric = 'step_s' AND value IS NOT NULL")]
        spans = [s for (s,) in db.execute("SELECT end_s - start_s FROM span WHERE end_s IS NOT NULL")]
    if not steps:
        trial.verdict.fault("lost", "no step has a time")
    for what, times in (("launch", walls), ("step", steps), ("span", spans)):
        wrong = [each for each in times if not 0 <= each < HOUR_S / 2]
        if wrong:
            trial.verdict.fault("wrong_status", f"{len(wrong)} times of a {what} cannot be, such as {wrong[0]:g} s")


def _check_readers(trial: Trial) -> None:
    for name, (words, allowed) in READERS.items():
        done = subprocess.run(
            [sys.executable, "-m", "parabench", *words],
            cwd=trial.folder,
            env=trial.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in allowed or "Traceback" in done.stderr:
            trial.verdict.fault("wrong_exit", f"{name}: {done.returncode}: {(done.stdout + done.stderr)[-400:]!r}")


def suspended(lot: Random) -> Verdict:
    """All processes of a session are stopped for a while, at any moment: it goes on then, and a launch is hung only
    where its deadline has passed."""
    options = lot.choice(((), ("--deadline", f"{DEADLINE_S:g}")))
    with Trial() as trial:
        driver = trial.start(*options)
        with suppress(subprocess.TimeoutExpired):
            driver.wait(moment_s(lot))
        stopped = _stop(trial)
        threading.Event().wait(SUSPENDED_S)
        for each in stopped:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGCONT)
        rows = trial.check_complete(driver, trial.ended(driver))
        may_hang = bool(options) and DEADLINE_S < SUSPENDED_S
        trial.check_statuses(rows, ["hung"] if may_hang else [], most=1 if may_hang else 0)
        _check_times(trial)
    trial.verdict.words[:] = [f"options {options}: {each}" for each in trial.verdict.words]
    return trial.verdict


def _stop(trial: Trial) -> list[psutil.Process]:
    """Stop all that run, those too that they start meanwhile."""
    stopped: dict[int, psutil.Process] = {}
    while found := [each for each in trial.processes() if each.pid not in stopped]:
        for each in found:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGSTOP)
            stopped[each.pid] = each
    return list(stopped.values())


FAMILIES = {"wall clock stepped": wall_clock_stepped, "suspended": suspended}
