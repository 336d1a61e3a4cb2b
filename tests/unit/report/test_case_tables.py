"""Tables of cases are bounded, say so, and are tied to their cases; figures hold no digit that nobody sees."""

from __future__ import annotations

import math
import re

import pandas as pd
import pytest

import fake_results as fake
from parabench.report import page_data
from parabench.report.packing import rounded
from parabench.report.spec import MOST_CASES, MOST_ROWS, WORDED, Column, case_table, table_of
from parabench.report.views import gate
from paths import ROOT


def table(cases, rows_each=1):
    rows = pd.DataFrame([{"case_id": f"c{i}", "n": j} for i in range(cases) for j in range(rows_each)])
    return case_table("Title", (Column("Case", "case_id"), Column("n", "n", WORDED)), rows, note="Read it so.")


def test_few_cases_are_all_listed_each_row_with_its_case():
    found = table(2, 2)
    assert found.rows == [("c0", "0"), ("c0", "1"), ("c1", "0"), ("c1", "1")]
    assert found.cases == ("c0", "c0", "c1", "c1")
    assert found.note == "Read it so."


@pytest.mark.parametrize(("cases", "rows_each", "listed", "said"), [
    (10_000, 1, MOST_CASES, f"Listed are {MOST_CASES} of 10,000 cases, the fastest; the store has all."),
    (1, 1000, MOST_ROWS, f"Listed are {MOST_ROWS} of 1,000 rows, the fastest; the store has all."),
    (40, 10, MOST_ROWS, "Listed are 30 of 40 cases, the fastest; the store has all."),
])  # fmt: skip
def test_of_many_the_first_are_listed_and_it_is_said(cases, rows_each, listed, said):
    found = table(cases, rows_each)
    assert (len(found.rows), len(found.cases)) == (listed, listed)
    assert found.rows[0] == ("c0", "0")
    assert found.note == f"Read it so. {said}"


def test_a_column_finds_its_value_by_path_or_works_it_out_and_unknown_is_a_dash():
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


def test_numbers_of_figures_are_rounded_wherever_they_stand_and_nothing_else_is():
    figure = {"x": [0.123456789, 1234567.0, 3.0, None, -0.0], "n": 123456789, "on": True, "t": "0.123456789"}
    assert rounded({"data": [figure]}) == {
        "data": [{"x": [0.12346, 1234600, 3, None, 0], "n": 123456789, "on": True, "t": "0.123456789"}]
    }
    assert isinstance(rounded(3.0), int)


def test_the_page_can_say_every_format_of_a_column_that_it_fills():
    script = ROOT / "reports" / "script"
    known = [re.findall(r"^  (\w+): ", (script / name).read_text(encoding="utf-8"), re.M)
             for name in ("table/columns.js", "core/format.js")]  # fmt: skip
    columns = [*gate.COLUMNS, *page_data.LAUNCH_COLUMNS, *page_data.case_columns_shown("tokens", True)]
    assert {column.format for column in columns} <= {name for names in known for name in names}
