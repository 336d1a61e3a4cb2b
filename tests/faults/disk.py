"""The disk is full, fails, or may be written no more; the store is removed, replaced or damaged."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.failing_io import EVER, Failing, calls
from tests.faults.fakes import LAUNCHES
from tests.faults.forked import ForkedTrial, Try, damage, family
from tests.faults.trial import Verdict

NOBODY = 65534
# In so many tries each call of a session fails once in each way.
SHARES = 50

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


def resumed_on_failing_disk(lot: Random) -> Verdict:
    """A session that was killed is resumed, and any call of that fails."""
    with ForkedTrial() as trial:
        _killed(trial, lot.randrange(1, LAUNCHES))
        failing = Failing(lot.choice((errno.ENOSPC, errno.EIO)), lot.randrange(1, 150), EVER, lot.random() < 0.5)
        with trial.told(failing):
            trial.check_statuses(trial.check_end(trial.start("--resume", failing=failing), resume=""))
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


def folder_not_ours(lot: Random) -> Verdict:
    """From some launch on the user may not write into the folder."""
    hold = lot.randrange(LAUNCHES)
    with ForkedTrial(user=NOBODY) as trial, trial.told(f"launch {hold}"):
        driver = trial.start(hold=hold)
        if driver.held():
            trial.results.chmod(0o555)
            driver.go()
        trial.check_statuses(trial.check_end(driver, resume=""))
        trial.results.chmod(0o755)
        trial.check_resumed()
    return trial.verdict


# -- the file itself -----------------------------------------------------------------------------------------------


def _other_store(trial: ForkedTrial) -> Path:
    """The store of another session, in a folder of its own."""
    driver = trial.parabench("run", "mine.py", "--out", "other", "--seed", "7")
    assert driver.wait() == 0
    return trial.folder / "other" / "results.db"


def _remove(store: Path, other: Path, lot: Random) -> None:
    store.unlink()


def _remove_folder(store: Path, other: Path, lot: Random) -> None:
    shutil.rmtree(store.parent)


def _move_over(store: Path, other: Path, lot: Random) -> None:
    other.replace(store)


def _copy_over(store: Path, other: Path, lot: Random) -> None:
    store.write_bytes(other.read_bytes())


def _write_text(store: Path, other: Path, lot: Random) -> None:
    store.write_text("something else\n" * 1000)


def _truncate(store: Path, other: Path, lot: Random) -> None:
    os.truncate(store, lot.choice([0, 1, 100, 4096, lot.randrange(store.stat().st_size)]))


def _flip(store: Path, other: Path, lot: Random) -> None:
    with store.open("r+b") as file:
        at = lot.randrange(store.stat().st_size)
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << lot.randrange(8))]))


CHANGES: dict[str, Callable[[Path, Path, Random], None]] = {
    "removed": _remove,
    "removed with its folder": _remove_folder,
    "replaced by another store": _move_over,
    "overwritten by another store": _copy_over,
    "overwritten by text": _write_text,
    "truncated": _truncate,
}


def _contents(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def changed_meanwhile(change: str) -> Try:
    """A family: the store is changed while a launch runs."""

    def tried(lot: Random) -> Verdict:
        hold = lot.randrange(LAUNCHES)
        with ForkedTrial() as trial, trial.told(f"launch {hold}"):
            other = _other_store(trial)
            driver = trial.start(hold=hold)
            if not driver.held():
                raise AssertionError(trial.said(driver))
            before = trial.rows()
            CHANGES[change](trial.store, other, lot)
            left = _contents(trial.store)
            driver.go()
            trial.check_refused(driver, "results.db")
            if _contents(trial.store) != left:
                trial.verdict.fault("lost", "what had taken the store's place was changed")
            _check_saved(trial, driver, before, moved=not change.startswith(("over", "trunc")))
        return trial.verdict

    return tried


def _check_saved(trial: ForkedTrial, driver: Any, before: list[Any], moved: bool) -> None:
    """What a store held that is elsewhere now was saved, and goes on from there."""
    saved = trial.folder / "results-saved"
    if not moved:
        return
    trial.check_says(driver, "--resume --out results-saved")
    again = trial.parabench("run", "--resume", "--out", "results-saved")
    trial.results = saved
    trial.store = saved / "results.db"
    trial.check_statuses(trial.check_complete(again, again.wait(), before))
    trial.check_sound()


def beside_meanwhile(lot: Random) -> Verdict:
    """The log or the shared memory of the store is removed, or replaced, while a launch runs: nothing is lost."""
    hold, end, how = lot.randrange(LAUNCHES), lot.choice(["-wal", "-shm"]), lot.choice(["removed", "replaced"])
    with ForkedTrial() as trial, trial.told(f"launch {hold}, {end} {how}"):
        driver = trial.start(hold=hold)
        if not driver.held():
            raise AssertionError(trial.said(driver))
        path = Path(f"{trial.store}{end}")
        if how == "replaced":
            (trial.folder / "copy").write_bytes(path.read_bytes())
            (trial.folder / "copy").replace(path)
        else:
            path.unlink()
        driver.go()
        trial.check_statuses(trial.check_end(driver))
        trial.check_refused(driver, f"results.db{end} was {how}")
        trial.check_resumed()
    return trial.verdict


def flipped_meanwhile(lot: Random) -> Verdict:
    """A bit of the store is flipped while a launch runs: the session goes on or ends with a line; where the store is
    damaged then nothing is added to it."""
    hold = lot.randrange(LAUNCHES)
    with ForkedTrial() as trial, trial.told(f"launch {hold}"):
        driver = trial.start(hold=hold)
        if driver.held():
            _flip(trial.store, trial.store, lot)
            driver.go()
        code = driver.wait()
        trial.check_exit(driver, code, 0, 2)
        _check_damaged(trial)
    return trial.verdict


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
        how(trial.store, trial.store, lot)
        _check_damaged(trial)
    return trial.verdict


def beside_between(lot: Random) -> Verdict:
    """A session is killed, and what SQLite left beside its store is removed, damaged, or lies beside another store."""
    how = lot.choice(["removed", "flipped", "other store", "copied"])
    with ForkedTrial() as trial, trial.told(how):
        other = _other_store(trial)
        _killed(trial, lot.randrange(1, LAUNCHES))
        before = trial.verdict and _rows_of_copy(trial)
        beside = [path for end in ("-wal", "-shm") if (path := Path(f"{trial.store}{end}")).exists()]
        if how == "copied":
            # As who knows of no log would: the one file.
            for path in beside:
                path.unlink()
        elif how == "other store":
            other.replace(trial.store)
            reader = trial.parabench("best", "results")
            trial.check_exit(reader, reader.wait(), 0)
            trial.check_sound()
            return trial.verdict
        for path in beside:
            if how == "removed" and lot.random() < 0.7 and path.exists():
                path.unlink()
            elif how == "flipped" and path.exists() and path.stat().st_size:
                _flip(path, path, lot)
        trial.check_resumed()
        if trial.rows()[: len(before)] != before:
            trial.verdict.fault("lost", "launches of before are gone")
    return trial.verdict


def _rows_of_copy(trial: ForkedTrial) -> list[Any]:
    """What is in the store as it is told by SQLite, which is let look at copies of all its files."""
    folder = trial.folder / "look"
    folder.mkdir()
    for path in trial.results.glob("results.db*"):
        shutil.copy(path, folder)
    store, trial.store = trial.store, folder / "results.db"
    try:
        return trial.rows()
    finally:
        trial.store = store


def journal_left(lot: Random) -> Verdict:
    """A session is killed at any call that changes a file, as by a power switch: it is resumed, and can be read."""
    with ForkedTrial() as trial:
        # All fail from there on: nothing of what SQLite would do to tidy up is done.
        failing = Failing(errno.EIO, lot.randrange(1, 200), EVER, torn=True)
        with trial.told(failing):
            trial.start(failing=failing).wait()
            if trial.store.exists() and trial.store.stat().st_size:
                reader = trial.parabench("best", "results")
                trial.check_exit(reader, reader.wait(), 0, 2, 3)
            trial.check_resumed()
    return trial.verdict


TRIES: dict[str, Try] = {
    "each call that changes a file fails": each_call_fails,
    "resumed on a failing disk": resumed_on_failing_disk,
    "file system read-only from a call on": read_only,
    "folder not to be written any more": folder_not_ours,
    **{f"store {change} during a session": changed_meanwhile(change) for change in CHANGES},
    "a bit of the store flipped during a session": flipped_meanwhile,
    "log or shared memory removed during a session": beside_meanwhile,
    "store damaged between sessions": changed_between,
    "log or shared memory damaged between sessions": beside_between,
    "files left as they were at a call": journal_left,
}
FAMILIES = {name: family(name) for name in TRIES}
