"""JSON that may be larger than the memory: the members of its outermost object one after the other, and of one of them,
a list, the elements. Files that are compressed by gzip are read as what is in them."""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from parabench.errors import UsageError
from parabench.imports.recording import REMEDY

CHUNK_BYTES = 1 << 20
# Of one member or element: an event of a trace has some hundred bytes, with a stack some thousand.
LONGEST = 16 << 20
# Of a whole file, uncompressed.
MOST_BYTES = 16 << 30
GZIP = b"\x1f\x8b"
_SPACE = " \t\r\n"
# What may stand behind a value.
_ENDS = (*_SPACE, ",", ":", "]", "}")

_DECODER = json.JSONDecoder()


def opened(path: Path) -> IO[bytes] | gzip.GzipFile:
    """The file's bytes, uncompressed. Raises OSError."""
    with path.open("rb") as file:
        compressed = file.read(len(GZIP)) == GZIP
    return gzip.open(path, "rb") if compressed else path.open("rb")


def beginning(path: Path, size: int = CHUNK_BYTES) -> bytes:
    """The first bytes of what the file holds. Raises UsageError."""
    try:
        with opened(path) as file:
            return file.read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, why: object) -> UsageError:
    """The error of a file that is damaged."""
    said = why.strerror if isinstance(why, OSError) and why.strerror else why
    return UsageError(f"{path} cannot be read: {said}; {REMEDY}")


def members(path: Path, elements_of: str) -> Iterator[tuple[str, Any]]:
    """(name, value) of each member of the outermost object; of the one called `elements_of`, which must be a list, the
    name with each element. Raises UsageError for what is no such JSON, is cut off, or has a part of more than LONGEST.
    """
    try:
        with opened(path) as file:
            yield from _Text(file).members(elements_of)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise unreadable(path, "it is nested too deeply" if isinstance(error, RecursionError) else error) from error


class _Text:
    """The text of a file, as much of it as the next value needs. Raises ValueError for what is no JSON."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile) -> None:
        self._file, self._decoder = file, codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._text, self._at, self._read, self._over = "", 0, 0, False

    def members(self, elements_of: str) -> Iterator[tuple[str, Any]]:
        self._expect("{")
        if self._taken("}"):
            return
        while True:
            name = self._value()
            if not isinstance(name, str):
                raise ValueError("a member of its outermost object has no name")
            self._expect(":")
            if name == elements_of:
                for element in self._elements():
                    yield name, element
            else:
                yield name, self._value()
            if self._taken("}"):
                return
            self._expect(",")

    def _elements(self) -> Iterator[Any]:
        self._expect("[")
        if self._taken("]"):
            return
        while True:
            yield self._value()
            if self._taken("]"):
                return
            self._expect(",")

    def _value(self) -> Any:
        self._next()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except ValueError as error:
                if self._over:
                    raise ValueError(f"it is no JSON, or cut off: {error}") from error
            else:
                # A number may go on in what is not read yet: 1.5 is cut behind the point.
                if self._over or self._text[end : end + 1] in _ENDS:
                    self._at = end
                    return value
            if len(self._text) - self._at > LONGEST:
                raise ValueError(f"it is no JSON, or one value in it is longer than {LONGEST >> 20} MiB")
            self._more()

    def _next(self) -> str:
        """The next character that is no space; it is not taken. Empty at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return self._text[self._at]
                self._at += 1
            if self._over:
                return ""
            self._more()

    def _taken(self, mark: str) -> bool:
        there = self._next() == mark
        self._at += there
        return there

    def _expect(self, mark: str) -> None:
        if not self._taken(mark):
            found = self._next()
            raise ValueError(f"it is no JSON: {found!r} in the place of {mark!r}" if found else "it is cut off")

    def _more(self) -> None:
        """Read on, twice as much where one value takes all that is there, so that it is not decoded too often."""
        left = self._text[self._at :]
        raw = self._file.read(max(CHUNK_BYTES, len(left)))
        self._read += len(raw)
        if self._read > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES >> 30} GiB")
        self._over = not raw
        self._text, self._at = left + self._decoder.decode(raw, final=self._over), 0
