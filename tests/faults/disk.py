"""The disk is full, fails or is read-only, or the database is damaged between sessions."""

from __future__ import annotations

import errno
import os
import shutil
from functools import cache
from pathlib import Path
from random import Random

from tests.faults.failing_io import EVER, Failing, calls
from tests.faults.fakes import LAUNCHES
from tests.faults.forked import ForkedTrial, Try, damage, family
from tests.faults.trial import Verdict

# In this number of tries, each call of a session fails once in each way.
SHARES = int(os.environ.get("PARABENCH_FAULT_SHARES", "50"))

_share = iter(range(10**9))


@cache
def failings(error: int) -> list[Failing]:
    """Each call that a session makes and such an error could strike: alone, with all that follow, and with half of what
    it was to write."""
    with ForkedTrial() as trial:
        trial.start(failing=Failing(error, EVER, EVER)).wait()
        made = calls(trial.folder / "calls")
    if made < 100:
        raise AssertionError(f"a session makes {made} calls")
    return [
        each
        for at in range(1, made + 1)
        for each in (Failing(error, at, at), Failing(error, at, EVER), Failing(error, at, EVER, torn=True))
    ]


def each_call_fails(lot: Random) -> Verdict:
    """One share of all of them, a session for each, which then is resumed."""
    every = [each for error in (errno.ENOSPC, errno.EIO) for each in failings(error)]
    whole = Verdict(tries=0)
    share = next(_share) % SHARES
    for failing in every[share::SHARES]:
        whole.add(_fails(failing))
    whole.tries = 1
    return whole


def _fails(failing: Failing) -> Verdict:
    with ForkedTrial() as trial, trial.told(failing):
        driver = trial.start(failing=failing)
        kept = trial.check_end(driver)
        trial.check_statuses(kept)
        trial.check_resumed()
    return trial.verdict


def read_only(lot: Random) -> Verdict:
    """From some call on the file system is read-only."""
    with ForkedTrial() as trial:
        failing = Failing(errno.EROFS, lot.randrange(1, 200), EVER)
        with trial.told(failing):
            trial.check_statuses(trial.check_end(trial.start(failing=failing)))
            trial.check_resumed()
    return trial.verdict


def _truncate(store: Path, lot: Random) -> None:
    os.truncate(store, lot.choice([0, 1, 100, 4096, lot.randrange(store.stat().st_size)]))


def _flip(store: Path, lot: Random) -> None:
    with store.open("r+b") as file:
        at = lot.randrange(store.stat().st_size)
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << lot.randrange(8))]))


def _write_text(store: Path, lot: Random) -> None:
    store.write_text("something else\n" * 1000)


def _contents(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _killed(trial: ForkedTrial, launch: int) -> None:
    driver = trial.start(hold=launch)
    if not driver.held():
        raise AssertionError(trial.said(driver))
    driver.kill()


def _check_damaged(trial: ForkedTrial) -> None:
    """A store that SQLite finds damaged is refused in a line, resumed or added to, and stays as it is; it is read, or
    refused in a line too."""
    copy = trial.folder / "copy.db"
    shutil.copy(trial.store, copy)
    damaged = damage(copy)
    left = _contents(trial.store)
    for words in (("best", "results"), ("report", "results", "-o", "page.html"), ("history", "results")):
        reader = trial.parabench(*words)
        code = reader.wait()
        trial.check_exit(reader, code, 0, 2, 3)
        if code == 2:
            trial.check_refused(reader)
    if damaged and _contents(trial.store) != left:
        trial.verdict.fault("lost", "reading has changed a damaged store")
    for options in (("--resume",), ()):
        driver = trial.start(*options)
        code = driver.wait()
        if damaged:
            trial.check_refused(driver, "results.db")
            if _contents(trial.store) != left:
                trial.verdict.fault("lost", f"a damaged store was changed ({damaged})")
        else:
            trial.check_exit(driver, code, 0, 1, 2)


def changed_between(lot: Random) -> Verdict:
    """A session is killed, or ends, and before it is resumed or read its store is damaged."""
    how = lot.choice([_truncate, _flip, _flip, _write_text])
    with ForkedTrial() as trial, trial.told(how.__name__):
        if lot.random() < 0.5:
            _killed(trial, lot.randrange(1, LAUNCHES))
        else:
            trial.start().wait()
        how(trial.store, lot)
        _check_damaged(trial)
    return trial.verdict


TRIES: dict[str, Try] = {
    "each call that changes a file fails": each_call_fails,
    "file system read-only from a call on": read_only,
    "store damaged between sessions": changed_between,
}
FAMILIES = {name: family(name) for name in TRIES}
