"""The file behind `text` or `text:PATH`. Free of torch."""

from __future__ import annotations

import os
from pathlib import Path

from parabench.errors import UsageError

SHIPPED = Path(__file__).with_name("sample.txt")


def path_of(data: str) -> Path:
    """The file that `text` or `text:PATH` names."""
    path = data.partition(":")[2]
    return Path(path) if path else SHIPPED


def size(data: str) -> int:
    """How many bytes it holds. Raises UsageError when it cannot be read."""
    path = path_of(data)
    readable("data", path)
    return path.stat().st_size


def readable(what: str, path: Path) -> None:
    """Raise UsageError unless `path` is a regular file that can be opened; `what` says what it was given for."""
    if not os.path.exists(path):
        raise UsageError(f"{what} file {str(path)!r} cannot be read: there is no such file")
    if not path.is_file():
        raise UsageError(f"{what} file {str(path)!r} cannot be read: it is no regular file; give one")
    try:
        path.open("rb").close()
    except OSError as error:
        raise UsageError(f"{what} file {str(path)!r} cannot be read: {error.strerror or error}") from error


def stamp(path: Path) -> tuple[str, int, int]:
    """What tells one state of a file from another: its whole path, its size, and when it was changed, in ns."""
    state = path.stat()
    return str(path.resolve()), state.st_size, state.st_mtime_ns
