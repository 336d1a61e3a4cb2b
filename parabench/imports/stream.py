"""Read JSON that may be larger than the memory: the members of the outermost object one after the other, and the
elements of one member that is a list.

Profilers do not always write strict JSON. Control characters in strings, invalid UTF-8, a byte order mark and `NaN` in
any spelling are accepted. Files compressed by gzip are uncompressed.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from parabench.errors import UsageError
from parabench.imports.recording import REMEDY

_CHUNK_BYTES = 1 << 20
# The most characters of one member or element: an event has some hundred, with a stack some thousand.
_LONGEST = 16 << 20
_NOT_SPACE = re.compile(r"[^ \t\r\n]")
# Characters that may follow a value.
_ENDS = tuple(" \t\r\n,:]}")
_DECODER = json.JSONDecoder(strict=False)
# Numbers that C++ prints in its own spelling, without a value.
_NAN = re.compile(r"-?(nan|inf(inity)?)\b", re.IGNORECASE)


def opened(path: Path) -> IO[bytes] | gzip.GzipFile:
    """Return the file's bytes, uncompressed. Raises OSError."""
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if compressed else path.open("rb")


def beginning(path: Path, size: int) -> bytes:
    """Return the first bytes of the file's content. Raises UsageError."""
    try:
        with opened(path) as file:
            return file.read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, why: object) -> UsageError:
    """Return the error for a damaged file."""
    reason = why.strerror if isinstance(why, OSError) and why.strerror else why
    return UsageError(f"{path} cannot be read: {reason}; {REMEDY}")


def text(raw: bytes) -> str:
    """Return bytes as a text, with marks for those that are not UTF-8."""
    return raw.decode("utf-8-sig", errors="replace")


def members(path: Path, elements_of: str) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) for each member of the outermost object.

    The member called `elements_of` must be a list; its name is yielded with each element. An outermost list counts as
    that member. Raises UsageError if the file is not such JSON, is cut off, or has a value longer than 16 MiB.
    """
    try:
        with opened(path) as file:
            yield from _Text(file).members(elements_of)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise unreadable(path, "it is nested too deeply" if isinstance(error, RecursionError) else error) from error


class _Text:
    """As much of a file's text as the next value needs. Raises ValueError if it is not JSON."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._text, self._at, self._over = "", 0, False

    def members(self, elements_of: str) -> Iterator[tuple[str, Any]]:
        if self._next() == "[":
            yield from ((elements_of, self._value()) for _ in self._items("[]"))
        else:
            for _ in self._items("{}"):
                name = str(self._value())
                self._take(":")
                if name == elements_of:
                    yield from ((name, self._value()) for _ in self._items("[]"))
                else:
                    yield name, self._value()
        if self._next() in ("{", "["):
            raise ValueError("a second document follows the first one in it")

    def _items(self, brackets: str) -> Iterator[None]:
        """Yield before each item of a list or object, which the caller then takes."""
        self._take(brackets[0])
        if self._next() != brackets[1]:
            yield
            while self._next() == ",":
                self._take(",")
                yield
        self._take(brackets[1])

    def _value(self) -> Any:
        self._next()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if (found := _NAN.match(self._text, error.pos)) and found.end() < len(self._text):
                    self._text = f"{self._text[: error.pos]}NaN{self._text[found.end() :]}"
                    continue
                if self._over:
                    raise ValueError(f"it is not JSON, or cut off: {error}") from error
            else:
                # The rest of a number may not be read yet: 1.5 is cut behind the point.
                if self._over or self._text[end : end + 1] in _ENDS:
                    self._at = end
                    return value
            if len(self._text) - self._at > _LONGEST:
                raise ValueError(f"it is not JSON, or one value in it is longer than {_LONGEST >> 20} MiB")
            self._more()

    def _next(self) -> str:
        """Return the next character that is not a space, without taking it; empty at the end."""
        while not (found := _NOT_SPACE.search(self._text, self._at)) and not self._over:
            self._at = len(self._text)
            self._more()
        self._at = found.start() if found else len(self._text)
        return found[0] if found else ""

    def _take(self, mark: str) -> None:
        found = self._next()
        if found != mark:
            raise ValueError(f"it is not JSON: {found!r} instead of {mark!r}" if found else "it is cut off")
        self._at += 1

    def _more(self) -> None:
        """Read on, twice as much if one value takes all there is, so that it is not decoded too often."""
        left = self._text[self._at :]
        raw = self._file.read(max(_CHUNK_BYTES, len(left)))
        self._over = not raw
        self._text, self._at = left + self._decoder.decode(raw, final=self._over), 0
