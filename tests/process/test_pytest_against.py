"""`pytest suites/ --parabench-against SIDE`: sides in this process, whose launches are faked; and real ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import parabench.pytest_plugin.gate  # first outside of the pytest that a test runs: numpy cannot be imported twice
import parabench.pytest_plugin.measured_base
from fake_sides import Lab
from guard import GUARD_S
from parabench.ab.server import Side
from parabench.errors import UsageError
from parabench.launch.spec import LaunchSpec
from parabench.report import build
from parabench.signals import STOPPED
from parabench.store.record import Failure, Launch, Status
from parabench.store.results import Results, load

SUITE = '''"""Did it get slower?"""
from parabench import Protocol, sweep
PROTOCOL = Protocol(warmup=2, steps=2, instrumented=0)
CASES = sweep(
    strategy="ddp", algorithm=("native", "ring", "tree"), world_size=2, global_batch=8, seq_len=8, data="synthetic",
)
'''
LAUNCHES = 3
# One single-device reference, and of each case a launch of its own; the other launches are of all.
OWN = 1


@pytest.fixture
def lab(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Lab:
    (pytester.path / "suites").mkdir()
    (pytester.path / "suites" / "mine.py").write_text(SUITE)
    # pytest then writes each failure whole a second time, and pytest-benchmark no numbers.
    for name in ("CI", "BUILD_NUMBER", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(build, "write_report", lambda results, path, session: path)
    return Lab(pytester.path, monkeypatch)


class Run:
    """One run of pytest in this process: `out` is what it said."""

    def __init__(self, pytester: pytest.Pytester, *arguments: str) -> None:
        plain = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--parabench-out=out")
        result = pytester.runpytest_inprocess("suites", *plain, *arguments)
        self.code = int(result.ret)
        self.out = result.stdout.str() + result.stderr.str()
        self.counts = result.parseoutcomes() if self.code < 2 else {}


@pytest.fixture
def against(pytester: pytest.Pytester) -> Callable[..., Run]:
    def run(*arguments: str, side: str = "OMP_NUM_THREADS=1") -> Run:
        launches = f"--parabench-launches={LAUNCHES}"
        return Run(pytester, f"--parabench-against={side}", launches, "--parabench-rounds=4", *arguments)

    return run


def stored(lab: Lab) -> Results:
    return load(lab.folder / "out" / "results.db")


def in_turns(results: Results, label: str) -> dict[str, list[float]]:
    """{case id: step times} of the launches of a session that took turns."""
    (session,) = results.session.loc[results.session["label"] == label, "id"]
    launches = results.launch[(results.launch["session_id"] == session) & (results.launch["block"] > 0)]
    steps = results.steps.merge(launches, left_on="launch_id", right_on="id")
    return {str(case): group["step_s"].tolist() for case, group in steps.groupby("case_id")}


def test_each_case_is_judged_by_its_own_row_and_benchmarked_by_the_turns_of_what_is_here(lab, against) -> None:
    lab.times = lambda side, case: 1.1 if (side, case.algorithm) == ("b", "ring") else 1.0
    done = against("--benchmark-json=out.json", "--junit-xml=junit.xml", side="TOKEN=hush")
    assert (done.code, done.counts) == (1, {"failed": 1, "passed": 2}), done.out
    assert done.out.count("slower: ddp ring, 2 ranks: 10.") == 2  # its test, and the summary
    title = "parabench mine: ab-b against ab-a (TOKEN=...) of out/results.db"
    assert title in done.out
    assert "Regression: 1 of 3 cases slower, the worst by 10 % (ddp ring, 2 ranks)." in done.out
    assert "were not interleaved" not in done.out
    results = stored(lab)
    entries = json.loads((lab.folder / "out.json").read_text())["benchmarks"]
    assert {entry["name"]: entry["stats"]["data"] for entry in entries} == in_turns(results, "ab-b")
    root = ElementTree.parse(lab.folder / "junit.xml").getroot()
    said = [element.get("value") or "" for element in root.iter("property")]
    assert [line.split(":")[0] for line in said] == ["same", "slower", "same"]
    # What may be a secret is in no record of the command.
    assert all("hush" not in argv and "--parabench-against=TOKEN=..." in argv for argv in results.session["argv"])


def test_only_the_selected_cases_are_launched_on_both_sides(lab, against) -> None:
    done = against("-k", "ring or tree", "-v")
    assert (done.code, done.counts) == (0, {"passed": 2, "deselected": 1}), done.out
    assert "native, 2 ranks" not in {label for _, labels, _ in lab.log for label in labels.split("ddp ")}
    launches = [(side, labels.count(", 2 ranks")) for side, labels, _ in lab.log]
    assert sorted(launches) == sorted((side, cases) for side in "ab" for cases in [0] * OWN + [1] * 2 + [2] * LAUNCHES)
    for plan in stored(lab).session["plan"]:
        assert len(json.loads(plan)["cases"]) == 2
    assert "No regression. Slowdowns above 2 % are ruled out" in done.out
    assert "only in" not in done.out


def test_what_rules_nothing_out_is_inconclusive_and_whole_launches_alternate_on_demand(lab, against) -> None:
    few = ("--parabench-launches=1", "--parabench-rounds=0")
    done = against(*few)
    assert (done.code, done.counts) == (0, {"inconclusive": 3}), done.out
    assert {labels.count(", 2 ranks") for _, labels, _ in lab.log} == {0, 1}
    done = against(*few, "--parabench-inconclusive=fail", side="")
    assert done.counts == {"failed": 3}
    assert "ab-2-b against ab-2-a (this environment too) of out/results.db" in done.out


def test_a_case_that_only_one_side_runs_is_skipped_with_the_reason(lab, against) -> None:
    class Lacking(Side):
        def plan(self, **request: Any) -> dict[str, Any]:
            answer = super().plan(**request)
            assert self._planned is not None
            rest = tuple(case for case in self._planned.plan.cases if case.algorithm != "tree")
            self._planned = replace(self._planned, plan=replace(self._planned.plan, cases=rest))
            known = {case.id for case in rest}
            return answer | {"cases": {case: label for case, label in answer["cases"].items() if case in known}}

    lab.sides["a"] = Lacking
    done = against("-rs")
    assert (done.code, done.counts) == (0, {"passed": 2, "skipped": 1}), done.out
    assert "skipped in ab-b: side a does not run it: its suite has no such case" in done.out
    done = against("-k", "tree")
    assert (done.code, done.counts) == (1, {"failed": 1, "deselected": 2})
    assert "parabench: there is no case that both sides can run: side a does not run it" in done.out


def test_what_fails_here_alone_is_a_regression(lab, against) -> None:
    def fails(name: str, spec: LaunchSpec, seen: Launch) -> None:
        if name == "b" and not spec.pair and spec.case.algorithm == "ring":
            seen.status, seen.failure, seen.samples = Status.OOM, Failure("out of memory", rank=1), []

    lab.befalls = fails
    done = against()
    assert (done.code, done.counts) == (1, {"failed": 1, "passed": 2}), done.out
    assert "broke: ddp ring, 2 ranks: was ok, is oom: rank 1: out of memory" in done.out


# The pytest that is stopped has this one's warnings as errors.
@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used at all")
def test_what_is_stopped_says_how_to_go_on(lab, against) -> None:
    lab.interrupt_at = 9
    done = against("--parabench-tolerance=5%")
    assert done.code == STOPPED, done.out
    go_on = "parabench ab --resume --a OMP_NUM_THREADS=1 --b '' --tolerance 0.05 --out out"
    assert f"stopped by SIGINT; every finished launch is kept; resume with: {go_on}" in done.out
    assert "Traceback" not in done.out
    lab.interrupt_at = None
    assert lab.run(suite=None, a="OMP_NUM_THREADS=1", resume=True) == 0, lab.output


def test_suites_share_the_rate_of_false_alarms(lab, against, monkeypatch) -> None:
    asked = []
    conclude = parabench.pytest_plugin.measured_base.conclude

    def concluded(request: Any, turns: Any) -> Any:
        asked.append(request.alpha)
        return conclude(request, turns)

    monkeypatch.setattr(parabench.pytest_plugin.measured_base, "conclude", concluded)
    shutil.copy(lab.folder / "suites" / "mine.py", lab.folder / "suites" / "other.py")
    done = against("--parabench-alpha=0.02", "-k", "ring")
    assert done.counts == {"passed": 2, "deselected": 4}
    assert asked == [0.01, 0.01]
    assert "parabench other: ab-2-b against ab-2-a (OMP_NUM_THREADS=1) of out/results.db" in done.out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("--parabench-against=", "--parabench-baseline=base"),
            "--parabench-baseline and --parabench-against both say what to compare with; give one",
        ),
        (
            ("--parabench-against=", "--parabench-changed=torch"),
            "--parabench-changed means nothing without --parabench-baseline STORE",
        ),
        (
            ("--parabench-against=", "--parabench-between-sessions=5%"),
            "--parabench-between-sessions means nothing without --parabench-baseline STORE",
        ),
        (
            ("--parabench-alpha=0.01",),
            "means nothing without --parabench-baseline STORE[@SESSION] or --parabench-against SIDE",
        ),
        (("--parabench-against=", "--parabench-rounds=many"), "--parabench-rounds: invalid int value: 'many'"),
        (
            ("--parabench-against=nowhere",),
            "parabench: --parabench-against: --parabench-against nowhere: 'nowhere' is neither NAME=VALUE nor a folder",
        ),
    ],
)
def test_wrong_options_are_a_line_before_anything_is_collected(lab, pytester, arguments, line) -> None:
    done = Run(pytester, *arguments)
    assert (done.code, lab.log) == (pytest.ExitCode.USAGE_ERROR, [])
    assert line in done.out
    assert "Traceback" not in done.out


def test_a_python_that_does_not_answer_is_said_before_anything_is_collected(pytester) -> None:
    python = pytester.path / "gone" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!{sys.executable}\nraise SystemExit('no torch here')\n")
    python.chmod(0o755)
    done = Run(pytester, "--parabench-against=gone")
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert "parabench: --parabench-against: side a (" in done.out
    assert "ended with exit code 1: no torch here; that side needs a parabench" in done.out


def test_a_side_that_ends_while_it_is_measured_fails_its_tests_with_a_line(lab, against) -> None:
    def ends(name: str, spec: LaunchSpec, seen: Launch) -> None:
        if len(lab.log) == 4:
            raise UsageError("the disk is full")

    lab.befalls = ends
    done = against()
    assert (done.code, done.counts) == (1, {"failed": 3})
    assert done.out.count(": the disk is full; every finished launch is kept; resume with: parabench ab") == 3


# -- real sides -----------------------------------------------------------------------------------------------------

# A model whose step takes as long as the environment says, by a clock that goes on with that alone: nothing else on the
# machine is in it.
TIMED = """
import os

import torch
from torch import nn

from parabench import Model
from parabench.probes import step_clock

now = 1.0

def reading():
    global now
    now += 1e-6
    return now

class Timed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        global now
        now += 0.01 * float(os.environ.get("TIMES", "1"))
        return self.linear(x)

def batch(n, generator):
    return torch.randn(n, 4, generator=generator), torch.zeros(n, dtype=torch.long)

def model():
    if "RANK" in os.environ:
        step_clock.perf_counter = reading
    return Model(module=Timed(), loss=nn.CrossEntropyLoss(), batch=batch)
"""


@pytest.mark.slow  # two whole sessions; the gate's verdicts have unit tests
def test_a_side_whose_steps_take_longer_fails_the_selected_test_alone(tmp_path: Path) -> None:
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "mine.py").write_text(SUITE.replace('"ddp"', '"ddp", model="timed:model"'))
    (tmp_path / "timed.py").write_text(TIMED)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "suites", "-k", "native"]
    command += ["--parabench-against=TIMES=1", f"--parabench-launches={LAUNCHES}", "--parabench-rounds=2"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    environment |= {"TIMES": "2", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=GUARD_S
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 2 deselected" in done.stdout
    assert "slower: ddp native, 2 ranks: 10.0 ms -> 20.0 ms, " in done.stdout
    results = load(tmp_path / "parabench-results" / "results.db")
    assert list(results.session["label"]) == ["ab-a", "ab-b"]
    counted = results.launch[results.launch["block"] >= 0]
    launches = counted.groupby(["session_id", "algorithm"]).size().to_dict()
    assert launches == {(1, "native"): 1 + LAUNCHES, (2, "native"): 1 + LAUNCHES}
    assert in_turns(results, "ab-b").keys() == {*counted["case_id"]}
