"""The axes of a sweep: a case's fields, and their values read from text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from parabench.errors import UsageError
from parabench.plan.case import FLAGS, INTEGERS, MAYBE_INTEGERS, Case

# Not a field of a case: weak scaling, where the global batch grows with the world size.
BATCH_PER_RANK = "batch_per_rank"

AXES = (*(f.name for f in fields(Case)), BATCH_PER_RANK)

_FLAG = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}


def _bucket(text: str) -> float | None:
    return None if text == "default" else float(text)


def _optional_integer(text: str) -> int | None:
    return None if text == "auto" else int(text)


def _flag(text: str) -> bool:
    if text.lower() not in _FLAG:
        raise ValueError
    return _FLAG[text.lower()]


# A path may hold spaces, and `bytes` is how text is read without a vocabulary.
PATHS = ("data", "vocabulary")


def _vocabulary(text: str) -> str:
    return "" if text == "bytes" else text


_PARSERS: dict[str, Callable[[str], Any]] = {
    "bucket_mib": _bucket,
    BATCH_PER_RANK: int,
    "vocabulary": _vocabulary,
    **dict.fromkeys(INTEGERS, int),
    **dict.fromkeys(MAYBE_INTEGERS, _optional_integer),
    **dict.fromkeys(FLAGS, _flag),
}


def split_values(text: str) -> list[str]:
    """What stands between the commas, without spaces around. The comma of two_level(ring,tree) separates nothing."""
    parts = re.split(r",(?![^()]*\))", text)
    # A path after the colon keeps its spaces.
    return [part.strip() if ":" in part else part.replace(" ", "") for part in parts]


def split_paths(text: str) -> list[str]:
    """What stands between the commas; one that belongs to a path is written `\\,`."""
    return [part.strip().replace("\\,", ",") for part in re.split(r"(?<!\\),", text)]


def parse_axis(name: str, text: str) -> tuple[Any, ...]:
    """The values of one axis from text: `parse_axis("bucket_mib", "1,4,default")` is `(1.0, 4.0, None)`.

    `world_size` also takes `auto`. Raises UsageError with the value and what is allowed.
    """
    if name not in AXES:
        raise UsageError(f"axis {name!r} is unknown; use one of {', '.join(AXES)}")
    if name == "world_size" and text == "auto":
        return ("auto",)
    values = []
    for part in split_paths(text) if name in PATHS else split_values(text):
        try:
            if not part:
                raise ValueError
            values.append(_PARSERS.get(name, str)(part))
        except ValueError:
            raise UsageError(f"{name}={text!r}: {part!r} is not a value of {name}") from None
    return tuple(values)
