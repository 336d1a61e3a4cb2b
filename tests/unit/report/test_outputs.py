"""What stores, files and standard output commands take, and what they say of those that they cannot."""

import pandas as pd
import pytest

import fake_results as fake
from command_line import parabench
from parabench.analysis.numbers import LAUNCH_NUMBERS, STEP_TIMES, numbers
from parabench.analysis.session import select_session
from parabench.store.results import load

CASES = [fake.case(bucket_mib=size) for size in (1.0, 4.0, 25.0)]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Two sessions, in the folder of a run."""
    path = tmp_path_factory.mktemp("outputs") / "results.db"
    for seed, name in enumerate(("one", "two")):
        fake.write(path, fake.sweep(CASES, lambda _: 0.04, noise=0.001, seed=seed, repetitions=4), label=name)
    return path


def test_session_is_selected_after_the_database(store, tmp_path):
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


def test_partial_load_gives_equal_numbers(store):
    read = [load(store, rows) for rows in (None, LAUNCH_NUMBERS, STEP_TIMES)]
    whole, launch_numbers, step_times = (numbers(results, select_session(results)) for results in read)
    pd.testing.assert_frame_equal(launch_numbers, whole)
    of_steps = ["launch_id", "case", "label", "timed", "step_s", "p90_s", "drift"]
    pd.testing.assert_frame_equal(step_times[of_steps], whole[of_steps])
    assert all("sample" not in vars(results.of([2])) for results in read)
