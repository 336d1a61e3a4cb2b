"""Of a session with made-up launches every call that changes a file fails in turn, and then it is resumed.

    python -m tests.faults.every_call [--share 1/50]

Sessions are forks of one process that has imported all: a thousand of them take minutes. The page is made up too.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import os
import sqlite3
import sys
import traceback
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.faults import fakes
from tests.faults.failing_io import EVER, Failing, calls
from tests.faults.trial import Row, Verdict

MODES = ("once", "from then on", "torn")
ERRORS = (errno.ENOSPC, errno.EIO)


class Forked:
    """A session in a fork of this process; of a `Popen` it has what a trial asks for."""

    def __init__(self, words: list[str], folder: Path, said: Path, settings: dict[str, str]) -> None:
        self.pid = os.fork()
        if not self.pid:
            os._exit(_run(words, folder, said, settings))

    def wait(self, timeout: float | None = None) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _run(words: list[str], folder: Path, said: Path, settings: dict[str, str]) -> int:
    handle = os.open(said, os.O_WRONLY | os.O_CREAT)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.chdir(folder)
    os.environ.update(settings)
    ctypes.CDLL(None).failing_io_reset()
    try:
        fakes.main(words)
        return 0
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 99
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


class ForkedTrial(fakes.FakesTrial):
    """A trial whose sessions are forks."""

    def parabench(self, *words: str) -> list[str]:
        return [*words]

    def start(self, *options: str, environment: Any = None, command: Any = None, **how: Any) -> Any:
        said = self.folder / f"said{len(self._drivers)}"
        said.touch()
        given = environment or Failing().settings(self.results)
        driver = Forked(list(command or self.command(*options)), self.folder, said, given)
        self._drivers.append(driver.pid)
        return driver

    def check_orphans(self) -> None:
        """They start no processes."""

    check_files = check_orphans


def sound(path: Path) -> str:
    """What SQLite finds wrong with a file; empty where it is well, or not there."""
    if not path.exists() or not path.stat().st_size:
        return ""
    try:
        with closing(sqlite3.connect(path)) as db:
            found = "; ".join(row[0] for row in db.execute("PRAGMA integrity_check"))
    except sqlite3.Error as error:
        return str(error)
    return "" if found == "ok" else found


def check_after(trial: fakes.FakesTrial, driver: Any, code: int, resume: str = "--resume") -> list[Row]:
    """It went on, or ended in one line with its cause and the command that goes on; the store is well, and what was
    said to be recorded is there."""
    if wrong := sound(trial.store):
        trial.verdict.fault("lost", f"the store is damaged: {wrong}")
    kept = trial.check_kept(driver)
    trial.check_exit(driver, code, 0, 2)
    if code == 2:
        check_line(trial, driver, *([resume] if kept and len(done(kept)) < 6 else []))
    return kept


def done(rows: list[Row]) -> list[Row]:
    """Of launches those that count."""
    return [row for row in rows if row.block >= 0]


def check_line(trial: fakes.FakesTrial, driver: Any, *words: str) -> None:
    """The last line says what was wrong, and what to do."""
    lines = trial.said(driver).strip().splitlines()
    if not lines or not lines[-1].startswith("parabench: ") or ";" not in lines[-1]:
        trial.verdict.fault("wrong_words", f"the last line is {lines[-1:]}")
    if sum(line.startswith("parabench: ") for line in lines) > 1:
        trial.verdict.fault("wrong_words", f"several lines: {lines[-3:]}")
    trial.check_says(driver, *words)


def one(failing: Failing) -> Verdict:
    """A session in which these fail, and then its resumption."""
    with ForkedTrial() as trial:
        driver = trial.start(environment=failing.settings(trial.results))
        kept = check_after(trial, driver, driver.wait())
        trial.check_statuses(kept)
        trial.check_statuses(trial.resume())
        if wrong := sound(trial.store):
            trial.verdict.fault("lost", f"resumed, the store is damaged: {wrong}")
        trial.verdict.words[:] = [f"{failing}: {each}" for each in trial.verdict.words]
    return trial.verdict


def how_many(error: int) -> int:
    """How many calls a session makes that such an error could strike."""
    with ForkedTrial() as trial:
        log = trial.folder / "calls"
        driver = trial.start(environment=Failing(error, EVER, EVER).settings(trial.results, log))
        trial.check_complete(driver, driver.wait())
        if not trial.verdict.clean:
            raise AssertionError(trial.verdict.words)
        return calls(log)


def prepare() -> None:
    """Import what sessions need, once, and make up the page."""
    with ForkedTrial() as trial:
        _import(trial)


def _import(trial: ForkedTrial) -> None:
    import io
    from contextlib import redirect_stderr, redirect_stdout

    here = Path.cwd()
    os.chdir(trial.folder)
    ended = 0
    with redirect_stdout(io.StringIO()) as said, redirect_stderr(said):
        try:
            fakes.main(["run", "mine.py", "--out", "results"])
        except SystemExit as end:
            ended = int(end.code or 0)
    os.chdir(here)
    if ended:
        raise AssertionError(said.getvalue())
    from parabench.report import build

    build.render = lambda *given: "page"


def failings(share: int, shares: int) -> list[Failing]:
    """One share of all of them."""
    every = []
    for error in ERRORS:
        for at in range(1, how_many(error) + 1):
            if at % shares == share % shares:
                every += [Failing(error, at, at), Failing(error, at, EVER), Failing(error, at, EVER, torn=True)]
    return every


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.every_call")
    parser.add_argument("--share", default="0/1", help="every so many-th call only, as in 3/50")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    asked = parser.parse_args()
    prepare()
    whole = Verdict(tries=0)
    for each in failings(*map(int, asked.share.split("/"))):
        found = one(each)
        if not asked.json and not found.clean:
            print(*found.words, sep="\n", flush=True)
        whole.add(found)
    print(json.dumps(asdict(whole)) if asked.json else f"{whole.tries} tries: {whole.counts}")
    sys.exit(0 if whole.clean else 1)


if __name__ == "__main__":
    main()
