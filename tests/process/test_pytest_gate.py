"""`pytest suites/ --parabench-baseline`: in this process, with a launcher whose cases take what a test says."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sqlite3
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

import parabench.pytest_plugin.stored_base
import parabench.report.build
import parabench.session.session
from fake_launch import FakeLauncher
from parabench.cluster.participants import Participants
from parabench.plan.case import Case
from parabench.session.request import TrainingRequest
from parabench.session.session import run_session
from parabench.store.record import Failure, Status
from parabench.store.results import load

SUITE = '''"""Did it get slower?"""
from parabench import Protocol, sweep
PROTOCOL = Protocol(warmup=2, steps=2, launches=3, instrumented=0)
CASES = sweep(
    strategy="ddp", algorithm=("native", "ring", "tree"), world_size=2, global_batch=8, seq_len=8, data="synthetic",
)
'''


# What pytest-benchmark makes of a test's rounds, by pandas' names.
STATISTICS = ["min", "max", "mean", "std", "median", "size"]


@pytest.fixture(autouse=True)
def nobodys_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pytest that a test runs is no worker of the one that runs it: pytest-benchmark leaves numbers to those."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


class Lab:
    """A folder with suites, and a launcher: a step of an algorithm takes `step_s`, in every launch a bit else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.step_s = {"native": 0.010, "ring": 0.020, "tree": 0.030, "halving_doubling": 0.040}
        self.noise = 0.0001
        self.launcher = FakeLauncher(self.takes)
        (folder / "suites").mkdir(exist_ok=True)
        self.add("mine")

    def takes(self, case: Case) -> float:
        return self.step_s[case.algorithm] * (1 + self.noise * (len(self.launcher.calls) * 7 % 5 - 2))

    def add(self, name: str) -> None:
        (self.folder / "suites" / f"{name}.py").write_text(SUITE)

    def measure(self, *suites: str) -> None:
        """Add a session of each suite to the baseline, by `parabench run`."""
        for suite in suites or ("mine",):
            path = str(self.folder / "suites" / f"{suite}.py")
            request = TrainingRequest.of(
                suite=path, argv=["parabench"], out=self.folder / "base", label=f"{suite}-label"
            )
            assert run_session(request, Console(quiet=True), self.launcher) == 0

    def alter(self, sql: str) -> None:
        """Change the baseline."""
        with closing(sqlite3.connect(self.folder / "base" / "results.db")) as db, db:
            db.execute(sql)


class Run:
    """One run of pytest in the lab: `out` is what it said."""

    def __init__(self, lab: Lab, pytester: pytest.Pytester, arguments: tuple[str, ...]) -> None:
        lab.launcher.specs.clear()
        # hypothesis's plugin costs more than all the rest.
        plain = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--parabench-out=new")
        if "--parabench-baseline" in arguments and not any("between-sessions" in word for word in arguments):
            plain += ("--parabench-between-sessions=0",)
        result = pytester.runpytest_inprocess("suites", *plain, *arguments)
        self.code = int(result.ret)
        self.out = result.stdout.str() + result.stderr.str()
        self.counts = result.parseoutcomes() if self.code < 2 else {}
        self.launched = len(lab.launcher.calls)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A lab's folder with one session of its suite, to be copied."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parabench.session.session, "conclude", lambda request, session, console: None)
        lab = Lab(tmp_path_factory.mktemp("baseline"))
        lab.measure()
    return lab.folder


@pytest.fixture
def lab(pytester, monkeypatch, measured):
    shutil.copytree(measured, pytester.path, dirs_exist_ok=True)
    lab = Lab(pytester.path)
    for name in ("CI", "BUILD_NUMBER"):  # pytest then writes each failure whole a second time, in its summary
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(parabench.report.build, "write_report", lambda results, output, session: output)
    monkeypatch.setattr(parabench.session.session, "conclude", lambda request, session, console: None)
    monkeypatch.setattr(Participants, "executor", lambda self: lab.launcher)
    return lab


@pytest.fixture
def gate(lab, pytester):
    return lambda *arguments, baseline="base": Run(
        lab, pytester, (*(("--parabench-baseline", baseline) if baseline else ()), *arguments)
    )


def test_the_case_that_got_slower_fails_with_the_sentence(lab, gate):
    lab.step_s["ring"] *= 1.1
    done = gate("--benchmark-only", "--benchmark-json=out.json", "--junit-xml=junit.xml")
    assert (done.code, done.counts, done.launched) == (1, {"failed": 1, "passed": 2}, 1 + 3 * 3)
    slower = "slower: ddp ring, 2 ranks: 20.2 ms -> 22.2 ms, +10 % (95 %: +10 % to +10 %); "
    assert done.out.count(slower) == 2  # its test, and the summary
    assert "parabench mine: session 1 against mine-label of base/results.db" in done.out
    assert "Regression: 1 of 3 cases slower, the worst by 10 % (ddp ring, 2 ranks). Slowdowns" in done.out
    assert "warning: The sides were not interleaved" in done.out
    assert "same: ddp" not in done.out
    # What got slower is in the JSON too, which stays pytest-benchmark's own.
    entries = json.loads((lab.folder / "out.json").read_text())["benchmarks"]
    results = load(lab.folder / "new" / "results.db")
    steps = results.steps.merge(results.launch, left_on="launch_id", right_on="id")
    stored = {case: group["step_s"].tolist() for case, group in steps[steps["block"] >= 0].groupby("case_id")}
    assert {entry["name"]: entry["stats"]["data"] for entry in entries} == stored
    assert {len(data) for data in stored.values()} == {3 * 2}
    command = [sys.executable, "-m", "pytest_benchmark", "compare", lab.folder / "out.json"]
    compared = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(entry["name"] in compared.stdout for entry in entries)
    root = ElementTree.parse(lab.folder / "junit.xml").getroot()
    said = [element.get("value") for element in root.iter("property")]
    assert [line.split(":")[0] for line in said] == ["same", "slower", "same"]
    (failure,) = root.iter("failure")
    assert slower in failure.get("message")


def test_pytest_benchmark_compares_two_runs_by_the_numbers_of_the_store(lab, gate):
    """Of each case and run what it prints, and what it exports, are statistics of the stored steps."""
    gate("--benchmark-json=one.json", baseline=None)
    lab.step_s["ring"] *= 1.5
    gate("--benchmark-json=two.json", baseline=None)
    results = load(lab.folder / "new" / "results.db")
    steps = results.steps.merge(results.launch, left_on="launch_id", right_on="id")
    stored = steps[steps["block"] >= 0].groupby(["case_id", "session_id"])["step_s"].agg(STATISTICS)
    assert [session for _, session in stored.index] == [1, 2] * 3
    command = [sys.executable, "-m", "pytest_benchmark", "compare", "one.json", "two.json", "--csv=compared"]
    command += ["--group-by=name", "--sort=name", "--columns=min,max,mean,stddev,median,rounds"]
    done = subprocess.run(command, cwd=lab.folder, capture_output=True, text=True, check=True)
    with (lab.folder / "compared.csv").open(newline="") as file:
        name, *columns = next(rows := csv.reader(file))
        exported = [(row[0].rpartition("::")[2], list(map(float, row[1:]))) for row in rows]
    assert (name, columns) == ("name", ["min", "max", "mean", "stddev", "median", "rounds"])
    assert [case for case, _ in exported] == [case for case, _ in stored.index]
    for (_, values), expected in zip(exported, stored.itertuples(index=False), strict=True):
        assert values == pytest.approx(expected, rel=1e-9)
    printed = re.findall(r"^(\S+) \((one|two)\) +([\d.]+) ", done.stdout, re.MULTILINE)
    shown = [(case, number, f"{1e3 * row['min']:.4f}") for (case, number), row in stored.iterrows()]
    assert [(case, {"one": 1, "two": 2}[run], least) for case, run, least in printed] == shown


def test_no_regression_passes_and_nothing_is_dropped(lab, gate):
    done = gate("--parabench-set=algorithm=native,ring,halving_doubling")
    assert (done.code, done.counts) == (0, {"passed": 3})
    assert "No regression: 2 of 4 cases judged. Slowdowns above 2 % are ruled out in every case judged" in done.out
    assert "only in candidate: ddp halving_doubling, 2 ranks: not measured in mine-label" in done.out
    assert "only in base, because not selected in this run: ddp tree, 2 ranks" in done.out


def test_what_is_gone_from_the_suite_itself_is_inconclusive(lab, gate):
    path = lab.folder / "suites" / "mine.py"
    path.write_text(SUITE.replace(', "tree"', ""))
    done = gate()
    assert (done.code, done.counts) == (0, {"inconclusive": 2})
    assert "Inconclusive: 2 of 3 cases judged: 1 is only in base (ddp tree, 2 ranks). Measure" in done.out
    assert gate("--parabench-inconclusive=fail").code == 1


def test_cases_that_were_not_selected_are_named_as_such(lab, gate):
    done = gate("-k", "ring", "-v")
    assert (done.code, done.counts, done.launched) == (0, {"passed": 1, "deselected": 2}, 1 + 3)
    line = "only in base, because not selected in this run: ddp native, 2 ranks; ddp tree, 2 ranks"
    assert line in done.out
    assert "only in base:" not in done.out


def test_the_first_that_failed_stops_and_the_verdict_is_said(lab, gate):
    lab.step_s["native"] *= 1.1
    done = gate("-x")
    assert (done.code, done.counts) == (1, {"failed": 1})
    assert "Regression: 1 of 3 cases slower" in done.out


def test_what_no_longer_ends_well_is_a_regression(lab, gate):
    lab.launcher.failing["ddp"] = (Status.OOM, Failure("out of memory", rank=1))
    done = gate()
    assert (done.code, done.counts) == (1, {"failed": 3})
    broke = "broke: ddp ring, 2 ranks: was ok, is oom: rank 1: out of memory"
    assert done.out.count(broke) == 2
    assert "Regression: 3 cases newly failing" in done.out


def test_inconclusive_is_neither_a_pass_nor_a_failure_but_on_demand(lab, gate):
    lab.noise = 0.02
    done = gate()
    assert (done.code, done.counts) == (0, {"passed": 1, "inconclusive": 2})
    assert "Inconclusive: slowdowns above 2 % are not ruled out in 2 of 3 cases (95 %; the largest upper" in done.out
    assert "unclear: ddp ring, 2 ranks: " in done.out
    done = gate("--parabench-inconclusive=fail")
    assert (done.code, done.counts) == (1, {"failed": 2, "passed": 1})
    assert "inconclusive: unclear: ddp ring, 2 ranks: " in done.out
    # What is ruled out is a matter of what is asked for.
    assert gate("--parabench-tolerance=40%", "--parabench-alpha=0.05").counts == {"passed": 3}


def test_a_baseline_of_one_session_passes_nothing_while_sessions_may_differ(lab, gate):
    """Unless given, sessions are taken to differ by 5 %; with four in the baseline by what these do."""
    done = gate("--parabench-between-sessions=5%")
    assert (done.code, done.counts) == (0, {"inconclusive": 3})
    assert (
        "Sessions are assumed to differ by 5 % (standard deviation, --between-sessions): there is 1 session" in done.out
    )
    lab.measure("mine", "mine", "mine")
    done = gate("--parabench-between-sessions=5%")
    assert (done.code, done.counts) == (0, {"passed": 3})
    assert "in the bounds, from 4 sessions of base's suite and environment in its store" in done.out


def test_too_few_launches_are_inconclusive(lab, gate):
    done = gate("--parabench-launches=1")
    assert (done.code, done.counts) == (0, {"inconclusive": 3})
    note = "cannot be judged: ddp ring, 2 ranks: 20.2 ms -> 20.2 ms, "
    assert note in done.out
    assert "2 successful launches per side are needed; there are 3 and 1" in done.out


def test_what_was_fixed_alone_judges_nothing(lab, gate):
    lab.alter("UPDATE launch SET status = 'crashed' WHERE algorithm = 'ring'")
    done = gate("-k", "ring")
    assert (done.code, done.counts) == (0, {"inconclusive": 1, "deselected": 2})
    assert "fixed: ddp ring, 2 ranks: was crashed, is ok" in done.out


def test_another_machine_is_refused_before_anything_is_launched(lab, gate):
    lab.alter("UPDATE session SET environment = json_set(environment, '$.cpu', 'Another')")
    done = gate()
    assert (done.code, done.counts, done.launched) == (1, {"failed": 3}, 0)
    assert done.out.count("parabench: the sides differ in what decides a step time: cpu (Another in base, ") == 3
    assert "--parabench-changed cpu" in done.out
    assert not (lab.folder / "new").exists()
    done = gate("--parabench-changed=cpu")
    assert (done.code, done.counts) == (0, {"passed": 3})
    assert "cpu differs: Another in base, " in done.out


def test_only_new_cases_are_refused_before_anything_is_launched(lab, gate):
    done = gate("--parabench-set=algorithm=halving_doubling")
    assert (done.counts, done.launched) == ({"failed": 1}, 0)
    assert "parabench: no case of this run is in mine-label of base/results.db, so nothing can be judged" in done.out


@pytest.mark.parametrize(
    ("baseline", "arguments", "line"),
    [
        ("none", (), "parabench: --parabench-baseline: none does not exist; give the results.db of a run"),
        ("suites/mine.py", (), "suites/mine.py is not a parabench store"),
        ("base@old", (), "session 'old' is not in base/results.db; it holds 1 (mine-label)"),
        ("base", ("--parabench-tolerance=two",), "--parabench-tolerance: 'two' is not a fraction in [0, 1)"),
        ("base", ("--parabench-between-sessions=x",), "--parabench-between-sessions: 'x' is not a fraction in [0, 1)"),
        ("base", ("--parabench-alpha=0.7",), "--parabench-alpha: 0.7 is not in the range 0.0001<=x<=0.5"),
        ("base", ("--parabench-alpha=1e-300",), "--parabench-alpha: 1e-300 is not in the range 0.0001<=x<=0.5"),
        ("base", ("--parabench-alpha=nan",), "--parabench-alpha: nan is not in the range 0.0001<=x<=0.5"),
        (None, ("--parabench-alpha=0.01",), "--parabench-alpha means nothing without --parabench-baseline STORE"),
    ],
)
def test_wrong_options_are_a_line_before_anything_is_collected(lab, gate, baseline, arguments, line):
    done = gate(*arguments, baseline=baseline)
    assert (done.code, done.launched) == (pytest.ExitCode.USAGE_ERROR, 0)
    assert line in done.out
    assert "Traceback" not in done.out


def test_the_store_that_is_written_may_be_the_baseline(lab, gate):
    """Its newest finished session of before is meant, or the one that is named."""
    lab.step_s["ring"] *= 1.1
    lab.measure()
    lab.step_s["ring"] /= 1.1
    lab.measure()
    lab.alter("UPDATE session SET finished_utc = NULL WHERE id = 3")
    lab.step_s["ring"] *= 1.1
    before = (lab.folder / "base" / "results.db").read_bytes()
    done = gate("--parabench-out=base")
    assert (done.code, done.counts) == (0, {"passed": 3})
    assert "mine: session 4 against mine-label of base/results.db" in done.out
    for named in ("base@1", "base@mine-label"):  # the newest of that label is the third
        (lab.folder / "base" / "results.db").write_bytes(before)
        assert gate("--parabench-out=base", baseline=named).counts == {"failed": 1, "passed": 2}, named


def test_each_suite_is_compared_with_its_own_session(lab, gate):
    lab.add("other")
    lab.step_s["ring"] *= 1.1
    lab.measure("other")
    lab.step_s["ring"] /= 1.1
    lab.add("third")
    done = gate()
    # `other` got faster, `mine` stayed, and of `third` there is nothing.
    assert (done.code, done.counts, done.launched) == (1, {"failed": 3, "passed": 6}, 2 * (1 + 3 * 3))
    missing = "parabench: baseline base/results.db holds no finished session of suite 'third', only of mine; other;"
    assert done.out.count(missing) == 3
    assert "mine: session 1 against mine-label of base/results.db" in done.out
    assert "other: session 2 against other-label of base/results.db" in done.out
    assert done.out.count("No regression. Slowdowns above 2 % are ruled out (95 %; the largest") == 2
    assert "faster: ddp ring, 2 ranks: 22.2 ms -> 20.2 ms" in done.out
    # A session that is named is meant for every suite that it does not name better.
    assert gate("-k", "third", baseline="base@2").counts["passed"] == 3


def test_suites_share_the_rate_of_false_alarms(lab, gate, monkeypatch):
    asked = []
    compare = parabench.pytest_plugin.stored_base.compare
    monkeypatch.setattr(
        parabench.pytest_plugin.stored_base, "compare", lambda *args: asked.append(args[3]) or compare(*args)
    )
    lab.add("other")
    lab.measure("other")
    assert gate("--parabench-alpha=0.02").counts == {"passed": 6}
    assert asked == [0.01, 0.01]


def test_pytest_starts_as_quickly_as_before():
    """What the gate needs is imported only with a baseline."""
    code = (
        "import sys, parabench.pytest_plugin; "
        "assert not {'click', 'numpy', 'parabench.pytest_plugin.gate'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
