"""A field that is declared once is checked, read from text and offered as an option as it says."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import Annotated, Any

import pytest

from parabench.errors import UsageError
from parabench.plan.case import Case
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.collective_protocol import CollectiveProtocol, CollectiveSweep
from parabench.plan.fields import Checked, Field, declared, option_fields, parse_field, typed
from parabench.plan.protocol import Protocol

EVERY = (Case, Protocol, CollectiveCase, CollectiveProtocol, CollectiveSweep)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Checked):
    size: Annotated[int, Field(least=1)] = 4
    part: Annotated[int | None, Field(least=1, most=8, divides="size", unset="auto", option="--part")] = None
    share: Annotated[float, Field(above=0, most=1, option="--share-of-it")] = 0.5
    kind: Annotated[str, Field(choices=("a", "b"), option="--kind")] = "a"
    deep: Annotated[bool, Field(option="--deep")] = False


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"size": 0}, "size is 0; it must be a whole number of 1 or more"),
        ({"size": True}, "size is True; it must be a whole number of 1 or more"),
        ({"size": None}, "size is None; it must be a whole number of 1 or more"),
        ({"part": 9}, "part is 9; it must be a whole number from 1 to 8, or auto"),
        ({"part": 3}, "part is 3; it must divide size 4"),
        ({"share": 0}, "share is 0; it must be a number above 0 and at most 1 (--share-of-it)"),
        ({"share": float("nan")}, "share is nan; it must be a number above 0 and at most 1 (--share-of-it)"),
        ({"kind": "c"}, "kind 'c' is unknown; use one of a, b"),
        ({"kind": "\udcff"}, "kind is '\\udcff'; it must be a text in UTF-8"),
        ({"deep": 1}, "deep is 1; it must be true or false"),
    ],
)
def test_what_a_field_cannot_hold_is_said_with_what_it_can(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        Sample(**values)
    assert str(error.value) == said


def test_json_holds_all_fields_and_those_of_a_newer_version_are_left_out() -> None:
    sample = Sample(part=2, share=0.25, deep=True)
    assert Sample.from_dict(sample.to_dict() | {"from_the_future": 1}) == sample


def test_a_field_is_read_from_text() -> None:
    part, share, deep = (declared(Sample)[name] for name in ("part", "share", "deep"))
    assert parse_field(part, "1, auto,4") == (1, None, 4)
    assert parse_field(share, "0.25") == (0.25,)
    assert parse_field(deep, "on,no") == (True, False)
    for text in ("", "1,", "x", "1.5"):
        with pytest.raises(UsageError, match="is not a value of part"):
            parse_field(part, text)


def test_what_was_given_is_said_as_it_is_typed() -> None:
    assert list(option_fields(Sample)) == ["part", "share", "kind", "deep"]
    given = {"deep": True, "share": 1, "part": None, "from_the_future": 1}
    assert typed(Sample, given) == ["--share-of-it", "1.0", "--deep"]
    assert typed(Sample, {"deep": False, "part": 2}) == ["--part", "2"]


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: str(kind.__name__))
def test_every_field_that_is_declared_is_one_that_can_be_checked_and_offered(kind: Any) -> None:
    for name, each in declared(kind).items():
        assert each.type in (bool, int, float, str), f"{kind.__name__}.{name}: no type of fields.py"
        if each.default is not MISSING:
            each.check(each.default)
        assert bool(each.field.option) == bool(each.field.help), f"{kind.__name__}.{name}: an option has a help text"
        if each.type in (int, float):
            bounds = (each.field.least, each.field.above)
            assert bounds != (None, None) or kind is CollectiveSweep, f"{kind.__name__}.{name}: it has no lower bound"


def test_every_axis_can_be_set_to_its_default_on_the_command_line() -> None:
    for name, each in declared(Case).items():
        text = each.field.unset if each.default is None or each.default == "" else str(each.default)
        assert parse_field(each, text) == (each.default,), f"{name}: declare Field(unset=...), the word for its default"
