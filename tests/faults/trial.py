"""A session with a fault, and its result: launches lost or repeated, and processes and files left behind."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

ROOT = Path(__file__).parents[2]
MARK = "PARABENCH_TRIAL"

# Processes that still run after this time are orphans. A command that hangs is killed after the second time.
ORPHANS_S, GIVE_UP_S = 5.0, 600.0

# Each case once by itself, then all of them in turns: 3 launches by itself, one reference, 2 shared ones.
SUITE = '''\
"""Which bucket size survives?"""

from parabench import Protocol, sweep

CASES = sweep(strategy="tests.faults.subject:subject", algorithm="tests.faults.subject:ring", bucket_mib=(0.5, 1),
              world_size=2, data="synthetic", seq_len=8)
PROTOCOL = Protocol(warmup=2, steps=2, launches=2, rounds=2, instrumented=1{more})
'''
# How many launches of several ranks that is, and how many steps each case takes in one that it has for itself.
LAUNCHES, STEPS = 4, 5

_ENDED = re.compile(
    r"\[(\d+)/(\d+)\] (?:repetition \d+(?: of \d+)?, )?(?:(\d+) configurations? interleaved)?", re.MULTILINE
)


class CannotTry(Exception):
    """Why this machine cannot make such a fault."""


@dataclass(slots=True)
class Verdict:
    """How often what must not be was, and in words what it was."""

    tries: int = 1
    lost: int = 0
    twice: int = 0
    orphans: int = 0
    not_resumed: int = 0
    wrong_status: int = 0
    wrong_exit: int = 0
    wrong_words: int = 0
    files_left: int = 0
    words: list[str] = field(default_factory=list)

    def fault(self, kind: str, what: str) -> None:
        setattr(self, kind, getattr(self, kind) + 1)
        self.words.append(f"{kind}: {what}")

    def add(self, other: Verdict) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def counts(self) -> dict[str, int]:
        """By kind, without how many tries there were."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("tries", "words")}

    @property
    def clean(self) -> bool:
        return not any(self.counts.values())


@dataclass(frozen=True, slots=True)
class Row:
    """A launch in the store."""

    session: int
    case: str
    repetition: int
    status: str
    rank: int | None
    signal: str | None
    error: str | None


class Trial:
    """A folder with a suite, and sessions of it. All that they start is found by a mark in its environment."""

    def __init__(self, more: str = "") -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="fault-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        self.results = self.folder / "results"
        self.store = self.results / "results.db"
        self.verdict = Verdict()
        self._mark = uuid.uuid4().hex
        self._drivers: list[int] = []
        self.suite(SUITE.format(more=more))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for each in self.processes():
            each.kill()
        self._temporary.cleanup()

    def suite(self, text: str) -> None:
        (self.folder / "mine.py").write_text(text)

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """What every process of a session has."""
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", MARK: self._mark, **(more or {})}

    def command(self, *options: str) -> list[str]:
        return [sys.executable, "-m", "parabench", "run", "mine.py", "--out", "results", *options]

    def start(
        self,
        *options: str,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        **how: Any,
    ) -> subprocess.Popen[bytes]:
        """Start the session, or another `command`, with its output in a file (`said`); `how` has further arguments of
        Popen.
        """
        number = len(self._drivers)
        with (self.folder / f"said{number}").open("wb") as said:
            given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": subprocess.STDOUT}
            driver = subprocess.Popen(
                command or self.command(*options),
                cwd=self.folder,
                env=self.environment(environment),
                start_new_session=True,
                **{"preexec_fn": signals_as_usual, **given, **how},
            )
        self._drivers.append(driver.pid)
        return driver

    def ended(self, driver: subprocess.Popen[bytes]) -> int:
        """The exit code of what was started, -n of signal n; it is killed where it does not end."""
        try:
            return driver.wait(GIVE_UP_S)
        except subprocess.TimeoutExpired:
            self.verdict.fault("not_resumed", f"no end after {GIVE_UP_S:g} s; said {self.said(driver)[-300:]!r}")
            driver.kill()
            return driver.wait()

    def said(self, driver: subprocess.Popen[bytes]) -> str:
        return (self.folder / f"said{self._drivers.index(driver.pid)}").read_text(errors="replace")

    def processes(self) -> list[psutil.Process]:
        """All that sessions of this trial have started and that runs; zombies do not."""
        found = []
        for each in psutil.process_iter():
            try:
                if each.environ().get(MARK) == self._mark and each.status() != psutil.STATUS_ZOMBIE:
                    found.append(each)
            except psutil.Error:
                continue
        return found

    def rows(self) -> list[Row]:
        """Return all stored launches; none if there is no database."""
        if not self.store.exists() or not self.store.stat().st_size:
            return []
        with closing(sqlite3.connect(self.store)) as db:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'launch'").fetchone():
                return []  # it was not made yet
            columns = "session_id, case_id, repetition, status, failed_rank, failed_signal, error"
            return [Row(*each) for each in db.execute(f"SELECT {columns} FROM launch ORDER BY id")]

    # -- checks

    def check_orphans(self) -> None:
        """Nothing that was started runs; what does is killed."""
        _, alive = psutil.wait_procs(self.processes(), timeout=ORPHANS_S)
        for each in alive:
            with suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                if _is_ending(each.pid):
                    continue
                self.verdict.fault("orphans", f"{each.pid} {each.status()} {' '.join(each.cmdline())[:100]}")
                each.kill()

    def check_kept(self, driver: subprocess.Popen[bytes]) -> list[Row]:
        """Check that every launch that the driver reported is stored, and return the stored ones."""
        stored = self.rows()
        said = sum(int(cases or 1) for _, _, cases in _ENDED.findall(self.said(driver)))
        counted = sum(row.repetition >= 0 for row in stored)
        if said > counted:
            self.verdict.fault("lost", f"{said} launches were said to have ended, {counted} are stored")
        return stored

    def check_exit(self, driver: subprocess.Popen[bytes], code: int, *allowed: int) -> None:
        """Check that the exit code is one of these, and that there is no traceback."""
        said = self.said(driver)
        if code not in allowed:
            self.verdict.fault("wrong_exit", f"{code}, not {list(allowed)}: {said[-300:]!r}")
        if "Traceback (most recent call last)" in said:
            self.verdict.fault("wrong_words", f"a traceback: {said[-600:]!r}")

    def check_says(self, driver: subprocess.Popen[bytes], *words: str) -> None:
        """One of its last lines has these words: the cause, and the command that goes on."""
        last = " ".join(self.said(driver).strip().splitlines()[-2:])
        for each in words:
            if each not in last:
                self.verdict.fault("wrong_words", f"no {each!r} in {last!r}")

    def check_words(self, driver: subprocess.Popen[bytes], *words: str) -> None:
        """Check that the output contains all of these."""
        for each in words:
            if each not in self.said(driver):
                self.verdict.fault("wrong_words", f"no {each!r} in {self.said(driver)!r}")

    def check_statuses(self, rows: Iterable[Row], allowed: Iterable[str] = (), most: int = 0) -> None:
        """Check that all launches are ok, except at most `most` with one of the `allowed` statuses."""
        bad = [row for row in rows if row.status != "ok"]
        if len(bad) > most or any(row.status not in set(allowed) for row in bad):
            found = [(row.status, row.repetition, row.error) for row in bad]
            self.verdict.fault("wrong_status", f"{found}, where {most} may be one of {sorted(set(allowed))}")

    def resume(self, *options: str, environment: Mapping[str, str] | None = None, cases: int = 2) -> list[Row]:
        """Resume the session, or begin it where there is none, and see it complete: nothing of before is changed or run
        again. Returns all its launches."""
        before = self.rows()
        driver = self.start("--resume", *options, environment=environment)
        code = self.ended(driver)
        if code == 2 and "run without --resume" in self.said(driver) and not before:
            driver = self.start(*options, environment=environment)
            code = self.ended(driver)
        return self.check_complete(driver, code, before, cases)

    def check_complete(
        self,
        driver: subprocess.Popen[bytes],
        code: int,
        before: Sequence[Row] = (),
        cases: int = 2,
        repetitions: int = 3,
    ) -> list[Row]:
        """The session is whole: each case once in each repetition, and what was there before is as it was."""
        rows = self.rows()
        if rows[: len(before)] != list(before):
            self.verdict.fault("lost", f"{len(before)} launches were stored, of which some are gone or changed")
        done = Counter((row.session, row.case, row.repetition) for row in rows if row.status != "interrupted")
        for key, times in done.items():
            # A reference that failed is tried once more.
            if times > 1 and not (key[2] < 0 and any(row.status != "ok" for row in rows if row.case == key[1])):
                self.verdict.fault("twice", f"{key} is there {times} times")
        last = max((row.session for row in rows), default=0)
        found = {(case, repetition) for session, case, repetition in done if session == last and repetition >= 0}
        if len(found) != repetitions * cases:
            said = self.said(driver)[-300:]
            self.verdict.fault("not_resumed", f"{len(found)} of {repetitions * cases} launches, {code}: {said!r}")
        bad = [row for row in rows if row.session == last and row.status not in ("ok", "interrupted")]
        self.check_exit(driver, code, 1 if bad else 0)
        if not (self.results / "report.html").exists():
            self.verdict.fault("lost", "there is no report")
        self.check_orphans()
        self.check_files()
        return rows

    def check_files(self) -> None:
        """Nothing that belonged to processes which are gone is left in memory or in temporary folders."""
        for where in {Path("/dev/shm"), Path(tempfile.gettempdir())}:
            for pid in self._drivers:
                for left in where.glob(f"parabench-run-{pid}-*"):
                    self.verdict.fault("files_left", str(left))


def _is_ending(pid: int) -> bool:
    """Return whether a process was killed and only waits for the kernel, which takes time on a busy machine."""
    told = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    pending = int(told["SigPnd"], 16) | int(told["ShdPnd"], 16)
    return "VmSize" not in told or bool(pending >> signal.SIGKILL - 1 & 1)


def signals_as_usual() -> None:
    """Restore the default signal handling: a background job ignores signals, and its children inherit that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
