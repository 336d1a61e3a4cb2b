"""Tables are bounded and have ids of configurations; formats of numbers."""

from __future__ import annotations

import math

import pandas as pd
import pytest

import fake_results as fake
from parabench.report.spec import ERROR, FORMATS, MOST_ROWS, REPETITION, STATUS, WORDED, Column, out_of, table_of


def test_table_lists_the_first_rows_with_a_note():
    rows = pd.DataFrame({"case_id": [f"c{i}" for i in range(1000)], "n": range(1000)})
    found = table_of("Title", (Column("Case", "case_id"), Column("n", "n", WORDED)), rows, note="Read it so.")
    assert (len(found.rows), len(found.cases)) == (MOST_ROWS, MOST_ROWS)
    assert (found.rows[0], found.cases[0]) == (("c0", "0"), "c0")
    assert found.note == f"Read it so. Listed are {MOST_ROWS} of 1,000 rows; the results database has all."


def test_column_reads_a_path_or_calls_a_function():
    rows = [{"case": fake.case(), "s": (0.0412, None)}, {"case": fake.case(strategy="fsdp"), "s": (math.nan, 2e-3)}]
    columns = (
        Column("Strategy", "case.strategy"),
        Column("a, ms", "s.0", "ms"),
        Column("b, ms", "s.1", "ms", "unknown"),
        Column("Ranks", lambda row: f"{row['case'].world_size} of 8", WORDED),
    )
    found = table_of("Title", columns, rows, closed=False)
    assert (found.head, found.texts) == (("Strategy", "a, ms", "b, ms", "Ranks"), 1)
    assert found.rows == [("ddp", "41.2", "unknown", "2 of 8"), ("fsdp", "–", "2.00", "2 of 8")]


@pytest.mark.parametrize(
    ("column", "row", "cell"),
    [
        (Column("", "ok", show=out_of("ok", "all")), {"ok": 3, "all": 1200}, "3 of 1,200"),
        (Column("", "ok", show=out_of("ok", "all")), {"ok": math.nan, "all": 3}, "–"),
        (STATUS, {"status": "oom"}, {"text": "oom", "bad": True}),
        (STATUS, {"status": "ok"}, "ok"),
        (REPETITION, {"repetition": -1}, "reference"),
        (Column("", "why", ERROR, ""), {"why": None}, ""),
        (Column("", "s.1", "ms"), {"s.1": 0.05}, "50.0"),
    ],
)
def test_script_table_cell_has_text_and_mark(column, row, cell):
    assert column.cell(row) == cell


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("ms", 0.0412, "41.2"),
        ("ms", 1.2346, "1,235"),
        ("ms", 0.00999, "9.99"),
        ("ms", 0.009999, "10.0"),
        ("ms", 0, "0"),
        ("ms", None, "–"),
        ("us", 1.23e-05, "12.3"),
        ("seconds", 61.26, "61.3 s"),
        ("seconds", 0.5, "0.500 s"),
        ("digits", 1234567, "1,234,567"),
        ("digits", 0.000123, "0.000123"),
        ("digits", -2.5, "-2.50"),
        ("digits", None, "–"),
        ("mib", 1048576, "1.00"),
        ("mib", 107374182400, "102,400"),
        ("mib", 262144, "0.250"),
        ("count", 1234, "1,234"),
        ("count", 0, "0"),
        ("count", None, "–"),
        ("rate", 12449, "12,400"),
        ("rate", 999.6, "1,000"),
        ("rate", 0.05123, "0.0512"),
        ("rate", None, "–"),
        ("percent", 0.004, "0.4%"),
        ("percent", 0.0994, "9.9%"),
        ("percent", 0.0995, "10%"),
        ("percent", -0.25, "−25%"),
        ("percent", 0.0002, "0.02%"),
        ("percent", 5e-05, "<0.01%"),
        ("percent", 10.5, ">1,000%"),
        ("percent", -10.5, "<−1,000%"),
        ("percent", 0, "0.0%"),
        ("percent", None, "–"),
        ("signed", 0.092, "+9.2%"),
        ("signed", -0.004, "−0.4%"),
        ("signed", 0, "+0.0%"),
        ("signed", 5e-05, "<0.01%"),
        ("signed", -5e-05, "<0.01%"),
        ("signed", 10.5, ">+1,000%"),
        ("signed", -10.5, "<−1,000%"),
        ("signed", None, "–"),
    ],
)
def test_format_of_number(name, value, text):
    assert FORMATS[name](value) == text
