"""JSON of a store as Python's own values, whoever wrote it: parsed, and of the shape that its readers take for granted.

A shape is one of the kinds below; `[shape]`, a list of such; or a dict of shapes by name, where "*" stands for all
names that are not listed. Whatever a shape does not name may be anything. A name that ends with "!" must be there, and
with "!!" must not be null either; everything else may be null or absent.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from parabench.errors import UsageError
from parabench.store.soundness import LARGEST, REMEDY

Shape = Any

_HALVES = re.compile("[\ud800-\udfff]")
# Of what is said of a value that is wrong.
_SHOWN = 60


@dataclass(frozen=True)
class Kind:
    """Single values, in words and by what tells one."""

    expected: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class OrNull:
    """In a list: such a value, or none."""

    shape: Shape


@dataclass(frozen=True)
class Having:
    """Of objects: one shape for those that have a name, another for the rest."""

    name: str
    shape: Shape
    otherwise: Shape


def _whole(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


TEXT = Kind("a text", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
WHOLE = Kind("a whole number", lambda value: _whole(value, 1 << 53))
# Of ranks, rounds, nodes: what loops are made of.
COUNT = Kind("a whole number of a million at most", lambda value: _whole(value, 10**6))
NUMBER = Kind("a number", lambda value: type(value) in (int, float) and abs(value) <= LARGEST)
ANYTHING = Kind("anything", lambda value: True)


def parsed(text: str) -> Any:
    """The value of JSON that was looked at before. What is no number is None, and halves of characters, which no file
    can hold, are marks. Raises UsageError for what is no JSON, or nested too deeply."""
    return read(text, ANYTHING, "JSON of a store")


def written(data: Any) -> str:
    """JSON for people and machines, as a file holds it; unknown is null, so what is not finite is a mistake of ours."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def read(text: str | None, shape: Shape, place: str) -> Any:
    """The value of JSON of that shape, as `parsed` makes it; `place` says where it stands: 'plan of session 3 of r.db'.
    No text is {}.

    Raises UsageError.
    """
    if text is None:
        return {}
    try:
        value = _DECODER.decode(text)
        if "\\ud" in text or "\\uD" in text:
            value = _without_halves(value)
        wrong = first_wrong(value, shape)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else f"it is no JSON: {error}"
        raise UsageError(f"{place} cannot be read: {why}; {REMEDY}") from error
    if wrong is None:
        return value
    name, said, expected = wrong
    raise UsageError(f"{place} cannot be read: {name or 'it'} is {said}, not {_expected(expected)}; {REMEDY}")


def first_wrong(value: Any, shape: Shape, name: str = "") -> tuple[str, str, Shape] | None:
    """(name, what is there, the shape) of the first value within that is not of its shape; None where all are."""
    if isinstance(shape, Kind):
        return None if shape.holds(value) else (name, _said(value), shape)
    if isinstance(shape, Having):
        has = isinstance(value, dict) and shape.name in value
        return first_wrong(value, shape.shape if has else shape.otherwise, name)
    if isinstance(shape, OrNull):
        return None if value is None else first_wrong(value, shape.shape, name)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return name, _said(value), shape
        parts = ((each, shape[0], f"{name}[{at}]") for at, each in enumerate(value))
    else:
        if not isinstance(value, dict):
            return name, _said(value), shape
        for key in shape:
            bare = key.rstrip("!")
            if (bare != key and bare not in value) or (key.endswith("!!") and value[bare] is None):
                return f"{name}.{bare}".lstrip("."), "missing", shape[key]
        by_name = {key.rstrip("!"): of for key, of in shape.items()}
        others = by_name.pop("*", None)
        parts = (
            (each, by_name.get(key, others), f"{name}.{key}".lstrip("."))
            for key, each in value.items()
            if each is not None and (others is not None or key in by_name)
        )
    return next((wrong for each, of, within in parts if (wrong := first_wrong(each, of, within))), None)


def _expected(shape: Shape) -> str:
    if isinstance(shape, Kind):
        return shape.expected
    return "a list" if isinstance(shape, list) else "an object"


def _said(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    said = json.dumps(value) if not isinstance(value, int) or abs(value) < 10**_SHOWN else "a huge number"
    return said if len(said) <= _SHOWN else f"{said[:_SHOWN]}..."


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=lambda name: None)


def _without_halves(value: Any) -> Any:
    if isinstance(value, str):
        return _HALVES.sub("\ufffd", value)
    if isinstance(value, list):
        return [_without_halves(each) for each in value]
    if isinstance(value, Mapping):
        return {_without_halves(key): _without_halves(each) for key, each in value.items()}
    return value
