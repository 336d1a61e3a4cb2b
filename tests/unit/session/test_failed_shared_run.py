"""Sessions whose configurations all succeed in own launches, but one fails in shared launches."""

import json
from collections import defaultdict

import pytest

from answers_helpers import of_launches
from command_line import parabench
from fake_launch import FakeLauncher, run_fake
from parabench.analysis.session import session_data
from parabench.launch.spec import LaunchSpec
from parabench.report.build import render
from parabench.report.cases import page_data
from parabench.session.request import Request
from parabench.store.record import Failure, Launch, Status
from parabench.store.results import load

STEP_S = {"ddp": 0.010, "fsdp": 0.020, "zero1": 0.022}


class FailsShared(FakeLauncher):
    """Fail `ddp` in shared launches, whose steps take three times longer than in separate ones."""

    def __init__(self, status: Status) -> None:
        super().__init__(step_s=lambda case: STEP_S.get(case.strategy, 0.05))
        self.status = status

    def __call__(self, spec: LaunchSpec) -> Launch:
        shared = spec.protocol.takes_turns
        self.level = lambda _: 3.0 if shared else 1.0
        fails = shared and self.status is not Status.WRONG
        self.failing = {"ddp": (self.status, Failure("it ended"))} if fails else {}
        launch = super().__call__(spec)
        for arm in launch.arms if self.status is Status.WRONG else ():
            if arm.case.strategy == "ddp":
                arm.samples = [each._replace(value=9.0) if each.metric == "loss" else each for each in arm.samples]
        return launch


@pytest.fixture
def run(tmp_path):
    def run_it(status, strategies, **more):
        suite = tmp_path / "mine.py"
        suite.write_text(f"'Which?'\nfrom parabench import sweep\nCASES = sweep(strategy={strategies}, world_size=2)\n")
        given = {"steps": 5, "rounds": 4, "out": tmp_path / "out", "argv": ["parabench", "run", "mine"], **more}
        _, text = run_fake(Request.of(suite=str(suite), **given), FailsShared(status))
        return text, session_data(load(tmp_path / "out" / "results.db"))

    return run_it


def best_json(folder):
    told = json.loads(parabench("best", folder / "out", "--json", "-").stdout)
    places = defaultdict(list)
    for row in told["tables"]["candidates"]:
        places[row["place"]].append(row)
    return places | {"winner": told["tables"]["workloads"][0]["winner"], "sentences": told["sentences"]}


@pytest.mark.parametrize(("status", "launches"), [(Status.WRONG, 1), (Status.CRASHED, 3)])
def test_failed_cases_are_compared_by_separate_launches(run, tmp_path, status, launches):
    said, seen = run(status, ("ddp", "fsdp"), launches=launches)
    assert set(seen.numbers["status"]) == {Status.OK, status}
    assert not seen.timed["in_turns"].any()
    step_s = {seen.case(case).strategy: seconds for case, seconds in seen.step_times.items()}
    assert step_s == pytest.approx({"ddp": 0.010, "fsdp": 0.020}, rel=0.02)
    answer = best_json(tmp_path)
    assert answer["best"][0]["label"] == "ddp native, 2 ranks"
    (other,) = (*answer["tied"], *answer["slower"])
    assert other["slower"] == pytest.approx(1, rel=1e-6)
    assert answer["not_compared"] == []
    assert ("Fastest: ddp native, 2 ranks: 10.1 ms per step" in said) == (launches == 3), said


@pytest.mark.parametrize("status", [Status.WRONG, Status.CRASHED])
def test_a_case_without_a_common_launch_is_not_compared(run, tmp_path, status):
    """Repetition 1 has the own launches of all, repetition 2 the shared launch, which `fsdp` and `zero1` alone pass."""
    said, seen = run(status, ("ddp", "fsdp", "zero1"), launches=1)
    answer = best_json(tmp_path)
    assert (answer["best"][0]["strategy"], answer["winner"]) == ("fsdp", None)
    assert [each["strategy"] for each in answer["tied"]] == ["zero1"]
    (ddp,) = answer["not_compared"]
    assert (ddp["strategy"], ddp["slower"], ddp["status"]) == ("ddp", None, f"1 ok, 1 {status}")
    assert ddp["reason"]
    assert ddp["step_time_s"] == pytest.approx(0.010, rel=0.02)
    measured = f"ddp native, 2 ranks: 10.1 ms per step (1 ok, 1 {status})."
    for text in (" ".join(said.split()), " ".join(answer["sentences"])):
        assert f"connects them with these: {measured}" in text
    assert "To settle it: parabench run --resume --until-decided" in said
    cases = page_data(seen)["cases"]
    of = {strategy: at for at, strategy in enumerate(cases["strategy"])}
    assert cases["slower"][of["ddp"]] is None
    assert cases["slower"][of["zero1"]] == pytest.approx(0.1, rel=1e-3)
    assert cases["mark"][of["ddp"]] == "not compared"
    assert cases["step_time_s"][of["ddp"]] == pytest.approx(0.010, rel=0.02)
    assert "Not compared, because no launch or repetition" in render(seen.results)


def test_until_decided_connects_a_case_that_failed(run, tmp_path):
    """In one more repetition, the case has a separate launch, and the others share one."""
    _, seen = run(Status.CRASHED, ("ddp", "fsdp", "zero1"), launches=1, until_decided=True)
    (answer,) = of_launches(seen.numbers)
    assert answer.not_compared == []
    assert answer.best.strategy == "ddp"
