"""A file that a command writes is whole or not there at all: a full disk leaves what was there before."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parabench.errors import UsageError
from parabench.machine.scratch import still_there

# How an SQLite file begins: a store must never be taken for an old page or trace.
SQLITE = b"SQLite format 3"


def is_special(path: Path) -> bool:
    """Whether it is a device or a pipe: written to as it is, for nothing may take its place."""
    return path.exists() and not path.is_file()


def write_whole(path: Path, text: str, what: str, remedy: str) -> None:
    """Write `text`, which is a `what`, to `path`, whose folder is made where it is missing.

    Raises UsageError that ends with `remedy` for a database, which is never written over, and for what cannot be
    written; then nothing is left of it.
    """
    try:
        if is_special(path):
            path.write_text(text, encoding="utf-8")
            return
        whole = Path(os.path.realpath(path))  # a link stays a link
        if _is_database(whole):
            raise UsageError(f"{path} is a database, not a {what}; {remedy}")
        whole.parent.mkdir(parents=True, exist_ok=True)
        with replacing(whole, 0o644) as part:  # 0600 would keep a web server or a colleague out
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}; {remedy}") from error


@contextmanager
def replacing(whole: Path, mode: int = 0o600) -> Iterator[Path]:
    """A file to write to, which takes the place of `whole` at the end of the block; where an error ends it, nothing is
    left. What processes left that were killed amid this goes too. Raises OSError."""
    _remove_abandoned(whole)
    part, handle = _held_part(whole)
    try:
        yield part
        part.chmod(mode)
        part.replace(whole)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)


def _held_part(whole: Path) -> tuple[Path, int]:
    """A new file beside `whole`, and the descriptor whose lock says that somebody writes it."""
    while True:
        handle, name = tempfile.mkstemp(dir=whole.parent, prefix=f".{whole.name}.", suffix=".part")
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        # Before it was locked another process may have taken it for abandoned.
        if still_there(Path(name), handle):
            return Path(name), handle
        os.close(handle)


def _remove_abandoned(whole: Path) -> None:
    """Remove what was to become `whole` and is written by nobody any more."""
    named = re.compile(re.escape(f".{whole.name}.") + r"[a-z0-9_]{8}\.part")
    for name in filter(named.fullmatch, os.listdir(whole.parent)):
        part = whole.parent / name
        with contextlib.suppress(OSError):  # it is another user's, it has just gone, or it is being written
            handle = os.open(part, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                if os.fstat(handle).st_uid == os.geteuid():
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    part.unlink()
            finally:
                os.close(handle)


def _is_database(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE
