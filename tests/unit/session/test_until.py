"""`--until-decided`: only what may still be the fastest is launched again, and nothing of it is lost."""

import json
import math
import random
import shlex
from collections import Counter
from pathlib import Path

import pytest

import fake_results
from answers_helpers import check, sweet_spots
from command_line import command_of
from fake_launch import FakeLauncher, run_fake
from parabench.analysis.numbers import numbers
from parabench.analysis.ranking.race import FEWEST_REPETITIONS, next_seconds, undecided
from parabench.analysis.session import select_session
from parabench.cli import main
from parabench.plan.plan import Plan
from parabench.session.request import Request
from parabench.session.session import next_repetition
from parabench.store.results import Results, load
from parabench.store.store import Store

SUITE = '''"""Which is fastest?"""
from parabench import sweep
CASES = sweep(strategy="ddp", bucket_mib=(1, 2, 4, 25), world_size=2)
'''
# The first two are equally fast; the last two are much slower.
TRUTH = {1.0: 0.0100, 2.0: 0.0100, 4.0: 0.0200, 25.0: 0.0300}
NEAR, FAR = {1.0, 2.0}, {4.0, 25.0}


class Noisy(FakeLauncher):
    """The noise of a launch depends on its case and number; `sd` is the deviation of the logarithm."""

    def __init__(self, sd: float) -> None:
        super().__init__()
        self.sd = sd
        self.counts: Counter[str] = Counter()

    def __call__(self, spec):
        number = self.counts[spec.case.id]
        self.counts[spec.case.id] += 1
        noise = random.Random(f"{spec.case.id}, {number}").lognormvariate(0, self.sd)
        self.step_s = lambda case: TRUTH.get(case.bucket_mib, 0.01) * noise
        return super().__call__(spec)


@pytest.fixture
def suite(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(SUITE)
    return str(path)


def run(suite: str | None, tmp_path: Path, launch: FakeLauncher, **more: object) -> tuple[int, str]:
    new = {} if suite is None else {"launches": 2, "steps": 5}
    given = {"out": tmp_path / "out", "argv": ["parabench"], "until_decided": True, "resume": suite is None, **new}
    return run_fake(Request.of(suite=suite, **{**given, **more}), launch)


def stored(tmp_path: Path) -> Results:
    return load(tmp_path / "out" / "results.db")


def plan_of(results: Results) -> Plan:
    return Plan.from_dict(json.loads(results.session["plan"].iloc[-1]))


def order(results: Results) -> list[tuple[str, int, int]]:
    own = results.launch[results.launch["repetition"] >= 0]
    return list(zip(own["case_id"], own["repetition"], own["position"], strict=True))


def test_until_decided_launches_candidates_only(suite: str, tmp_path: Path) -> None:
    code, said = run(suite, tmp_path, Noisy(0.01))
    assert code == 0
    assert said.count("report: ") == 1
    results = stored(tmp_path)
    extra = results.launch[results.launch["repetition"] >= 2]
    assert set(extra["bucket_mib"]) == NEAR
    repetitions = extra["repetition"].max() + 1
    assert len(extra) == 2 * (repetitions - 2) > 0
    planned = plan_of(results).launches()
    assert order(results) == [(each.case.id, each.repetition, each.position) for each in planned]
    answer = sweet_spots(results)[0]
    assert answer.more_repetitions is None
    assert {answer.best.case_id, *(each.case_id for each in answer.tied)} == set(extra["case_id"])
    assert said.count("2 of 4 configurations remain, ±") == repetitions - 2
    assert results.session["finished_utc"].notna().all()
    # Unequal numbers of launches cause no warning.
    assert {finding.code for finding in check(results)} <= {"few_launches"}

    again = Noisy(0.01)
    assert run(None, tmp_path, again)[0] == run(None, tmp_path, again, until_decided=False)[0] == 0
    assert run(suite, tmp_path, again, resume=True)[0] == 0  # extra repetitions do not change its plan
    assert again.calls == []
    assert order(stored(tmp_path)) == order(results)


def test_a_block_that_would_overrun_the_budget_is_not_begun(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path, Noisy(0.01), until_decided=False)
    results = stored(tmp_path)
    launches = numbers(results, select_session(results))
    left, *_ = undecided(launches, raced=False)
    needs = next_seconds(launches, left)
    last = launches[launches["repetition"].eq(1) & launches["bucket_mib"].isin(NEAR)]
    assert needs == pytest.approx(last["wall_s"].sum())
    assert 0.3 < needs < 0.5

    said: list[str] = []
    with Store.open_or_create(tmp_path / "out" / "results.db") as store:
        planned = plan_of(results)
        assert next_repetition(store, 1, planned, 60, 60 - 0.99 * needs, said.append, "go on") is None
        assert said[0].startswith("2 of 4 configurations remain, ±")
        assert said[0].endswith(": racing ends after 60 s")
        grown = next_repetition(store, 1, planned, 60, 60 - 1.01 * needs, said.append, "go on")
    assert grown is not None
    assert set(grown.extra[0]) == set(left)
    assert plan_of(stored(tmp_path)) == grown


def test_until_decided_gives_up_when_it_is_too_noisy(suite: str, tmp_path: Path) -> None:
    code, said = run(suite, tmp_path, Noisy(0.5), launches=FEWEST_REPETITIONS - 1)
    assert code == 0
    results = stored(tmp_path)
    assert plan_of(results).repetitions == FEWEST_REPETITIONS  # with fewer repetitions the noise is not known
    launches = numbers(results, select_session(results))
    minutes = math.ceil(95 * next_seconds(launches, launches["case"].unique()) / 60)
    anyway = f"parabench run --resume --until-decided --out {tmp_path / 'out'} --budget {minutes}"
    assert f"too noisy: 100 repetitions would hardly resolve 2%; go on anyway with: {anyway}" in said
    command_of("run").make_context("run", shlex.split(anyway)[2:], **main.context_settings)

    lines: list[str] = []
    with Store.open_or_create(tmp_path / "out" / "results.db") as store:
        grown = next_repetition(store, 1, plan_of(results), 60 * minutes, 0.0, lines.append, "go on")
    assert grown is not None
    assert lines[0].startswith(f"{len(grown.extra[-1])} of 4 configurations remain, ±")


def test_undecided_compares_within_a_workload(tmp_path: Path) -> None:
    """One workload has two tied cases, another has a best one, and a third has a single case."""
    random.seed(4)
    levels = {8: (0.04, 0.04), 16: (0.04, 0.08), 32: (0.04,)}
    step_s = {
        fake_results.case(bucket_mib=mib, global_batch=batch): seconds
        for batch, level in levels.items()
        for mib, seconds in enumerate(level, 1)
    }
    launches = [
        fake_results.launch(each, seconds * random.lognormvariate(0, 0.03), repetition=repetition)
        for repetition in range(3)
        for each, seconds in step_s.items()
    ]
    results = fake_results.write(tmp_path / "results.db", launches)
    left, half_width, too_noisy = undecided(numbers(results, select_session(results)), raced=False)
    assert set(left) == {case.id for case in step_s if case.global_batch == 8}
    assert half_width is not None
    assert not too_noisy
