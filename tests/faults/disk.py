"""The disk is full, fails or is read-only, or the database is damaged between sessions."""

import errno
import os
import shutil
from functools import cache
from pathlib import Path
from random import Random

from tests.faults.forked import EVER, LAUNCHES, Failing, ForkedTrial, damage, family
from tests.faults.trial import Family, Verdict

# In this number of tries, each call of a session fails once in each way.
SHARES = int(os.environ.get("PARABENCH_FAULT_SHARES", "50"))

_share = iter(range(10**9))


@cache
def failings(error: int) -> list[Failing]:
    """Return every failure of a call in a session: only that call, all calls from it on, and torn writes."""
    with ForkedTrial() as trial:
        trial.start(failing=Failing(error, EVER, EVER)).wait()
        calls = int((trial.folder / "calls").read_text())
    if calls < 100:
        raise AssertionError(f"a session makes {calls} calls")
    return [
        each
        for at in range(1, calls + 1)
        for each in (Failing(error, at, at), Failing(error, at, EVER), Failing(error, at, EVER, torn=True))
    ]


def each_call_fails(random: Random) -> Verdict:
    """Run and resume a session for each failing call of one share."""
    every = [each for error in (errno.ENOSPC, errno.EIO) for each in failings(error)]
    share = next(_share) % SHARES
    total = Verdict.sum(_session_with(failing) for failing in every[share::SHARES])
    total.tries = 1
    return total


def _session_with(failing: Failing) -> Verdict:
    with ForkedTrial(failing) as trial:
        trial.check_statuses(trial.check_end(trial.start(failing=failing)))
        trial.check_resumed()
    return trial.verdict


def read_only(random: Random) -> Verdict:
    """Make the file system read-only from a random call on."""
    return _session_with(Failing(errno.EROFS, random.randrange(1, 200), EVER))


def _truncate(store: Path, random: Random) -> None:
    os.truncate(store, random.choice([0, 1, 100, 4096, random.randrange(store.stat().st_size)]))


def _flip(store: Path, random: Random) -> None:
    data = bytearray(store.read_bytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    store.write_bytes(data)


def _write_text(store: Path, random: Random) -> None:
    store.write_text("something else\n" * 1000)


def _contents(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def changed_between(random: Random) -> Verdict:
    """Damage the database of a session that ended or was killed.

    It is then read, resumed and added to. A database that SQLite finds damaged is refused in a line and not changed.
    """
    change = random.choice([_truncate, _flip, _flip, _write_text])
    with ForkedTrial(change.__name__) as trial:
        if random.random() < 0.5:
            trial.start_held(random.randrange(1, LAUNCHES)).kill()
        else:
            trial.start().wait()
        change(trial.store, random)
        # The last connection that closes copies SQLite's log of a killed session into the file, even if it is damaged.
        copy, before = Path(shutil.copy(trial.store, trial.folder / "copy.db")), _contents(trial.store)
        if (log := Path(f"{trial.store}-wal")).exists():
            shutil.copy(log, f"{copy}-wal")
        damaged = damage(copy)
        for words in (("best", "results"), ("report", "results", "-o", "page.html"), ("history", "results")):
            trial.check_read(trial.parabench(*words))
        for options in (("--resume",), ()):
            driver = trial.start(*options)
            code = driver.wait()
            if damaged:
                trial.check_refused(driver, "results.db")
            else:
                trial.check_exit(driver, code, 0, 1, 2)
        if damaged and _contents(trial.store) not in (before, _contents(copy)):
            trial.violation("lost", f"a damaged database was changed ({damaged})")
    return trial.verdict


TRIES: dict[str, Family] = {
    "each call that changes a file fails": each_call_fails,
    "file system read-only from a call on": read_only,
    "store damaged between sessions": changed_between,
}
FAMILIES = {name: family(name) for name in TRIES}
