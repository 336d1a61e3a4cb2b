"""Two runs at one folder, commands that read its results while a session writes to them, and no locks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from tests.faults.failing_io import Failing
from tests.faults.fakes import COUNTED, LAUNCHES
from tests.faults.forked import ForkedTrial, Try, family
from tests.faults.trial import Verdict

READERS = (
    ("best", "results"),
    ("report", "results", "-o", "page.html"),
    ("history", "results"),
    ("compare", "other", "results"),
)


@contextmanager
def held(lot: Random, trial: ForkedTrial) -> Iterator[Any]:
    """A session that is suspended before one of its launches during the block, and continues after it."""
    hold = lot.randrange(LAUNCHES)
    with trial.told(f"launch {hold}"):
        driver = trial.start(hold=hold)
        if not driver.held():
            raise AssertionError(trial.said(driver))
        yield driver
        driver.wait()


def _ends_well(trial: ForkedTrial, driver: Any) -> None:
    driver.go()
    trial.check_statuses(trial.check_complete(driver, driver.wait()))
    trial.check_sound()


def two_runs(lot: Random) -> Verdict:
    """Another run, or one that resumes, begins at the same folder: it is refused."""
    with ForkedTrial() as trial, held(lot, trial) as driver:
        other = trial.start(*lot.choice([(), ("--resume",)]))
        trial.check_refused(other, "in use by another run")
        _ends_well(trial, driver)
    return trial.verdict


def two_at_once(lot: Random) -> Verdict:
    """Two, or more, begin at the same moment: one runs at a time, the others are refused."""
    with ForkedTrial() as trial:
        runs = [trial.start() for _ in range(lot.choice([2, 2, 3, 5]))]
        codes = [each.wait() for each in runs]
        for each, code in zip(runs, codes, strict=True):
            if code != 0:
                trial.check_refused(each, "in use by another run")
        if 0 not in codes:
            trial.verdict.fault("wrong_exit", f"none has run: {codes}")
        rows = trial.rows()
        if len([row for row in rows if row.repetition >= 0]) != COUNTED * codes.count(0):
            trial.verdict.fault("lost", f"{len(rows)} launches of {codes.count(0)} sessions")
        trial.check_statuses(rows)
        trial.check_sound()
    return trial.verdict


def reader(lot: Random) -> Verdict:
    """A command reads the store while a session writes to it."""
    words = lot.choice(READERS)
    with ForkedTrial() as trial, trial.told(words[0]):
        if "other" in words:
            trial.parabench("run", "mine.py", "--out", "other").wait()
        with held(lot, trial) as driver:
            before = [trial.parabench(*words) for _ in range(2)]
            codes = [each.wait() for each in before]
            driver.go()
            during = [trial.parabench(*words) for _ in range(2)]
            codes += [each.wait() for each in during]
            for each, code in zip(before + during, codes, strict=True):
                trial.check_exit(each, code, 0, 1, 2, 3)
                if code == 2:
                    trial.check_refused(each)
            trial.check_statuses(trial.check_complete(driver, driver.wait()))
            trial.check_sound()
    return trial.verdict


def no_locks(lot: Random) -> Verdict:
    """Run in a folder whose file system does not support locks."""
    with ForkedTrial() as trial:
        if lot.random() < 0.5:
            trial.start().wait()
        before = trial.rows()
        driver = trial.start(*lot.choice([(), ("--resume",)] if before else [()]), failing=Failing(locks=False))
        trial.check_refused(driver, "cannot be locked")
        if trial.rows() != before:
            trial.verdict.fault("lost", "the store was written to")
        if before:
            reader = trial.parabench("best", "results", failing=Failing(locks=False))
            trial.check_exit(reader, reader.wait(), 0, 2)
    return trial.verdict


TRIES: dict[str, Try] = {
    "a second run at the folder": two_runs,
    "runs at the folder at the same moment": two_at_once,
    "a command reads during a session": reader,
    "a file system without locks": no_locks,
}
FAMILIES = {name: family(name) for name in TRIES}
