"""Read pickles of plain values, as torch's flight recorder writes them. Nothing in them is executed: an Unpickler that
finds no class and loads no persistent object makes texts, numbers, lists, tuples and dicts alone."""

from __future__ import annotations

import io
import pickle
import pickletools
import zlib
from pathlib import Path
from typing import Any, NoReturn

from parabench.errors import UsageError
from parabench.imports import stream
from parabench.imports.recording import REMEDY

# A dump of 20,000 calls with their stacks has less.
MOST_BYTES = 64 << 20


def begins(raw: bytes) -> bool:
    """Return whether bytes begin as a pickle of protocol 2 or later does."""
    return len(raw) > 2 and raw[0] == 0x80 and 2 <= raw[1] <= 5


class _Refused(Exception):
    pass


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise _Refused(f"it names {module}.{name}"[:100])

    def persistent_load(self, _: Any) -> NoReturn:
        raise _Refused("it refers to an object outside of it")


def read(path: Path) -> Any:
    """Return the value in a pickle of plain values. Raises UsageError for every other file."""
    try:
        with stream.opened(path) as file:
            raw = file.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise stream.unreadable(path, f"a dump has {MOST_BYTES >> 20} MiB at most")
        # A damaged place in the memo would make the Unpickler fill gigabytes.
        if any("PUT" in code.name and (told or 0) > len(raw) for code, told, _ in pickletools.genops(raw)):
            raise ValueError("it keeps more values than it has")
        return _Plain(io.BytesIO(raw), errors="replace").load()
    except UsageError:
        raise
    except _Refused as error:
        reason = (
            f"{error}; a flight recorder's dump holds texts, numbers, lists and dicts alone, and nothing else is "
            f"unpickled: {REMEDY}"
        )
        raise UsageError(f"{path} cannot be read: {' '.join(reason.split())}") from error
    except (OSError, zlib.error) as error:
        raise stream.unreadable(path, error) from error
    except Exception as error:
        # A damaged pickle fails in any way: its operations meet values that they are not made for.
        raise stream.unreadable(path, f"it is damaged: {' '.join(str(error).split())[:100]}") from error
