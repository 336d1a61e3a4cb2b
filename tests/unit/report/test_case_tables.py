"""Tables are bounded and have ids of configurations; formats of numbers; tables as the page embeds them."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from parabench.report.cases import packed
from parabench.report.spec import FORMATS, MOST_ROWS, WORDED, Column, table_of


def test_table_lists_the_first_rows_with_a_note():
    rows = pd.DataFrame({"case_id": [f"c{i}" for i in range(1000)], "n": range(1000)})
    found = table_of("Title", (Column("Case", "case_id"), Column("n", "n", WORDED)), rows, note="Read it so.")
    assert (len(found.rows), len(found.cases)) == (MOST_ROWS, MOST_ROWS)
    assert (found.rows[0], found.cases[0]) == (("c0", "0"), "c0")
    assert found.note == f"Read it so. Listed are {MOST_ROWS} of 1,000 rows; the results database has all."


@pytest.mark.parametrize("kind", [dict, lambda **row: SimpleNamespace(**row)])
def test_column_reads_a_field_or_calls_a_function(kind):
    rows = [kind(name="ddp", a=0.0412, b=None), kind(name="fsdp", a=math.nan, b=2e-3)]
    columns = (Column("Strategy", "name"), Column("a, ms", "a", "ms"), Column("b, ms", "b", "ms", "unknown"))
    found = table_of("Title", (*columns, Column("Ranks", lambda row: "2 of 8", WORDED)), rows, closed=False)
    assert (found.head, found.texts) == (("Strategy", "a, ms", "b, ms", "Ranks"), 1)
    assert found.rows == [("ddp", "41.2", "unknown", "2 of 8"), ("fsdp", "–", "2.00", "2 of 8")]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("ms", 0.0412, "41.2"),
        ("ms", 0.009999, "10.0"),
        ("ms", 0, "0"),
        ("ms", None, "–"),
        ("us", 1.23e-05, "12.3"),
        ("seconds", 61.26, "61.3 s"),
        ("digits", 1234567, "1,234,567"),
        ("mib", 262144, "0.250"),
        ("count", 1234, "1,234"),
        ("rate", 12449, "12,400"),
        ("percent", 0.0995, "10%"),
        ("percent", 5e-05, "<0.01%"),
        ("percent", -10.5, "<−1,000%"),
        ("percent", math.nan, "–"),
        ("signed", 0.092, "+9.2%"),
    ],
)
def test_format_of_number(name, value, text):
    assert FORMATS[name](value) == text


@pytest.mark.parametrize(
    ("values", "embedded"),
    [
        ([None, None], [None, None]),
        ([np.nan, 300.0, 200.0], [None, 300, 200]),
        ([True, None], [True, None]),
        ([0.123456789, 12345.678], [0.12346, 12346]),
        ([123456789, 5], [123456789, 5]),  # whole numbers stay exact
        ([], []),
    ],
)
def test_table_is_embedded_as_json(values, embedded):
    assert packed(pd.DataFrame({"a": values})) == {"n": len(values), "a": embedded}
