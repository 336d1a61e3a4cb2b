"""The gate and the sweet spot on simulated launches whose truth is known (docs/certainty.md has more of them)."""

from __future__ import annotations

import fake_results as fake
import numpy as np
import pytest
from scipy import stats

from benchmarks.certainty import CASES, caught, false_alarms, gate, pooled_alarms, sweet_spots
from benchmarks.simulator import PURE, QUIET, SHARED, UNLIKE, Machine, Noise, launch_frame
from parabench.analysis.gate.compare import compare
from parabench.analysis.gate.outcome import Outcome
from parabench.analysis.gate.sides import side_of
from parabench.analysis.gate.significance import judge, launches_for
from parabench.analysis.sweet_spot.effects import fit


def test_a_thousand_gates_of_a_machine_against_itself_raise_ten_false_alarms_at_most():
    """With drift, launch effects, outliers and cases that differ in noise."""
    assert false_alarms(SHARED, 5, paired=True, gates=1000) <= 0.01


@pytest.mark.parametrize(("noise", "blocks", "paired"), [(QUIET, 3, True), (UNLIKE, 5, True), (PURE, 5, False)])
def test_few_launches_and_unlike_cases_raise_no_more(noise, blocks, paired):
    assert false_alarms(noise, blocks, paired=paired, gates=300) <= 0.01


def test_steps_taken_as_independent_would_raise_many():
    """What the protocol is for: the same launches, judged by their steps."""
    assert pooled_alarms(SHARED, 5, gates=60) > 0.2


def test_a_slowdown_of_5_percent_is_caught_with_as_many_launches_as_the_gate_asks_for():
    for paired in (True, False):
        share, asked = caught(PURE, 5, paired=paired, gates=60)
        assert share >= 0.95
        assert 20 < asked < 200


def test_the_sweet_spot_set_holds_the_true_best_and_keeps_all_of_a_flat_curve():
    for noise in (QUIET, SHARED, PURE):
        assert sweet_spots(noise, 5, gap=0.005, sessions=200)[0] >= 0.95
        assert sweet_spots(noise, 5, gap=0.0, sessions=400, seed=1)[1] >= 0.90


def test_the_set_is_not_large_for_want_of_looking():
    """Configurations 5 % apart on a quiet machine: the best one alone."""
    machine = Machine(QUIET, 0)
    truth = 0.04 * 1.05 ** np.arange(12)
    for _ in range(20):
        effects = fit(launch_frame(machine.numbers(machine.session(truth, machine.loudness(12), machine.mood(10)))))
        assert effects.indistinguishable("00") == ["00"]


def test_the_simulator_tells_what_it_is_told():
    noise = Noise(launch=0.02, unlike=0.0, drift=0.0, step=0.01, outliers=0.0, spikes=0.0)
    machine = Machine(noise, 3, steps=50, quantile=0.5)
    base, slow = machine.pair(np.array([0.1, 0.2]), 4000, slower=np.array([1.0, 1.05]), interleaved=False)
    assert base.shape == (2, 4000, 50)
    logs = np.log(machine.numbers(base))
    assert np.exp(logs.mean(axis=1)) == pytest.approx([0.1, 0.2], rel=0.002)
    assert logs.std(axis=1) == pytest.approx([0.02, 0.02], rel=0.05)
    assert np.log(base).std(axis=2).mean() == pytest.approx(0.01, rel=0.05)
    change = np.log(machine.numbers(slow)).mean(axis=1) - logs.mean(axis=1)
    assert np.exp(change) == pytest.approx([1.0, 1.05], rel=0.002)


def test_a_common_drift_is_no_noise_where_sides_take_turns():
    drifting = Noise(launch=0.002, unlike=0.0, drift=0.1, step=0.0, outliers=0.0, spikes=0.0)
    machine = Machine(drifting, 0)
    sides = machine.pair(np.full(CASES, 0.1), 6, slower=1.03, interleaved=True)
    together, apart = (gate(machine, sides, paired=paired) for paired in (True, False))
    assert max(test.high - test.low for test in together.values()) < 0.01
    assert min(test.high - test.low for test in apart.values()) > 0.1


@pytest.mark.parametrize("repeated", [1, 10])
def test_the_unit_is_the_launch_through_the_whole_tool(tmp_path, repeated):
    """Launches of one machine that differ by 10 % among themselves, each with steps that agree: counted as steps the
    difference between two sides would be beyond doubt, and ten times the steps make the gate no surer."""
    cases = [fake.case(bucket_mib=size) for size in (1.0, 4.0)]
    sides = []
    for name, shift in (("base", 0.0), ("new", 0.05)):
        random = np.random.default_rng(7)
        launches = []
        for block in range(4):
            for case in cases:
                seconds = 0.1 * np.exp(shift + 0.1 * random.standard_normal())
                steps = seconds * np.exp(0.001 * np.random.default_rng(block).standard_normal(11))
                launches.append(fake.launch(case, np.repeat(steps, repeated).tolist(), block=block))
        sides.append(side_of(fake.write(tmp_path / f"{name}.db", launches, label=name)))
    found = compare(*sides, allowance=0.0)
    assert [row.outcome for row in found.rows] == [Outcome.UNCLEAR] * 2
    assert [len(row.base_launches) for row in found.rows] == [4, 4]
    # Launches vary by 10 %: whatever the number of steps, no gate of 4 rules out less than that.
    assert 1.1 < found.upper < 3


def test_with_as_many_launches_as_are_asked_for_equal_sides_pass_and_with_one_less_they_do_not():
    """Against scipy's noncentral t: the chance that difference + t(95 %) * error lies below the tolerance."""
    variances = [0.02**2, 0.03**2]
    n = launches_for(0.05, variances, 0.9)
    assert n is not None

    def passes(launches: int) -> float:
        error2 = [variance / launches for variance in variances]
        df = sum(error2) ** 2 / sum(each**2 / (launches - 1) for each in error2)
        return float(stats.nct.sf(stats.t.ppf(0.95, df), df, 0.05 / np.sqrt(sum(error2))))

    assert passes(n) >= 0.9 > passes(n - 1)
    assert launches_for(1e-6, variances, 0.9) is None


def test_no_case_is_judged_from_one_launch():
    assert judge({"a": ([0.0], [0.1, 0.2])}, paired=False) == {}
    assert judge({}, paired=True) == {}
