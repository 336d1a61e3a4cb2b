"""A file that a command writes is whole or not there at all: a full disk leaves what was there before."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from parabench.errors import UsageError

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
        handle, name = tempfile.mkstemp(dir=whole.parent, prefix=f".{whole.name}.", suffix=".part")
        part = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            part.chmod(0o644)  # mkstemp's 0600 would keep a web server or a colleague out
            part.replace(whole)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}; {remedy}") from error


def _is_database(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE
