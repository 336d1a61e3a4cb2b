"""Read pickles of plain values, as torch's flight recorder writes them. Nothing in them is executed: an Unpickler that
finds no class and loads no persistent object makes texts, numbers, lists, tuples and dicts alone."""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any, NoReturn

from parabench.imports import stream

# A dump of 20,000 calls with their stacks has less.
MOST_BYTES = 64 << 20


def begins(raw: bytes) -> bool:
    """Return whether bytes begin as a pickle of protocol 2 or later does."""
    return len(raw) > 2 and raw[0] == 0x80 and 2 <= raw[1] <= 5


class _Refused(Exception):
    pass


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise _Refused(f"it names {module}.{name}")

    def persistent_load(self, _: Any) -> NoReturn:
        raise _Refused("it refers to an object outside of it")


def read(path: Path) -> Any:
    """Return the value in a pickle of plain values. Raises UsageError for every other file."""
    try:
        with stream.opened(path) as file:
            raw = file.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise ValueError(f"a dump has {MOST_BYTES >> 20} MiB at most")
        # A damaged place in the memo would make the Unpickler fill gigabytes.
        if any("PUT" in code.name and (place or 0) > len(raw) for code, place, _ in pickletools.genops(raw)):
            raise ValueError("it keeps more values than it has")
        return _Plain(io.BytesIO(raw), errors="replace").load()
    except OSError as error:
        raise stream.unreadable(path, error) from error
    # A damaged pickle can raise any error, because its operations get unexpected values.
    except Exception as error:
        why = "a flight recorder's dump holds texts, numbers, lists and dicts alone, and nothing else is unpickled"
        reason = " ".join(str(error).split())[:100]
        raise stream.unreadable(path, f"{reason}; {why}" if isinstance(error, _Refused) else reason) from error
