"""Read the content of a file, uncompressed if it is gzip, and the JSON that profilers write.

Profilers do not always write strict JSON. Control characters in strings, invalid UTF-8, a byte order mark and `nan` are
accepted.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Numbers without a value, as C++ prints them.
_NAN = re.compile(r"(?<=: )-?(nan|inf)(?=[,}\s])")


def content(path: Path, size: int = -1) -> bytes:
    """Return the first bytes of a file's content, by default all."""
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rb") if compressed else path.open("rb") as file:
        return file.read(size)


def text(raw: bytes) -> str:
    """Return bytes as text, with replacement characters for invalid UTF-8."""
    return raw.decode("utf-8-sig", errors="replace")


def parsed(text: str, hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Return the value of a JSON document. Raises ValueError if it is damaged.

    `hook` receives each object when it is parsed, and returns the value to keep. So events need not stay in memory.
    """
    # Searching for a constant text is much faster than the pattern.
    if any(start in text for start in (": nan", ": -nan", ": inf", ": -inf")):
        text = _NAN.sub("NaN", text)
    try:
        return json.loads(text, strict=False, object_hook=hook)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON, or cut off: {error}") from error
