"""Read pickles of plain values, as torch's flight recorder writes them, without executing anything in them.

An Unpickler that finds no class and loads no persistent object makes only texts, numbers, lists, tuples and dicts.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn

_WHY = "a flight recorder's dump has texts, numbers, lists and dicts only, and nothing else is unpickled"


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}; {_WHY}")

    def persistent_load(self, _: Any) -> NoReturn:
        raise pickle.UnpicklingError(f"it refers to an object outside of the file; {_WHY}")


def is_pickle(raw: bytes) -> bool:
    """Return whether bytes start as a pickle of protocol 2 or later does."""
    return raw[:1] == b"\x80"


def unpickled(raw: bytes) -> Any:
    """Return the value of a pickle of plain values. Raises ValueError for a damaged pickle, and for other objects."""
    try:
        return _Plain(io.BytesIO(raw), errors="replace").load()
    # A damaged pickle can cause any error, because its operations receive unexpected values.
    except Exception as error:
        raise ValueError(error) from error
