"""Run sessions with fake launches in forks of one process that has imported everything: a thousand take minutes.

    python -m tests.faults.forked

starts this process. For each line of input, a family and a seed, it runs a try and prints the verdict as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any

from tests.faults import fakes
from tests.faults.failing_io import Failing
from tests.faults.trial import ROOT, Row, Trial, Verdict

Try = Callable[[Random], Verdict]

_asking = Lock()


def family(name: str) -> Try:
    """The family of that name, whose tries that process makes."""

    def tried(lot: Random) -> Verdict:
        with _asking:
            process = _process()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps([name, lot.getrandbits(64)]) + "\n")
            process.stdin.flush()
            return Verdict(**json.loads(process.stdout.readline()))

    return tried


@cache
def _process() -> subprocess.Popen[str]:
    """It ends with this one, when nothing more can be read."""
    environment = {**os.environ, **Failing().environment(ROOT / "nowhere"), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "tests.faults.forked"]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


class Forked:
    """A command in a fork of this process, with the methods of `Popen` that a trial needs. It stops before launch
    number `hold`; None: it does not stop.
    """

    def __init__(self, words: list[str], trial: ForkedTrial, said: Path, failing: Failing, hold: int | None) -> None:
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

            os._exit(_run(words, trial, said, failing, wait))
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
        """The exit code."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._held)
            os.close(self._go)
        return self._code


def _run(words: list[str], trial: ForkedTrial, said: Path, failing: Failing, before: Callable[[int], None]) -> int:
    handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.chdir(trial.folder)
    os.environ.update(failing.settings(trial.results, trial.folder / "calls"))
    ctypes.CDLL(None).failing_io_reset()
    try:
        return fakes.main(words, before)
    except BaseException:
        traceback.print_exc()
        return 99
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


class ForkedTrial(Trial):
    """A trial whose sessions are forks."""

    def __init__(self) -> None:
        super().__init__()
        self.suite(fakes.SUITE)

    def start(self, *options: str, **how: Any) -> Any:
        return self.parabench("run", "mine.py", "--out", "results", *options, **how)

    def parabench(self, *words: str, failing: Failing | None = None, hold: int | None = None, **_: Any) -> Any:
        """Start any command."""
        said = self.folder / f"said{len(self._drivers)}"
        driver = Forked([*words], self, said, failing or Failing(), hold)
        self._drivers.append(driver.pid)
        return driver

    def check_orphans(self) -> None:
        """They start no processes."""

    check_files = check_orphans

    # -- further checks

    def check_sound(self) -> None:
        if wrong := damage(self.store):
            self.verdict.fault("lost", f"the store is damaged: {wrong}")

    def check_end(self, driver: Any, resume: str = "--resume") -> list[Row]:
        """Check that the command succeeded, or ended with one line that has the cause and the next command. The
        database is valid and has every launch that was reported.
        """
        code = driver.wait()
        self.check_sound()
        kept = self.check_kept(driver)
        self.check_exit(driver, code, 0, 2)
        if code == 2:
            begun = kept and sum(row.repetition >= 0 for row in kept) < fakes.COUNTED
            self.check_refused(driver, *([resume] if begun else []))
        return kept

    def check_refused(self, driver: Any, *words: str) -> None:
        """It ends with 2 and one line, which says what was wrong, and what to do; that has these words."""
        code, lines = driver.wait(), self.said(driver).strip().splitlines()
        self.check_exit(driver, code, 2)
        if not lines or not lines[-1].startswith("parabench: ") or ";" not in lines[-1]:
            self.verdict.fault("wrong_words", f"the last line is {lines[-1:]}")
        if sum(line.startswith("parabench: ") for line in lines) > 1:
            self.verdict.fault("wrong_words", f"several lines: {lines[-3:]}")
        self.check_says(driver, *words)

    def check_resumed(self) -> None:
        """Resume the session, or start it again if nothing was stored; then check that it is complete and valid."""
        self.check_statuses(self.resume())
        self.check_sound()

    @contextmanager
    def told(self, what: Any) -> Iterator[None]:
        """Prefix every error of the repetition with this name."""
        before = len(self.verdict.words)
        yield
        self.verdict.words[before:] = [f"{what}: {each}" for each in self.verdict.words[before:]]


def damage(path: Path) -> str:
    """What SQLite finds wrong with a file; empty where it is well, or not there."""
    if not path.exists() or not path.stat().st_size:
        return ""
    try:
        with closing(sqlite3.connect(path)) as db:
            found = "; ".join(row[0] for row in db.execute("PRAGMA integrity_check(1)"))
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite may quote bytes of the damaged page
        return str(error)
    return "" if found == "ok" else found


def prepare() -> None:
    """Import what sessions need, once, and make up the page, which takes longer than all else."""
    import io
    from contextlib import redirect_stderr, redirect_stdout

    from parabench.report import build

    build.render = lambda *given: "page"
    with ForkedTrial() as trial, redirect_stdout(io.StringIO()) as said, redirect_stderr(said):
        here = Path.cwd()
        os.chdir(trial.folder)
        ended = fakes.main(["run", "mine.py", "--out", "results"])
        again = fakes.main(["best", "results"])
        os.chdir(here)
    if ended or again:
        raise AssertionError(said.getvalue())


def main() -> None:
    from tests.faults import contention, disk

    tries: dict[str, Try] = {**disk.TRIES, **contention.TRIES}
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    prepare()
    for line in sys.stdin:
        name, seed = json.loads(line)
        try:
            verdict = tries[name](Random(seed))
        except Exception:
            verdict = Verdict()
            verdict.fault("not_resumed", traceback.format_exc())
        print(json.dumps(asdict(verdict)), file=answers, flush=True)


if __name__ == "__main__":
    main()
