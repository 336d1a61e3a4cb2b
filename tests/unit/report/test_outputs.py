"""What stores, files and standard output commands take, and what they say of those that they cannot."""

from __future__ import annotations

import pandas as pd
import pytest

import fake_results as fake
from command_line import parabench
from parabench.analysis.compare.gate import compare
from parabench.analysis.compare.sides import side_of
from parabench.analysis.session import select_session
from parabench.analysis.tables import LAUNCH_NUMBERS, STEP_TIMES, launch_table
from parabench.report.views import gate as compare_report
from parabench.store.results import load

CASES = [fake.case(bucket_mib=size) for size in (1.0, 4.0, 25.0)]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Two sessions, in the folder of a run."""
    path = tmp_path_factory.mktemp("outputs") / "results.db"
    for seed, name in enumerate(("one", "two")):
        fake.write(path, fake.sweep(CASES, lambda _: 0.04, noise=0.001, seed=seed, blocks=4), label=name)
    return path


def test_a_session_is_named_with_the_store_everywhere(store, tmp_path):
    alike = [parabench("best", "--json", "-", f"{store}@{session}").stdout for session in ("one", "1")]
    assert alike[0] == alike[1] != parabench("best", "--json", "-", store.parent).stdout
    page = tmp_path / "page.html"
    assert parabench("report", f"{store.parent}@1", "-o", page).exit_code == 0
    assert "one" in page.read_text().partition("<title>")[2].partition("</title>")[0]
    assert "no instrumented" in parabench("export", f"{store}@one", "--trace", CASES[0].id).stderr


@pytest.mark.parametrize("option", ["--json", "--junit", "--markdown", "--html"])
def test_a_dash_prints_the_file_and_nothing_else(store, tmp_path, option):
    sides = (f"{store}@one", f"{store}@two")
    printed = parabench(
        "compare", *sides, option, "-", "--json" if option != "--json" else "--html", tmp_path / "other"
    )
    written = tmp_path / "file"
    parabench("compare", *sides, option, written)
    assert printed.stdout == written.read_text()
    assert (tmp_path / "other").stat().st_size > 0


def test_what_is_left_out_of_a_store_changes_no_number(store):
    whole, numbers, times = (load(store, rows) for rows in (None, LAUNCH_NUMBERS, STEP_TIMES))
    tables = [launch_table(results, select_session(results)) for results in (whole, numbers, times)]
    for table in tables[1:]:
        pd.testing.assert_frame_equal(table, tables[0])
    assert all("sample" not in vars(results.of([2])) for results in (whole, numbers, times))


def test_launches_that_equal_sides_would_take_are_said_only_where_the_tolerance_is_not_ruled_out(store):
    results = load(store)
    found = {t: compare(side_of(results, 1), side_of(results, 2, "candidate"), tolerance=t) for t in (0.5, 0.001)}
    assert "launches per side for equal sides to pass" not in compare_report.render(found[0.5])
    assert "launches per side for equal sides to pass" in compare_report.render(found[0.001])
