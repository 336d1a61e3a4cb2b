"""A field that is declared once is checked, read from text and offered as an option as it says."""

from typing import Annotated, Any

import numpy as np
import pytest
from msgspec import NODEFAULT, Meta

from parabench.errors import UsageError
from parabench.plan.case import BaseCase, Case
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.collective_protocol import CollectiveProtocol
from parabench.plan.fields import parse_field
from parabench.plan.protocol import Protocol
from parabench.records import Field, Record, declared

EVERY = (Case, Protocol, CollectiveCase, CollectiveProtocol)


class Sample(BaseCase, frozen=True, kw_only=True):
    size: Annotated[int, Meta(ge=1)] = 4
    part: Annotated[Annotated[int, Meta(ge=1, le=8)] | None, Field(unset="auto", option="--part")] = None
    share: Annotated[float, Meta(gt=0, le=1), Field(option="--share-of-it")] = 0.5
    kind: Annotated[str, Field(choices=("a", "b"), option="--kind")] = "a"
    deep: Annotated[bool, Field(option="--deep")] = False


class Several(Record, frozen=True):
    samples: tuple[Sample, ...]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"part": 9}, "part is 9; it must be a whole number from 1 to 8, or auto"),
        ({"deep": 1}, "deep is 1; it must be true or false"),
        ({"size": np.float64(0.5)}, "size is 0.5; it must be a whole number of 1 or more"),
    ],
)
def test_field_error_names_the_allowed_values(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        Sample(**values)
    assert str(error.value) == said


def test_record_holds_plain_numbers() -> None:
    sample = Sample(size=np.int64(8), share=np.int64(1))  # type: ignore[arg-type]
    assert repr((sample.size, sample.share)) == "(8, 1.0)"


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"size": 0}, "samples[1].size: Expected `int` >= 1"),
        ({"kind": "c"}, "samples[1]: kind 'c' is unknown; use one of a, b"),
        ({"new": 1}, "samples[1]: Object contains unknown field `new`, written by a newer parabench; "
                     "upgrade parabench"),
    ],
)  # fmt: skip
def test_reading_json_names_field_and_value(values: dict[str, Any], error: str) -> None:
    good = Sample(part=2, share=0.25, deep=True)
    written = {"samples": [good.to_dict(), good.to_dict()]}
    assert Several.from_dict(written) == Several((good, good))
    written["samples"][1] |= values
    with pytest.raises(UsageError) as raised:
        Several.from_dict(written)
    assert str(raised.value) == error


def test_a_field_is_read_from_text() -> None:
    part, share, deep = (declared(Sample)[name] for name in ("part", "share", "deep"))
    assert parse_field(part, "1, auto,4") == (1, None, 4)
    assert parse_field(share, "0.25") == (0.25,)
    assert parse_field(deep, "on,no") == (True, False)
    for text in ("", "1,", "x", "1.5"):
        with pytest.raises(UsageError, match="is not a value of part"):
            parse_field(part, text)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: str(kind.__name__))
def test_every_declared_field_has_bounds_and_help(kind: Any) -> None:
    for name, each in declared(kind).items():
        assert each.type in (bool, int, float, str), f"{kind.__name__}.{name}: no scalar"
        if each.default is not NODEFAULT:
            each.checked(each.default)
        assert bool(each.field.option) == bool(each.field.help), f"{kind.__name__}.{name}: an option has a help text"
        if each.type in (int, float):
            bounds = (each.bounds.ge, each.bounds.gt)
            assert bounds != (None, None), f"{kind.__name__}.{name}: it has no lower bound"


def test_every_axis_can_be_set_to_its_default() -> None:
    for name, each in declared(Case).items():
        text = each.field.unset if each.default is None or each.default == "" else str(each.default)
        assert parse_field(each, text) == (each.default,), f"{name}: declare Field(unset=...), the word for its default"
