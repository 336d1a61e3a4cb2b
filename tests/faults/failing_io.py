"""Calls of a process that change files fail, the first or all from one on: see failing_io.c, which gcc makes a library
of."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock

from tests.faults.trial import CannotTry

SOURCE = Path(__file__).with_name("failing_io.c")

# More calls than any session makes.
EVER = 10**9

_building = Lock()


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

    def environment(self, folder: Path, log: Path | None = None) -> dict[str, str]:
        """Return the environment of a process in which the calls fail; it writes its calls to the `log`."""
        return {"LD_PRELOAD": str(library()), **self.settings(folder, log)}

    def settings(self, folder: Path, log: Path | None = None) -> dict[str, str]:
        """Return the settings that a process reads after it has loaded the library."""
        return {
            "FAILING_IO_FOLDER": str(folder.resolve()),
            "FAILING_IO_FROM": str(self.first),
            "FAILING_IO_UNTIL": str(self.last),
            "FAILING_IO_ERRNO": str(self.error),
            "FAILING_IO_TORN": str(int(self.torn)),
            "FAILING_IO_LOCKS": str(int(self.locks)),
            "FAILING_IO_LOG": str(log or ""),
        }


def calls(log: Path) -> int:
    """How many of them the first process made that wrote to the log."""
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return max((int(number) for pid, number, *_ in lines if pid == lines[0][0]), default=0)


def library() -> Path:
    """The compiled library."""
    with _building:
        return _library()


@cache
def _library() -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise CannotTry("there is no C compiler")
    made = Path(tempfile.mkdtemp(prefix="failing-io-")) / "failing_io.so"
    command = [compiler, "-Wall", "-O1", "-shared", "-fPIC", "-o", str(made), str(SOURCE), "-ldl"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        raise CannotTry(f"{SOURCE.name} could not be compiled: {built.stderr[-300:]}")
    import atexit

    atexit.register(shutil.rmtree, made.parent, ignore_errors=True)
    os.chmod(made, 0o755)
    os.chmod(made.parent, 0o755)
    return made
