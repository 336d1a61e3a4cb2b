"""Records: data classes that check their values and convert to JSON. A field is declared once, with its bounds.

    class Sample(Record, frozen=True, kw_only=True):
        steps: Annotated[Annotated[int, Meta(ge=1)] | None, Field(option="--steps", help="Measured steps.")] = None

msgspec reads the types and bounds (`Meta`) in the annotations, and converts to and from JSON. `Field` adds rules that
msgspec does not have, such as the allowed texts, and the option of the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct, ValidationError, convert, structs, to_builtins

from parabench.errors import UsageError, unknown

R = TypeVar("R")
_SCALARS = (bool, int, float, str)

# The smallest and the largest rate of false alarms that a test can have.
LEAST_RATE, MOST_RATE = 1e-4, 0.5
Rate = Annotated[float, Meta(ge=LEAST_RATE, le=MOST_RATE)]
Share = Annotated[float, Meta(ge=0, lt=1)]


class Field(Struct, frozen=True, kw_only=True):
    """The rules of a field beyond its type and bounds, and its option on the command line.

    Args:
        choices: the allowed texts.
        expected: describes the pattern of a text, for errors.
        why: the reason for a bound, for errors.
        divides: the name of another field, which must be a multiple of this one.
        unset: the text for the default, if the default has no text.
        path: the value is a path, which may have spaces and commas.
        role: the group of the field, defined by the class.
        option, help, metavar: the option of the command line.
        text: the option is a text, because it takes several values or a unit.
    """

    choices: tuple[str, ...] = ()
    expected: str = ""
    why: str = ""
    divides: str = ""
    unset: str = ""
    path: bool = False
    role: str = ""
    option: str = ""
    help: str = ""
    metavar: str | None = None
    text: bool = False


class Declared(Struct, frozen=True, kw_only=True):
    """The declaration of a field of a record. `type` is the type of one value; if `listed`, a tuple is allowed too."""

    name: str
    hint: Any
    type: type[Any]
    bounds: Meta
    optional: bool
    listed: bool
    default: Any
    field: Field

    def checked(self, value: Any) -> Any:
        """Convert a value to the field's type: 4 to 4.0, a list to a tuple, NumPy's numbers to Python's.

        Raises UsageError for a value that the field does not allow.
        """
        texts = value if self.listed and isinstance(value, (list, tuple)) else (value,)
        if self.type is str and not all(each is None or is_text(each) for each in texts):
            raise UsageError(f"{self.name} is {value!r}; it must be a text in UTF-8")
        if self.field.choices and value not in self.field.choices:
            raise unknown(self.name, value, self.field.choices)
        try:
            return convert(value, self.hint)
        except ValidationError:
            if hasattr(value, "tolist"):
                return self.checked(value.tolist())
        option = self.field.option
        shown = f" ({option})" if option and option != f"--{self.name}" else ""
        raise UsageError(f"{self.name} is {value!r}; it must be {self.expected}{shown}")

    @property
    def expected(self) -> str:
        """A description of the allowed values, such as 'a whole number from 1 to 1024'."""
        if self.type in (bool, str):
            return self.field.expected or ("a text" if self.type is str else "true or false")
        least, above, most = self.bounds.ge, self.bounds.gt, self.bounds.le
        words = "a whole number" if self.type is int else "a number"
        if above is not None:
            words += f" above {above:g}"
        if least is not None:
            words += f" of {least} or more" if most is None else f" from {least} to {most}"
        elif most is not None:
            words += f"{' and' if above is not None else ''} at most {most:.0f}"
        return words + (f", or {self.field.unset}" if self.field.unset else "") + self.field.why


@cache
def declared(cls: type[Record]) -> Mapping[str, Declared]:
    """Return {name: declaration} of the fields of a record with numbers, texts or flags, in their order."""
    hints = get_type_hints(cls, include_extras=True)
    found = {}
    for each in structs.fields(cls):
        parts = list(_parts(hints[each.name]))
        tuples = sum(get_origin(part) is tuple for part in parts)
        kinds = [part for part in parts if part in _SCALARS]
        others = {get_origin(part) for part in parts} - {None, Annotated, Union, UnionType, tuple}
        if kinds and tuples <= 1 and not others:
            found[each.name] = Declared(
                name=each.name,
                hint=hints[each.name],
                type=kinds[0],
                bounds=next((part for part in parts if isinstance(part, Meta)), Meta()),
                optional=NoneType in parts,
                listed=tuples == 1,
                default=each.default,
                field=next((part for part in parts if isinstance(part, Field)), Field()),
            )
    return MappingProxyType(found)


def _parts(hint: Any) -> Iterator[Any]:
    """Yield an annotation and, recursively, its arguments."""
    yield hint
    for each in get_args(hint):
        yield from _parts(each)


class Record(Struct, frozen=True, forbid_unknown_fields=True):
    """The base class of records. A record is checked when it is created, by its constructor or from JSON.

    Raises UsageError for a value that its field does not allow.
    """

    def __post_init__(self) -> None:
        for name, each in declared(type(self)).items():
            value = getattr(self, name)
            if value is each.default:
                continue  # most are
            found = each.checked(value)
            if found is not value:
                structs.force_setattr(self, name, found)
            whole = each.field.divides
            if whole and found is not None and getattr(self, whole) % found:
                raise UsageError(f"{name} is {found}; it must divide {whole} {getattr(self, whole)}")

    def replace(self, **changes: Any) -> Self:
        """Return a copy with these fields changed."""
        return structs.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return {name: value} of the fields, with plain values for JSON."""
        found: dict[str, Any] = to_builtins(self)
        return found

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the record that `to_dict` converted. Raises UsageError with the field and its value."""
        return read(cls, values, cls.__name__)


def read(kind: type[R], values: Any, name: str) -> R:
    """Convert values from JSON to a type. Raises UsageError, which names the field or else `name`."""
    try:
        return convert(values, kind)
    except ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        if isinstance(error.__cause__, UsageError):
            text = str(error.__cause__)
        elif "unknown field" in text:
            text += ", written by a newer parabench; upgrade parabench"
        place = path.strip(".`") or name
        if not path and isinstance(values, (*_SCALARS, NoneType)):
            place += f" is {values!r}"
        raise UsageError(f"{place}: {text}") from error


def is_text(value: object) -> bool:
    """Return whether a value is a text that UTF-8 can encode. Other bytes arrive as lone surrogates."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)
