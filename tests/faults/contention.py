"""Two runs at one folder, and others that read, lock or copy its store while a session writes to it."""

from __future__ import annotations

import re
import shutil
import sqlite3
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from random import Random
from typing import Any

from parabench.store import database
from tests.faults.failing_io import Failing
from tests.faults.fakes import COUNTED, LAUNCHES
from tests.faults.forked import ForkedTrial, Try, damage, family
from tests.faults.trial import Verdict

READERS = (
    ("best", "results"),
    ("report", "results", "-o", "page.html"),
    ("history", "results"),
    ("compare", "other", "results"),
)


@contextmanager
def held(lot: Random, trial: ForkedTrial) -> Iterator[Any]:
    """A session that is held up before one of its launches. Within, others do what they do; then it goes on."""
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
        if len([row for row in rows if row.block >= 0]) != COUNTED * codes.count(0):
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


def server(lot: Random) -> Verdict:
    """`serve` shows the store while a session writes to it, and is asked all the time."""
    with ForkedTrial() as trial, held(lot, trial) as driver:
        serve = trial.parabench("serve", "results", "--port", "0")
        try:
            address = _address(trial, serve)
            for _ in range(3):
                _ask(trial, address)
            driver.go()
            for _ in range(10):
                _ask(trial, address)
            trial.check_statuses(trial.check_complete(driver, driver.wait()))
            _ask(trial, address)
            trial.check_sound()
        finally:
            serve.kill()
    return trial.verdict


def _address(trial: ForkedTrial, serve: Any) -> str:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if found := re.search(r"http://\S+", trial.said(serve)):
            return found.group().rstrip("/.,;")
        time.sleep(0.05)
    raise AssertionError(trial.said(serve))


def _ask(trial: ForkedTrial, address: str) -> None:
    with urllib.request.urlopen(f"{address}/", timeout=60) as answer:
        text = answer.read().decode()
    if answer.status != 200 or "Traceback" in text:
        trial.verdict.fault("wrong_words", f"{answer.status}: {text[-300:]}")


def read_transaction(lot: Random) -> Verdict:
    """Somebody reads one moment of the store until after the session's end."""
    with ForkedTrial() as trial, held(lot, trial) as driver:
        with closing(sqlite3.connect(trial.store, isolation_level=None)) as db:
            db.execute("BEGIN")
            seen = db.execute("SELECT count(*) FROM launch").fetchone()
            _ends_well(trial, driver)
            if db.execute("SELECT count(*) FROM launch").fetchone() != seen:
                trial.verdict.fault("lost", "the moment did not last")
        rows = trial.rows()
        _check_again(trial, rows)
    return trial.verdict


def _check_again(trial: ForkedTrial, rows: list[Any]) -> None:
    """Resumed it is as it was, and in one file."""
    again = trial.start("--resume")
    trial.check_complete(again, again.wait(), rows)
    if [path.name for path in trial.results.glob("results.db*")] != ["results.db"]:
        trial.verdict.fault("files_left", f"{sorted(trial.results.iterdir())}")


def locked(how: str) -> Try:
    """A family: somebody has the store locked for a while, or for longer than anybody waits."""

    def tried(lot: Random) -> Verdict:
        patience = database.LOCK_TIMEOUT_S
        forever = lot.random() < 0.5
        if forever:
            database.LOCK_TIMEOUT_S = 1.0
        try:
            with ForkedTrial() as trial, held(lot, trial) as driver:
                with closing(sqlite3.connect(trial.store, isolation_level=None)) as db:
                    db.execute(how)
                    driver.go()
                    if forever:
                        code = driver.wait()
                        trial.check_exit(driver, code, 2)
                        trial.check_refused(driver, "database is locked", "--resume --out results")
                    else:
                        time.sleep(lot.uniform(0.0, 2.0))
                    db.execute("ROLLBACK")
                if not forever:
                    trial.check_statuses(trial.check_complete(driver, driver.wait()))
                trial.check_kept(driver)
                trial.check_sound()
                trial.check_resumed()
        finally:
            database.LOCK_TIMEOUT_S = patience
        return trial.verdict

    return tried


def copied(lot: Random) -> Verdict:
    """The one file is copied amid a session: the copy is whole, and has all that had ended."""
    with ForkedTrial() as trial, held(lot, trial) as driver:
        copy = trial.folder / "copied"
        copy.mkdir()
        shutil.copy(trial.store, copy / "results.db")
        store, trial.store = trial.store, copy / "results.db"
        if wrong := damage(trial.store):
            trial.verdict.fault("lost", f"the copy is damaged: {wrong}")
        trial.check_kept(driver)
        trial.store = store
        again = trial.parabench("run", "--resume", "--out", "copied")
        trial.check_exit(again, again.wait(), 0)
        _ends_well(trial, driver)
    return trial.verdict


def no_locks(lot: Random) -> Verdict:
    """The folder's file system knows no locks."""
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
    "serve during a session": server,
    "a read transaction until after a session": read_transaction,
    "a write lock during a session": locked("BEGIN IMMEDIATE"),
    "an exclusive lock during a session": locked("BEGIN EXCLUSIVE"),
    "the store copied during a session": copied,
    "a file system without locks": no_locks,
}
FAMILIES = {name: family(name) for name in TRIES}
