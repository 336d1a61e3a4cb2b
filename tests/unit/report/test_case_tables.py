"""Tables of cases are bounded, say so, and are tied to their cases; figures hold no digit that nobody sees."""

from __future__ import annotations

import math
import re

import pandas as pd

import fake_results as fake
from parabench.report import page_data
from parabench.report.spec import MOST_ROWS, WORDED, Column, table_of
from parabench.report.views import gate
from paths import ROOT


def test_table_lists_the_first_rows_with_a_note():
    rows = pd.DataFrame({"case_id": [f"c{i}" for i in range(1000)], "n": range(1000)})
    found = table_of("Title", (Column("Case", "case_id"), Column("n", "n", WORDED)), rows, note="Read it so.")
    assert (len(found.rows), len(found.cases)) == (MOST_ROWS, MOST_ROWS)
    assert (found.rows[0], found.cases[0]) == (("c0", "0"), "c0")
    assert found.note == f"Read it so. Listed are {MOST_ROWS} of 1,000 rows; the store has all."


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


def test_the_page_can_say_every_format_of_a_column_that_it_fills():
    script = ROOT / "reports" / "script"
    known = [re.findall(r"^  (\w+): ", (script / name).read_text(encoding="utf-8"), re.M)
             for name in ("table/columns.js", "core/format.js")]  # fmt: skip
    columns = [*gate.COLUMNS, *page_data.LAUNCH_COLUMNS, *page_data.case_columns_shown("tokens", True)]
    assert {column.format for column in columns} <= {name for names in known for name in names}
