"""Run a session with a fault, and count the violations: lost launches, processes and files left behind, ..."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any, Self

import psutil

ROOT = Path(__file__).parents[2]
MARK = "PARABENCH_TRIAL"

# Processes that still run after the first time are orphans. A command that hangs is killed after the second time.
ORPHANS_S, GIVE_UP_S = 5.0, 600.0

# A reference, a separate launch for each configuration, and two shared launches.
SUITE = '''\
"""Which bucket size survives?"""

from parabench import Protocol, sweep

CASES = sweep(strategy="tests.faults.subject:subject", algorithm="tests.faults.subject:ring", bucket_mib=(0.5, 1),
              world_size=2, data="synthetic", seq_len=8)
PROTOCOL = Protocol(warmup=2, steps=2, launches=2, rounds=2, instrumented=1)
'''
# The number of launches without the reference, and the steps of a configuration in its separate launch.
LAUNCHES, STEPS = 4, 5

# docs/explanation/reliability.md describes them.
VIOLATIONS = ("lost", "twice", "orphans", "not_resumed", "wrong_status", "wrong_exit", "wrong_words", "files_left")

_measuring = Lock()
_ENDED = re.compile(r"\[\d+/\d+\] (?:repetition \d+(?: of \d+)?, )?(?:(\d+) configurations? interleaved)?")


class CannotTry(Exception):
    """The reason why this machine cannot inject a fault."""


@dataclass
class Verdict:
    """The violations of tries: how many of each kind, and a sentence for each."""

    tries: int = 1
    counts: Counter[str] = field(default_factory=Counter)
    words: list[str] = field(default_factory=list)

    @classmethod
    def sum(cls, verdicts: Iterable[Verdict]) -> Verdict:
        total = cls(tries=0)
        for each in verdicts:
            total.tries += each.tries
            total.counts += each.counts
            total.words += each.words
        return total


Family = Callable[[Random], Verdict]


def attempt(family: Family, random: Random) -> Verdict:
    """Try a family once. Exceptions other than CannotTry are violations too."""
    try:
        return family(random)
    except CannotTry:
        raise
    except Exception:
        return Verdict(counts=Counter(not_resumed=1), words=[f"not_resumed: {traceback.format_exc()}"])


@dataclass(frozen=True, slots=True)
class Row:
    """A launch in the results database."""

    session: int
    case: str
    repetition: int
    status: str
    rank: int | None
    signal: str | None
    error: str | None


class Trial:
    """A folder with a suite, and its sessions. All their processes have a mark in their environment.

    `label` describes the fault in the sentences about violations.
    """

    def __init__(self, label: object = "", suite: str = SUITE) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="fault-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        self.results = self.folder / "results"
        self.store = self.results / "results.db"
        self.verdict = Verdict()
        self.label = label
        self._mark = uuid.uuid4().hex
        self._drivers: list[Any] = []
        (self.folder / "mine.py").write_text(suite)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.processes():
            each.kill()
        self._temporary.cleanup()

    def violation(self, kind: str, what: str) -> None:
        self.verdict.counts[kind] += 1
        self.verdict.words.append(f"{self.label}: {kind}: {what}")

    def command(self, *options: str) -> list[str]:
        return [sys.executable, "-m", "parabench", "run", "mine.py", "--out", "results", *options]

    def start(
        self,
        *options: str,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        **how: Any,
    ) -> subprocess.Popen[bytes]:
        """Start the session, or another `command`, with its output in a file; `how` are further arguments of Popen."""
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        own = {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", MARK: self._mark}
        with (self.folder / f"output{len(self._drivers)}").open("wb") as output:
            given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            driver = subprocess.Popen(
                command or self.command(*options),
                cwd=self.folder,
                env={**os.environ, **own, **(environment or {})},
                start_new_session=True,
                **{"preexec_fn": default_signals, **given, **how},
            )
        self._drivers.append(driver)
        return driver

    def ended(self, driver: subprocess.Popen[bytes]) -> int:
        """Return the exit code of a command, -n for signal n. Kill the command if it does not end."""
        try:
            return driver.wait(GIVE_UP_S)
        except subprocess.TimeoutExpired:
            self.violation("not_resumed", f"no end after {GIVE_UP_S:g} s: {self.output(driver)[-300:]!r}")
            driver.kill()
            return driver.wait()

    def output(self, driver: subprocess.Popen[bytes]) -> str:
        return (self.folder / f"output{self._drivers.index(driver)}").read_text(errors="replace")

    def processes(self) -> list[psutil.Process]:
        """Return all running processes of this trial's sessions, without zombies."""
        found = []
        for each in psutil.process_iter():
            with suppress(psutil.Error):
                if each.environ().get(MARK) == self._mark and each.status() != psutil.STATUS_ZOMBIE:
                    found.append(each)
        return found

    def rows(self) -> list[Row]:
        """Return all stored launches; an empty list without a database."""
        if not self.store.exists() or not self.store.stat().st_size:
            return []
        with closing(sqlite3.connect(self.store)) as db:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'launch'").fetchone():
                return []  # the driver has not created it yet
            columns = "session_id, case_id, repetition, status, failed_rank, failed_signal, error"
            return [Row(*each) for each in db.execute(f"SELECT {columns} FROM launch ORDER BY id")]

    # -- checks

    def check_left_behind(self, resumed: bool = False) -> None:
        """Check that no process and no temporary file is left; kill the processes.

        The next run removes the files of a driver that a signal has killed, so they are checked if it was `resumed`.
        """
        _, alive = psutil.wait_procs(self.processes(), timeout=ORPHANS_S)
        for each in alive:
            with suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                if not _is_ending(each.pid):
                    self.violation("orphans", f"{each.pid} {each.status()} {' '.join(each.cmdline())[:100]}")
                    each.kill()
        for where in {Path("/dev/shm"), Path(tempfile.gettempdir())}:
            for driver in self._drivers:
                if resumed or driver.returncode >= 0:
                    for left in where.glob(f"parabench-run-{driver.pid}-*"):
                        self.violation("files_left", f"{left} of a driver that ended with {driver.returncode}")

    def check_kept(self, driver: subprocess.Popen[bytes]) -> list[Row]:
        """Check that every launch that the driver reported is stored, and return the stored ones."""
        stored = self.rows()
        reported = sum(int(cases or 1) for cases in _ENDED.findall(self.output(driver)))
        counted = sum(row.repetition >= 0 for row in stored)
        if reported > counted:
            self.violation("lost", f"{reported} launches were reported, {counted} are stored")
        return stored

    def check_exit(self, driver: subprocess.Popen[bytes], code: int, *allowed: int) -> None:
        """Check that the exit code is allowed, and that the output has no traceback."""
        output = self.output(driver)
        if code not in allowed:
            self.violation("wrong_exit", f"{code}, not {list(allowed)}: {output[-300:]!r}")
        if "Traceback (most recent call last)" in output:
            self.violation("wrong_words", f"a traceback: {output[-600:]!r}")

    def check_output(self, driver: subprocess.Popen[bytes], *texts: str, last: bool = True) -> None:
        """Check that the output contains the texts; with `last`, in its last two lines."""
        output = self.output(driver)
        output = " ".join(output.strip().splitlines()[-2:]) if last else output
        for each in texts:
            if each not in output:
                self.violation("wrong_words", f"no {each!r} in {output!r}")

    def check_statuses(self, rows: Iterable[Row], allowed: Iterable[str] = (), most: int = 0) -> None:
        """Check that all launches are ok, except at most `most` launches with an `allowed` status."""
        bad = [row for row in rows if row.status != "ok"]
        if len(bad) > most or any(row.status not in set(allowed) for row in bad):
            found = [(row.status, row.repetition, row.error) for row in bad]
            self.violation("wrong_status", f"{found}, where {most} may be one of {sorted(set(allowed))}")

    def resume(self) -> list[Row]:
        """Resume the session, or start it if there is none; check that it completes, and return all its launches."""
        before = self.rows()
        driver = self.start("--resume")
        code = self.ended(driver)
        if code == 2 and "run without --resume" in self.output(driver) and not before:
            driver = self.start()
            code = self.ended(driver)
        return self.check_complete(driver, code, before)

    def check_complete(
        self,
        driver: subprocess.Popen[bytes],
        code: int,
        before: Sequence[Row] = (),
        cases: int = 2,
        repetitions: int = 3,
    ) -> list[Row]:
        """Check that each case is stored once in each repetition, and that the launches of `before` are unchanged."""
        rows = self.rows()
        if rows[: len(before)] != list(before):
            self.violation("lost", f"some of {len(before)} stored launches are gone or changed")
        done = Counter((row.session, row.case, row.repetition) for row in rows if row.status != "interrupted")
        for key, times in done.items():
            # A reference that failed is tried once more.
            if times > 1 and not (key[2] < 0 and any(row.status != "ok" for row in rows if row.case == key[1])):
                self.violation("twice", f"{key} is stored {times} times")
        last = max((row.session for row in rows), default=0)
        found = {(case, repetition) for session, case, repetition in done if session == last and repetition >= 0}
        if len(found) != repetitions * cases:
            output = self.output(driver)[-300:]
            self.violation("not_resumed", f"{len(found)} of {repetitions * cases} launches, {code}: {output!r}")
        bad = [row for row in rows if row.session == last and row.status not in ("ok", "interrupted")]
        self.check_exit(driver, code, 1 if bad else 0)
        if not (self.results / "report.html").exists():
            self.violation("lost", "there is no report")
        self.check_left_behind(resumed=True)
        return rows


def sleep_within(random: Random, session_s: Callable[[], float]) -> None:
    """Sleep for a random part of a session's seconds, which `session_s` measures once."""
    with _measuring:
        whole_s = session_s()
    time.sleep(random.uniform(0.0, whole_s))


def _is_ending(pid: int) -> bool:
    """Return whether a process was killed and only waits for the kernel, which takes time on a busy machine."""
    told = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    pending = int(told["SigPnd"], 16) | int(told["ShdPnd"], 16)
    return "VmSize" not in told or bool(pending >> signal.SIGKILL - 1 & 1)


def default_signals() -> None:
    """Restore the default signal handling: a background job ignores signals, and its children inherit that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
