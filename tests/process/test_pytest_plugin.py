import csv
import json
import os
import re
import subprocess
import sys

import pytest

import parabench.report.build
import parabench.session.session
from fake_launch import FakeLauncher
from parabench.cluster.topology import Participants
from parabench.machine.accelerator import Gpu
from parabench.machine.machine import Machine
from parabench.store.results import load
from paths import ROOT

SUITE = '''"""Does a suite run under pytest?"""
from parabench import Protocol, sweep
PROTOCOL = Protocol(warmup=2, steps=3, launches=2, instrumented=0)
CASES = sweep(
    strategy=("ddp", "broken:strategy"), algorithm=("native", "ring"), world_size=(2, 64), global_batch=64, seq_len=8,
    data="synthetic",
)
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pytest")
    (folder / "suites").mkdir()
    (folder / "suites" / "mine.py").write_text(SUITE)
    # An ordinary module in the same folder is not a suite.
    (folder / "suites" / "helper.py").write_text("CASES = 3\n")
    # Nor is one that writes a suite.
    (folder / "suites" / "writer.py").write_text("SUITE = '''\nfrom parabench import sweep\nCASES = sweep()\n'''\n")
    (folder / "broken.py").write_text("def strategy(model, context):\n    raise OSError('no such wire')\n")
    return folder


@pytest.fixture(scope="module")
def done(folder):
    """Run pytest once with real launches, as a user does."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "suites", "-k", "ring"]
    command += ["--parabench-launches=1", "--benchmark-json=out.json"]
    # No worker of the pytest that runs this: pytest-benchmark leaves numbers to those.
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def results(folder, done):
    return load(folder / "parabench-results" / "results.db")


def test_only_selected_cases_are_launched(done, results):
    assert "1 failed, 1 passed, 2 skipped, 4 deselected" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1
    launched = zip(results.launch["strategy"], results.launch["algorithm"], strict=True)
    assert sorted(launched) == [("broken:strategy", "ring"), ("ddp", "ring"), ("single", "native")]  # and the reference


def test_recorded_step_times_are_pytest_benchmarks_raw_data(folder, results):
    steps = results.steps.merge(results.launch, left_on="launch_id", right_on="id")
    stored = {case: group["step_s"].tolist() for case, group in steps[steps["repetition"] >= 0].groupby("case_id")}
    (entry,) = json.loads((folder / "out.json").read_text())["benchmarks"]
    assert {entry["name"]: entry["stats"]["data"]} == stored
    assert len(entry["stats"]["data"]) == 3
    assert entry["extra_info"]["case"]["strategy"] == "ddp"


def test_a_launch_that_fails_fails_its_test_with_the_reason(done):
    assert "failed: rank" in done.stdout
    assert "OSError: no such wire" in done.stdout
    assert "Benchmark fixture was not used" not in done.stdout


def test_wrong_options_are_a_line_at_collection(pytester):
    pytester.mkdir("suites").joinpath("mine.py").write_text(SUITE)
    done = pytester.runpytest_inprocess("suites", "-p", "no:hypothesispytest", "--parabench-set=world_size=3")
    assert done.ret == 2
    assert "parabench: global_batch 64 does not divide by world_size 3" in done.stdout.str()
    both = ("--parabench-steps=3", "--parabench-measure-seconds=1", "--parabench-warmup-seconds=2")
    done = pytester.runpytest_inprocess("suites", "-p", "no:hypothesispytest", *both)
    assert done.ret == 2
    said = "parabench: steps is 3 and measure_s is 1; give steps (--steps) or seconds (--measure-seconds), not both"
    assert said in done.stdout.str()


FAKED = SUITE.replace('("ddp", "broken:strategy")', '"ddp"').replace("(2, 64)", "2")
# pytest-benchmark's statistics of a test's rounds, by pandas' names.
STATISTICS = ["min", "max", "mean", "std", "median", "size"]


def test_pytest_benchmark_compares_two_runs(pytester, monkeypatch):
    """The printed and exported statistics are computed from the stored steps."""
    step_s = {"native": 0.010, "ring": 0.020}
    launcher = FakeLauncher(lambda case: step_s[case.algorithm] * (1 + 1e-4 * len(launcher.calls)))
    monkeypatch.setattr(parabench.report.build, "write_report", lambda results, output, session: output)
    monkeypatch.setattr(parabench.session.session, "conclude", lambda request, session, console: None)
    monkeypatch.setattr(Participants, "executor", lambda self: launcher)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.mkdir("suites").joinpath("mine.py").write_text(FAKED)
    for run in ("one", "two"):
        done = pytester.runpytest_inprocess("suites", "-p", "no:hypothesispytest", f"--benchmark-json={run}.json")
        assert done.ret == 0, done.stdout.str()
        step_s["ring"] *= 1.5
    results = load(pytester.path / "parabench-results" / "results.db")
    steps = results.steps.merge(results.launch, left_on="launch_id", right_on="id")
    stored = steps[steps["repetition"] >= 0].groupby(["case_id", "session_id"])["step_s"].agg(STATISTICS)
    assert [session for _, session in stored.index] == [1, 2] * 2
    command = [sys.executable, "-m", "pytest_benchmark", "compare", "one.json", "two.json", "--csv=compared"]
    command += ["--group-by=name", "--sort=name", "--columns=min,max,mean,stddev,median,rounds"]
    done = subprocess.run(command, cwd=pytester.path, capture_output=True, text=True, check=True)
    with (pytester.path / "compared.csv").open(newline="") as file:
        name, *columns = next(rows := csv.reader(file))
        exported = [(row[0].rpartition("::")[2], list(map(float, row[1:]))) for row in rows]
    assert (name, columns) == ("name", ["min", "max", "mean", "stddev", "median", "rounds"])
    assert [case for case, _ in exported] == [case for case, _ in stored.index]
    for (_, values), expected in zip(exported, stored.itertuples(index=False), strict=True):
        assert values == pytest.approx(expected, rel=1e-9)
    printed = re.findall(r"^(\S+) \((one|two)\) +([\d.]+) ", done.stdout, re.MULTILINE)
    shown = [(case, number, f"{1e3 * row['min']:.4f}") for (case, number), row in stored.iterrows()]
    assert [(case, {"one": 1, "two": 2}[run], least) for case, run, least in printed] == shown


def test_pytest_loads_the_plugin_without_numpy():
    """Every pytest run in the environment loads the plugin, so it must be fast to import."""
    code = "import sys, parabench.pytest_plugin; assert not {'click', 'numpy'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)


ONE_GPU = Machine(cores=2, gpus=(Gpu("NVIDIA H100 80GB HBM3", 80 * 10**9),))


@pytest.fixture
def one_gpu(monkeypatch):
    monkeypatch.setattr("parabench.machine.machine.this_machine", lambda: ONE_GPU)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # pytest-benchmark warns in a worker


@pytest.mark.usefixtures("one_gpu")
def test_suite_that_one_gpu_cannot_run_is_skipped(pytester):
    """A suite that needs several GPUs is skipped on one GPU. A mistake in a suite is still an error."""
    suites = [str(ROOT / "suites" / f"{name}.py") for name in ("algorithms", "bucket_size")]
    done = pytester.runpytest_inprocess(*suites, "-rs", "-p", "no:hypothesispytest")
    assert done.ret == 0, done.stdout.str()
    assert {"skipped"} == done.parseoutcomes().keys()
    assert "world_size 2 is larger than the 1 device(s) here" in done.stdout.str()
    wrong = pytester.makepyfile(wrong=SUITE.replace("seq_len=8", "seq_length=8"))
    done = pytester.runpytest_inprocess(str(wrong), "-p", "no:hypothesispytest")
    assert done.ret == 2
    assert "axis 'seq_length' is unknown" in done.stdout.str()
