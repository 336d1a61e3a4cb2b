"""Pickles of plain values, as torch's flight recorder writes them, read without the machine that runs a pickle: only
the operations that make texts, numbers, lists, tuples and dicts are known here, and at any other the file is refused.

`pickletools.genops` tells the operations apart and runs none of them.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parabench.errors import UsageError
from parabench.imports.recording import REMEDY

# A dump of 20,000 calls with their stacks has less.
MOST_BYTES = 64 << 20

_VALUES: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TOLD = {
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINSTRING", "SHORT_BINSTRING",
}  # fmt: skip
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
# How many values an operation takes from the stack; and by what each is done with all since the last mark.
_TAKING = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2}
_SINCE_MARK = {"TUPLE": "TUPLE", "APPENDS": "APPEND", "SETITEMS": "SETITEM"}
_KEPT, _GOT = {"BINPUT", "LONG_BINPUT"}, {"BINGET", "LONG_BINGET"}


def begins(raw: bytes) -> bool:
    """Whether bytes begin as a pickle of protocol 2 or later does."""
    return len(raw) > 2 and raw[0] == 0x80 and 2 <= raw[1] <= 5


def read(path: Path) -> Any:
    """The value that a pickle of plain values holds. Raises UsageError for every other file."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path} cannot be read: a dump has {MOST_BYTES >> 20} MiB at most; {REMEDY}")
        return _value(path.read_bytes())
    except UsageError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        # What an operation does to something else than it is made for is in the file, not here.
        said = error.strerror if isinstance(error, OSError) else f"it is damaged: {' '.join(str(error).split())[:100]}"
        raise UsageError(f"{path} cannot be read: {said}; {REMEDY}") from error
    except _Refused as error:
        raise UsageError(
            f"{path} cannot be read: {error}; a flight recorder's dump holds texts, numbers, lists and dicts alone, "
            f"and nothing else is unpickled: {REMEDY}"
        ) from error


class _Refused(Exception):
    pass


def _value(raw: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    for code, told, at in pickletools.genops(raw):
        name = code.name
        if name in _TOLD:
            stack.append(told)
        elif name in _VALUES:
            stack.append(_VALUES[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            marks.append(len(stack))
        elif name in _KEPT:
            memo[int(told or 0)] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in _GOT:
            stack.append(memo[int(told or 0)])
        elif name in _TAKING:
            _combine(name, stack, _TAKING[name])
        elif name in _SINCE_MARK:
            _combine(_SINCE_MARK[name], stack, len(stack) - marks.pop())
        elif name == "STOP":
            (value,) = stack
            return value
        elif name not in ("PROTO", "FRAME"):
            raise _Refused(f"it has the operation {name} at byte {at}")
    raise ValueError("it has no end")


def _combine(name: str, stack: list[Any], count: int) -> None:
    """Take so many values from the stack, and make a tuple of them or put them into the list or dict below."""
    if not 0 <= count <= len(stack):
        raise ValueError("an operation takes more than there is")
    values = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    if name.startswith("TUPLE"):
        stack.append(tuple(values))
    elif name == "APPEND":
        _below(stack, list).extend(values)
    else:
        keys = values[::2]
        # A tuple of tuples of the same tuples takes for ever to hash.
        if not all(type(key) in (str, int) for key in keys):
            raise ValueError("a dict has another key than a text or a number")
        _below(stack, dict).update(zip(keys, values[1::2], strict=True))


def _below(stack: list[Any], kind: type[Any]) -> Any:
    if not stack or type(stack[-1]) is not kind:
        raise ValueError(f"values are put into something else than a {kind.__name__}")
    return stack[-1]
