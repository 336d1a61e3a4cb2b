"""Two runs in one folder, commands that read results while a session writes them, and file systems without locks."""

from random import Random
from typing import Any

from tests.faults.forked import COUNTED, LAUNCHES, Failing, ForkedTrial, family
from tests.faults.trial import Family, Verdict

READERS = (
    ("best", "results"),
    ("report", "results", "-o", "page.html"),
    ("history", "results"),
    ("compare", "other", "results"),
)


def _finish(trial: ForkedTrial, driver: Any) -> None:
    """Let a held session continue, and check that it completes."""
    trial.check_statuses(trial.check_complete(driver, driver.wait()))
    trial.check_valid()


def two_runs(random: Random) -> Verdict:
    """Start or resume another run in the folder of a session: it is refused."""
    hold = random.randrange(LAUNCHES)
    with ForkedTrial(f"launch {hold}") as trial:
        driver = trial.start_held(hold)
        trial.check_refused(trial.start(*random.choice([(), ("--resume",)])), "in use by another run")
        driver.go()
        _finish(trial, driver)
    return trial.verdict


def runs_at_once(random: Random) -> Verdict:
    """Start several runs at the same moment: one runs at a time, the others are refused."""
    with ForkedTrial() as trial:
        runs = [trial.start() for _ in range(random.choice([2, 2, 3, 5]))]
        codes = [each.wait() for each in runs]
        for each, code in zip(runs, codes, strict=True):
            if code != 0:
                trial.check_refused(each, "in use by another run")
        if 0 not in codes:
            trial.violation("wrong_exit", f"no run succeeded: {codes}")
        rows = trial.rows()
        if len([row for row in rows if row.repetition >= 0]) != COUNTED * codes.count(0):
            trial.violation("lost", f"{len(rows)} launches of {codes.count(0)} sessions")
        trial.check_statuses(rows)
        trial.check_valid()
    return trial.verdict


def reader(random: Random) -> Verdict:
    """Run commands that read the database while a session is held, and while it continues."""
    words, hold = random.choice(READERS), random.randrange(LAUNCHES)
    with ForkedTrial(f"{words[0]}, launch {hold}") as trial:
        if "other" in words:
            trial.parabench("run", "mine.py", "--out", "other").wait()
        driver = trial.start_held(hold)
        for each in [trial.parabench(*words) for _ in range(2)]:
            trial.check_read(each, 1)
        driver.go()
        for each in [trial.parabench(*words) for _ in range(2)]:
            trial.check_read(each, 1)
        _finish(trial, driver)
    return trial.verdict


def no_locks(random: Random) -> Verdict:
    """Run in a folder whose file system does not support locks."""
    with ForkedTrial() as trial:
        if random.random() < 0.5:
            trial.start().wait()
        before = trial.rows()
        options = ("--resume",) if before and random.random() < 0.5 else ()
        trial.check_refused(trial.start(*options, failing=Failing(locks=False)), "cannot be locked")
        if trial.rows() != before:
            trial.violation("lost", "the database was changed")
        if before:
            trial.check_read(trial.parabench("best", "results", failing=Failing(locks=False)))
    return trial.verdict


TRIES: dict[str, Family] = {
    "a second run at the folder": two_runs,
    "runs at the folder at the same moment": runs_at_once,
    "a command reads during a session": reader,
    "a file system without locks": no_locks,
}
FAMILIES = {name: family(name) for name in TRIES}
