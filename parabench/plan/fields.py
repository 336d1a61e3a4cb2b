"""A field of a case or of a protocol is declared once: its type, its bounds, how it is written, its option.

    steps: Annotated[int | None, Field(least=1, most=MOST_STEPS, option="--steps", help="Measured steps.")] = None

The annotation is what may be stored, `Field` the rest. From that follow the validation (`Checked`), the values of
an axis in text (`parse_field`), and the options of a command (`option_fields`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Self, get_args, get_origin, get_type_hints

from parabench.errors import UsageError, did_you_mean, unknown

# What joins the values of a list, but for the plus of an exponent or a sign.
_PLUS = re.compile(r"(?<=[0-9.])\+")
# A value of a list: a number without a sign.
_PLAIN = re.compile(r"[0-9.]+(e[+-]?[0-9]+)?", re.IGNORECASE)
_FLAG = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """What a value must be beyond its type, how it is written, and its option.

    `least` and `most` are allowed, `above` is not; `divides` names a field that must be a multiple. `pattern` is of a
    text, `expected` says in words what it matches, and `why` the reason of a bound. `unset` is the word that stands
    for the default, where the default has no text of its own. A `path` may hold spaces. `role` is how the class uses
    the field. `option`, `help` and `metavar` are those of the command line.
    """

    least: int | None = None
    above: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    expected: str = ""
    why: str = ""
    divides: str = ""
    unset: str = ""
    path: bool = False
    role: str = ""
    option: str = ""
    help: str = ""
    metavar: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A field with what its annotation says: the type of its values, whether it may be None, and whether it holds many
    of them, as a tuple; `listed`: one of them, or several as a tuple, which are one value of an axis."""

    name: str
    type: type[Any]
    optional: bool
    default: Any
    field: Field
    many: bool = False
    listed: bool = False

    def check(self, value: Any) -> None:
        """Raise UsageError for a value that the field cannot hold."""
        if value is None and self.optional:
            return
        if self.many:
            for each in value:
                replace(self, many=False).check(each)
            return
        if self.listed and isinstance(value, (list, tuple)):
            if not value:
                raise UsageError(f"{self.name} is an empty list; give {self.field.unset}, or one value or more")
            for each in value:
                replace(self, listed=False, optional=False, field=replace(self.field, unset="")).check(each)
            return
        field = self.field
        if self.type is str and not is_text(value):
            raise UsageError(f"{self.name} is {value!r}; it must be a text in UTF-8")
        if field.choices and value not in field.choices:
            raise unknown(self.name, value, field.choices)
        if not self._fits(value):
            option = f" ({field.option})" if field.option and field.option != f"--{self.name}" else ""
            raise UsageError(f"{self.name} is {value!r}; it must be {self.expected}{option}")

    def _fits(self, value: Any) -> bool:
        field = self.field
        if self.type is str:
            return field.pattern is None or field.pattern.fullmatch(value) is not None
        if type(value) is not self.type and not (self.type is float and type(value) is int):
            return False
        return (
            (field.least is None or value >= field.least)
            and (field.above is None or value > field.above)
            and (field.most is None or value <= field.most)
        )

    @property
    def expected(self) -> str:
        """What it must be, in words: 'a whole number from 1 to 1024'."""
        field = self.field
        if self.type in (bool, str):
            return field.expected or "true or false"
        words = "a whole number" if self.type is int else "a number"
        if field.above is not None:
            words += f" above {field.above:g}"
        if field.least is not None:
            words += f" of {field.least} or more" if field.most is None else f" from {field.least} to {field.most}"
        elif field.most is not None:
            words += f"{' and' if field.above is not None else ''} at most {field.most:.0f}"
        return words + (f", or {field.unset}" if field.unset else "") + field.why

    @property
    def words(self) -> list[str]:
        """The words that `parse` knows, beside numbers."""
        return [*([self.field.unset] if self.field.unset else []), *(_FLAG if self.type is bool else ())]

    def parse(self, text: str) -> Any:
        """The value that a word of the command line stands for. Raises ValueError."""
        if not text:
            raise ValueError
        if text == self.field.unset:
            return self.default
        if self.type is bool:
            if text.lower() not in _FLAG:
                raise ValueError
            return _FLAG[text.lower()]
        if self.listed and _PLUS.search(text):
            parts = _PLUS.split(text)
            # The plus behind a single one makes it a list.
            parts = parts[:1] if len(parts) == 2 and not parts[1] else parts
            if not all(map(_PLAIN.fullmatch, parts)):
                raise ValueError
            return tuple(map(self.type, parts))
        return self.type(text)


@cache
def declared(cls: Hashable) -> Mapping[str, Declared]:
    """The fields of a dataclass as they are declared, by name, in their order."""
    of: Any = cls
    hints = get_type_hints(of, include_extras=True)
    return MappingProxyType({each.name: _declared(each, hints[each.name]) for each in dataclasses.fields(of)})


def _declared(each: dataclasses.Field[Any], hint: Any) -> Declared:
    told = Field()
    if get_origin(hint) is Annotated:
        hint, told = get_args(hint)
    types = [one for one in (get_args(hint) or (hint,)) if one is not NoneType]
    many = get_origin(hint) is tuple
    return Declared(
        name=each.name,
        type=types[0],
        optional=NoneType in get_args(hint),
        many=many,
        listed=not many and any(get_origin(one) is tuple for one in types),
        default=each.default,
        field=told,
    )


class Checked:
    """What cases and protocols inherit: the check of their fields, and the way into JSON and back.

    Raises UsageError for a value that its field cannot hold. 4 and 4.0 are one value of a field that takes fractions.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, each in self._declared().items():
            value = getattr(self, name)
            if value is each.default:
                continue  # most are, and plans hold thousands of cases
            each.check(value)
            if each.many:
                object.__setattr__(self, name, tuple(value))  # JSON has lists
            elif each.listed and isinstance(value, (list, tuple)):
                object.__setattr__(self, name, tuple(each.type(one) for one in value))
            elif each.type is float and type(value) is int:
                object.__setattr__(self, name, float(value))
            whole = each.field.divides
            if whole and value is not None and getattr(self, whole) % value:
                raise UsageError(f"{name} is {value}; it must divide {whole} {getattr(self, whole)}")

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._declared()}  # `asdict` copies deeply: 10 times slower

    def cells(self) -> dict[str, Any]:
        """`to_dict` as a table holds it: a list is its text, so that a column has plain values."""
        return {name: said(value) if isinstance(value, tuple) else value for name, value in self.to_dict().items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The reverse of `to_dict`; fields that a newer version added are ignored."""
        try:
            return cls(**{name: values[name] for name in cls._declared() if name in values})
        except TypeError as error:  # no value of its own can be: each is checked
            needed = (name for name, each in cls._declared().items() if each.default is dataclasses.MISSING)
            missing = ", ".join(name for name in needed if name not in values)
            raise UsageError(f"{cls.__name__} lacks {missing or error}") from error

    @classmethod
    def _declared(cls) -> Mapping[str, Declared]:
        kind: Any = cls
        return declared(kind)

    @property
    def digest(self) -> str:
        """Of the fields that are not at their default: a field that a later version adds changes no old digest."""
        fields = self._declared().items()
        differing = {name: value for name, each in fields if (value := getattr(self, name)) != each.default}
        return hashlib.sha256(json.dumps(differing, sort_keys=True).encode()).hexdigest()[:8]


def option_fields(cls: Hashable) -> dict[str, Declared]:
    """The fields of a dataclass that have an option of the command line, by name: {"steps": ..., "measure_s": ...}.

    `.field.option` is how it is typed. A command passes on those that were given, {field name: value}, and nobody needs
    a list of them: `replace(protocol, **given)`, `typed(Protocol, given)`.
    """
    return {name: each for name, each in declared(cls).items() if each.field.option}


def typed(cls: Hashable, given: Mapping[str, Any]) -> list[str]:
    """The options of `cls` that were given, as they are typed: ["--steps", "20", "--profile"]."""
    words = []
    for name, each in option_fields(cls).items():
        value = given.get(name)
        if value is not None and value is not False:
            words += [each.field.option] if value is True else [each.field.option, str(each.type(value))]
    return words


def parse_field(each: Declared, text: str) -> tuple[Any, ...]:
    """The values of a field from text, between commas. Raises UsageError with what is no value."""
    values = []
    for part in split_paths(text) if each.field.path else split_values(text):
        try:
            values.append(each.parse(part))
        except ValueError:
            hint = did_you_mean(part, each.words)
            said = f"{each.name}={text!r}: {part!r} is not a value of {each.name}"
            raise UsageError(f"{said}{hint and f'; {hint.rstrip()}'}") from None
    return tuple(values)


def said(values: Sequence[float]) -> str:
    """Numbers as `Declared.parse` reads a list of them: '0.5+4+25'; of a single one '4+'."""
    return "+".join(map(number, values)) + "+" * (len(values) == 1)


def number(value: float) -> str:
    """10.0 as 10, and every other as it is."""
    return str(int(value)) if float(value).is_integer() else str(value)


def split_values(text: str) -> list[str]:
    """What stands between the commas, without spaces around. The comma of two_level(ring,tree) separates nothing."""
    parts = re.split(r",(?![^()]*\))", text)
    # A path after the colon keeps its spaces.
    return [part.strip() if ":" in part else part.replace(" ", "") for part in parts]


def split_paths(text: str) -> list[str]:
    """What stands between the commas; one that belongs to a path is written `\\,`."""
    return [part.strip().replace("\\,", ",") for part in re.split(r"(?<!\\),", text)]


def is_text(value: object) -> bool:
    """Whether `value` is a text that files and pages can hold; bytes that are no UTF-8 come in as lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
