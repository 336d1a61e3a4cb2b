"""A large store in a real browser."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks import big_store, report_cost
from browser_helpers import CHROMIUM, needs_chromium
from parabench.report.build import write_report
from parabench.store.results import load

# A minute of making the store and of visiting all that there is.
pytestmark = [*needs_chromium, pytest.mark.slow]

CASES = 500


def test_many_cases_are_opened_filtered_and_sorted_without_a_word(tmp_path, capsys):
    store = tmp_path / "results.db"
    big_store.write(out=store, cases=CASES, launches=2, steps=10, ranks=2, explained=4)
    report = write_report(load(store), tmp_path / "report.html")
    with ThreadPoolExecutor(1) as other:  # another browser of this worker may run in this thread
        assert other.submit(report_cost.read, report, CHROMIUM).result() == []
    told = capsys.readouterr().out
    for use in ("open", "tab data", "buckets: filter strategy", "anatomy: show all", "sort by Case", "open a case"):
        assert f" of processor time  {use}\n" in told
