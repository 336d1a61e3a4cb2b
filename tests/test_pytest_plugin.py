from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from parabench.analysis.frames import step_latencies
from parabench.store import load

SUITE = '''"""Does a suite run under pytest?"""
from parabench.suite import sweep
CASES = sweep(
    strategy="ddp", algorithm=("native", "ring"), world_size=(2, 64), global_batch=64, seq_len=8, data="synthetic"
)
'''


def run(folder, *arguments):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "suites", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "mine.py").write_text(SUITE)
    # An ordinary module beside it is nobody's suite.
    (tmp_path / "suites" / "helper.py").write_text("CASES = 3\n")
    return tmp_path


def test_recorded_latencies_are_pytest_benchmarks_raw_data(folder):
    done = run(folder, "--benchmark-json=out.json", "--parabench-launches=2", "--parabench-steps=3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 2 skipped" in done.stdout
    results = load(folder / "parabench-results" / "results.db")
    steps = step_latencies(results.sample).merge(results.launch, left_on="launch_id", right_on="id")
    stored = {case: group["step_s"].tolist() for case, group in steps[steps["block"] >= 0].groupby("case_id")}
    entries = json.loads((folder / "out.json").read_text())["benchmarks"]
    assert {entry["name"]: entry["stats"]["data"] for entry in entries} == stored
    assert {len(data) for data in stored.values()} == {6}
    assert entries[0]["extra_info"]["case"]["strategy"] == "ddp"
    compared = subprocess.run(
        [Path(sys.executable).with_name("pytest-benchmark"), "compare", folder / "out.json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(name in compared.stdout for name in stored)


def test_only_selected_cases_are_launched(folder):
    done = run(folder, "-k", "ring", "--parabench-launches=1", "--parabench-steps=1", "--parabench-set=world_size=2")
    assert "1 passed, 1 deselected" in done.stdout, done.stdout
    launches = load(folder / "parabench-results" / "results.db").launch
    assert list(launches["algorithm"]) == ["native", "ring"]  # the reference, then the one


def test_a_launch_that_fails_fails_its_test_with_the_reason(folder):
    (folder / "broken.py").write_text("def strategy(model, context):\n    raise OSError('no such wire')\n")
    done = run(
        folder, "--parabench-launches=1", "--parabench-set=strategy=broken:strategy", "--parabench-set=world_size=2"
    )
    assert done.returncode == 1
    assert "failed: rank" in done.stdout
    assert "OSError: no such wire" in done.stdout


def test_wrong_options_are_a_line_at_collection(folder):
    done = run(folder, "--parabench-set=world_size=3")
    assert done.returncode == 2
    assert "parabench: global_batch 64 does not divide by world_size 3" in done.stdout
