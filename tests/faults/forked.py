"""Run sessions with fake launches in forks of one process that has imported everything, so a thousand take minutes.

    python -m tests.faults.forked

starts this process. For each line of input, a family and a seed, it runs a try and prints the verdict as JSON. Calls
that change files can fail in a fork (`Failing`); gcc compiles failing_io.c for that.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any

from tests.faults.trial import ROOT, CannotTry, Family, Row, Trial, Verdict, attempt

SUITE = '''\
"""Which bucket size survives?"""

from parabench import Protocol, sweep

CASES = sweep(strategy="ddp", bucket_mib=(0.5, 1), world_size=2)
PROTOCOL = Protocol(warmup=2, steps=2, launches=2, rounds=2, instrumented=1)
'''
# One launch of one device, one per case, and two shared ones. The second number is the launches per case that count.
LAUNCHES, COUNTED = 5, 6

SOURCE = Path(__file__).with_name("failing_io.c")
# More calls than any session makes.
EVER = 10**9

_requests = Lock()


# -- failing calls


@dataclass(frozen=True, slots=True)
class Failing:
    """Calls `first` to `last` (from 1) that change files in a folder fail with `error`. A `torn` write writes half of
    its bytes. With `locks` False, locking a file fails.
    """

    error: int = errno.EIO
    first: int = 0
    last: int = 0
    torn: bool = False
    locks: bool = True

    def __str__(self) -> str:
        if not self.locks:
            return "no locks"
        span = "on" if self.last == EVER else f"to {self.last}"
        return f"{errno.errorcode[self.error]} from call {self.first} {span}{', torn' if self.torn else ''}"

    def start(self, folder: Path) -> None:
        """Let the calls of this process fail that change files in a folder, and count the calls from 1."""
        numbers = (self.first, self.last, self.error, int(self.torn), int(self.locks))
        ctypes.CDLL(None).failing_io_start(os.fsencode(folder.resolve()), *map(ctypes.c_long, numbers))


@cache
def library() -> Path:
    """Compile failing_io.c, and return the library. Raises CannotTry if that is impossible."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise CannotTry("there is no C compiler")
    made = Path(tempfile.mkdtemp(prefix="failing-io-")) / "failing_io.so"
    atexit.register(shutil.rmtree, made.parent, ignore_errors=True)
    command = [compiler, "-Wall", "-O1", "-shared", "-fPIC", "-o", str(made), str(SOURCE), "-ldl"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        raise CannotTry(f"{SOURCE.name} could not be compiled: {built.stderr[-300:]}")
    return made


# -- the process that forks


def family(name: str) -> Family:
    """Return a family whose tries run in the process that forks."""

    def tried(random: Random) -> Verdict:
        with _requests:
            process = _process()
            process.stdin.write(json.dumps([name, random.getrandbits(64)]) + "\n")
            process.stdin.flush()
            told = json.loads(process.stdout.readline())
            return Verdict(**told | {"counts": Counter(told["counts"])})

    return tried


@cache
def _process() -> subprocess.Popen[str]:
    """Start the process. It ends with this one, when its input ends."""
    environment = {**os.environ, "LD_PRELOAD": str(library()), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "tests.faults.forked"]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def main() -> None:
    from tests.faults import contention, disk

    tries = {**disk.TRIES, **contention.TRIES}
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    prepare()
    for line in sys.stdin:
        name, seed = json.loads(line)
        print(json.dumps(vars(attempt(tries[name], Random(seed)))), file=answers, flush=True)


def prepare() -> None:
    """Import everything that sessions need, and replace the page, which takes longer than all else."""
    from parabench.report import build

    build.render = lambda *given: "page"
    with ForkedTrial() as trial, redirect_stdout(io.StringIO()) as output, redirect_stderr(output):
        here = Path.cwd()
        os.chdir(trial.folder)
        codes = [run_command(["run", "mine.py", "--out", "results"]), run_command(["best", "results"])]
        os.chdir(here)
    if any(codes):
        raise AssertionError(output.getvalue())


def run_command(words: Sequence[str], before: Callable[[int], None] = lambda launch: None) -> int:
    """Run a command with fake launches, and return its exit code. Each launch first calls `before` with its number."""
    sys.path.append(str(ROOT / "tests" / "fixtures"))
    from fake_launch import FakeLauncher
    from parabench.cli import main as parabench
    from parabench.cluster.topology import Participants

    fake = FakeLauncher()

    def launch(spec: Any) -> Any:
        before(len(fake.specs))
        return fake(spec)

    Participants.executor = lambda self: launch  # type: ignore[method-assign]
    try:
        parabench([*words], prog_name="parabench")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


# -- trials


class Forked:
    """A command in a fork of this process, with the methods of `Popen` that a trial needs. It stops before launch
    number `hold`; None: it does not stop.
    """

    def __init__(self, words: list[str], trial: ForkedTrial, output: Path, failing: Failing, hold: int | None) -> None:
        self._held, theirs = os.pipe()
        mine, self._go = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self._held)
            os.close(self._go)

            def wait(launch: int) -> None:
                if launch == hold:
                    os.write(theirs, b".")
                    os.read(mine, 1)

            os._exit(_run(words, trial, output, failing, wait))
        os.close(theirs)
        os.close(mine)
        self._code: int | None = None

    def held(self) -> bool:
        """Return whether the command reaches the launch before which it stops."""
        return bool(os.read(self._held, 1))

    def go(self) -> None:
        os.write(self._go, b".")

    def kill(self) -> None:
        os.kill(self.pid, 9)
        self.wait()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._held)
            os.close(self._go)
        return self._code


def _run(words: list[str], trial: ForkedTrial, output: Path, failing: Failing, before: Callable[[int], None]) -> int:
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.chdir(trial.folder)
    failing.start(trial.results)
    try:
        return run_command(words, before)
    except BaseException:
        traceback.print_exc()
        return 99
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        (trial.folder / "calls").write_text(str(ctypes.CDLL(None).failing_io_calls()))


class ForkedTrial(Trial):
    """A trial whose sessions are forks, which start no processes."""

    def __init__(self, label: object = "") -> None:
        super().__init__(label, SUITE)

    def start(self, *options: str, **how: Any) -> Any:
        return self.parabench("run", "mine.py", "--out", "results", *options, **how)

    def parabench(self, *words: str, failing: Failing | None = None, hold: int | None = None, **_: Any) -> Any:
        """Start any command."""
        output = self.folder / f"output{len(self._drivers)}"
        driver = Forked([*words], self, output, failing or Failing(), hold)
        self._drivers.append(driver)
        return driver

    def start_held(self, launch: int) -> Any:
        """Start a session and wait until it is stopped before that launch."""
        driver = self.start(hold=launch)
        if not driver.held():
            raise AssertionError(self.output(driver))
        return driver

    def check_left_behind(self, resumed: bool = False) -> None: ...

    def check_valid(self) -> None:
        """Check that the results database is not damaged."""
        if wrong := damage(self.store):
            self.violation("lost", f"the database is damaged: {wrong}")

    def check_end(self, driver: Any) -> list[Row]:
        """Check that the command succeeded, or ended with one line that has the cause and the next command. The
        database is valid and has every launch that was reported.
        """
        code = driver.wait()
        self.check_valid()
        kept = self.check_kept(driver)
        self.check_exit(driver, code, 0, 2)
        if code == 2:
            begun = kept and sum(row.repetition >= 0 for row in kept) < COUNTED
            self.check_refused(driver, *(["--resume"] if begun else []))
        return kept

    def check_refused(self, driver: Any, *texts: str) -> None:
        """Check for exit code 2 and one line with the cause, the remedy and these texts."""
        code, lines = driver.wait(), self.output(driver).strip().splitlines()
        self.check_exit(driver, code, 2)
        errors = [line for line in lines if line.startswith("parabench: ")]
        if len(errors) != 1 or errors != lines[-1:] or ";" not in errors[0]:
            self.violation("wrong_words", f"the last lines are {lines[-3:]}")
        self.check_output(driver, *texts)

    def check_read(self, driver: Any, *codes: int) -> None:
        """Check that a command which reads the results succeeds, or refuses them in one line."""
        code = driver.wait()
        self.check_exit(driver, code, 0, 2, 3, *codes)
        if code == 2:
            self.check_refused(driver)

    def check_resumed(self) -> None:
        """Resume the session, or start it again if nothing was stored; then check that it is complete and valid."""
        self.check_statuses(self.resume())
        self.check_valid()


def damage(path: Path) -> str:
    """Return the damage that SQLite finds in a file; empty if there is none, or no file."""
    if not path.exists() or not path.stat().st_size:
        return ""
    try:
        with closing(sqlite3.connect(path)) as db:
            found = "; ".join(row[0] for row in db.execute("PRAGMA integrity_check(1)"))
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite may quote bytes of the damaged page
        return str(error)
    return "" if found == "ok" else found


if __name__ == "__main__":
    main()
