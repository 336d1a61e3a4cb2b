"""The gate and the ranking on simulated launches whose truth is known (more: docs/explanation/certainty.md)."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import fake_results as fake
from benchmarks.certainty import until_decided
from benchmarks.gate_truth import CASES, as_asked, false_alarms, gate, gates, wrong_passes
from benchmarks.simulator import PURE, QUIET, SHARED, UNLIKE
from parabench.analysis.compare.comparison import Outcome, speed
from parabench.analysis.compare.gate import Verdict, compare
from parabench.analysis.compare.sides import side_of


# The rate of false alarms that a true rate `p` exceeds by chance with a probability below 0.1%.
def few(p: float, gates: int) -> float:
    return float(stats.binom.isf(0.001, gates, p)) / gates


def test_false_alarms_are_one_percent_at_most():
    """With drift, launch effects, outliers and cases that differ in noise."""
    assert false_alarms(SHARED, 5, gates=1000) <= 0.01


@pytest.mark.parametrize(
    ("noise", "repetitions", "paired"),
    [
        (QUIET, 2, True), (SHARED, 3, True), (PURE, 5, True), (PURE, 2, True), (UNLIKE, 2, True),
        # Repetitions drift by 3%, so the mean of a session is as uncertain as one launch.
        (SHARED, 5, False), (SHARED, 10, False),
    ],
)  # fmt: skip
def test_gate_of_one_case_has_few_false_alarms(noise, repetitions, paired):
    """With pooled or moderated variances, one case alone had 2.6% false alarms with 2 launches."""
    assert false_alarms(noise, repetitions, paired=paired, cases=1, gates=2000) <= few(0.01, 2000)


def test_noisiest_of_two_cases_has_few_false_alarms():
    """With a pooled variance, it had 3.9% false alarms with 2 launches."""
    random = np.random.default_rng(0)
    alarms = 0
    for _ in range(2000):
        base, candidate = (np.array([[0.04], [0.0004]]) * random.standard_normal((2, 2)) for _ in range(2))
        alarms += Outcome.SLOWER in {speed(test)[0] for test in gate(base, candidate, paired=True).values()}
    assert alarms / 2000 <= few(0.01, 2000)


@pytest.mark.parametrize("stored", [1, 4, 6])
@pytest.mark.parametrize("cases", [1, CASES])
def test_sessions_that_differ_have_few_false_alarms(stored, cases):
    """Sessions differ by 2% in all cases at once, with the allowance or with a measured variation."""
    days = replace(QUIET, session=0.02)
    count = 1000 if cases == 1 else 150
    assert false_alarms(days, 5, paired=False, sessions=stored, cases=cases, gates=count) <= few(0.01, count)


@pytest.mark.parametrize(("noise", "repetitions"), [(QUIET, 2), (SHARED, 5), (PURE, 3), (PURE, 20), (UNLIKE, 3)])
def test_slowdown_of_the_tolerance_passes_in_5_percent(noise, repetitions):
    assert wrong_passes(noise, repetitions, cases=1, gates=1000) <= few(0.05, 1000)


def test_bound_is_not_too_wide():
    """With one case and pure noise the test is exact, so 5% pass."""
    assert wrong_passes(PURE, 40, cases=1, gates=1000) > 0.03


def test_slowdown_of_twice_the_tolerance_is_found():
    found = list(gates(QUIET, 10, slowdown=0.04, gates=100))
    assert found.count(Verdict.REGRESSION) >= 95
    assert Verdict.NO_REGRESSION not in found


def test_equal_sides_pass_with_the_launches_asked_for():
    for cases in (1, CASES):
        passed, asked = as_asked(PURE, 5, cases=cases, gates=40)
        assert passed >= 0.9
        assert 20 < asked < 300


def test_launching_until_decided_ends_with_the_true_best():
    right, decided, launches = until_decided(QUIET, repetitions=3, gap=0.02, sessions=3)
    assert (right, decided) == (1.0, 1.0)
    assert launches < 50


@pytest.mark.parametrize("repeated", [1, 10])
def test_the_unit_is_the_launch_through_the_whole_tool(tmp_path, repeated):
    """Launches differ by 10%, and the steps of a launch agree. If steps were the unit, any difference would be
    significant. Ten times as many steps do not make the gate more certain."""
    cases = [fake.case(bucket_mib=size) for size in (1.0, 4.0)]
    sides = []
    for name, shift in (("base", 0.0), ("new", 0.05)):
        random = np.random.default_rng(7)
        launches = []
        for repetition in range(4):
            for case in cases:
                seconds = 0.1 * np.exp(shift + 0.1 * random.standard_normal())
                steps = seconds * np.exp(0.001 * np.random.default_rng(repetition).standard_normal(11))
                launches.append(fake.launch(case, np.repeat(steps, repeated).tolist(), repetition=repetition))
        sides.append(side_of(fake.write(tmp_path / f"{name}.db", launches, label=name)))
    found = compare(*sides, allowance=0.0)
    cases = found.tables["cases"]
    assert cases["outcome"].tolist() == [Outcome.UNCLEAR] * 2
    assert [*map(len, cases["base_launches"])] == [4, 4]
    # Launches vary by 10%: whatever the number of steps, no gate of 4 rules out less than that.
    assert 1.1 < cases["upper"].max() < 3
