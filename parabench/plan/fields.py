"""Read and write the fields of cases and protocols as text: values of an axis, and options of a command."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from parabench.errors import UsageError, did_you_mean
from parabench.records import Declared, Record, declared

# A plus joins the values of a list, except after an exponent.
_PLUS = re.compile(r"(?<=[0-9.])\+")
# A value of a list: a number without a sign.
_PLAIN = re.compile(r"[0-9.]+(e[+-]?[0-9]+)?", re.IGNORECASE)
_FLAG = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}


def option_fields(cls: type[Record]) -> dict[str, Declared]:
    """Return {field: declaration} of the fields of a record that have a command-line option."""
    return {name: each for name, each in declared(cls).items() if each.field.option}


def typed(cls: type[Record], given: Mapping[str, Any]) -> list[str]:
    """Return the `given` fields of `cls` as command-line arguments: ["--steps", "20", "--profile"]."""
    words = []
    for name, each in option_fields(cls).items():
        value = given.get(name)
        if value is not None and value is not False:
            text = str(value if each.field.text else each.type(value))
            words += [each.field.option] if value is True else [each.field.option, text]
    return words


def parse_field(each: Declared, text: str) -> tuple[Any, ...]:
    """Return the values of a field from a text with commas between them. Raises UsageError with the invalid part.

    A comma in a path is written `\\,`, and the comma in two_level(ring,tree) does not separate values.
    """
    parts = re.split(r"(?<!\\)," if each.field.path else r",(?![^()]*\))", text)
    # A path, also after a colon, keeps its spaces.
    parts = [part.strip() if each.field.path or ":" in part else part.replace(" ", "") for part in parts]
    values = []
    for part in (part.replace("\\,", ",") if each.field.path else part for part in parts):
        try:
            values.append(_parsed(each, part))
        except ValueError:
            words = [*([each.field.unset] if each.field.unset else []), *(_FLAG if each.type is bool else ())]
            hint = did_you_mean(part, words) if part else "give values separated by commas"
            hint = hint or (f"it must be {each.expected}" if each.type is int else "")
            text = f"{each.name}={text!r}: {part!r} is not a value of {each.name}"
            raise UsageError(f"{text}{hint and f'; {hint.rstrip()}'}") from None
    return tuple(values)


def _parsed(each: Declared, text: str) -> Any:
    """Return the value of one part of the text. Raises ValueError."""
    if not text:
        raise ValueError
    if text == each.field.unset:
        return each.default
    if each.type is bool:
        if text.lower() not in _FLAG:
            raise ValueError
        return _FLAG[text.lower()]
    if each.listed and _PLUS.search(text):
        parts = _PLUS.split(text)
        # A plus after a single value makes it a list.
        parts = parts[:1] if len(parts) == 2 and not parts[1] else parts
        if not all(map(_PLAIN.fullmatch, parts)):
            raise ValueError
        return tuple(map(each.type, parts))
    return each.type(text)


def list_text(values: Sequence[float]) -> str:
    """Return a list of numbers as text that `parse_field` can read: '0.5+4+25', or '4+' for one number."""
    return "+".join(map(number, values)) + "+" * (len(values) == 1)


def number(value: float) -> str:
    """Return a number as text, without a fraction of zero: '10' for 10.0."""
    return str(int(value)) if float(value).is_integer() else str(value)
