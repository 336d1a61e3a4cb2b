"""What a pilot predicts, against the gate's own rule on drawn launches."""

import numpy as np
import pytest

from answers_helpers import noise_of
from benchmarks.noise_trials import recording, share, trial, windows
from parabench.analysis.compare.comparison import ALPHA, Outcome, speed
from parabench.analysis.noise import (
    FEWEST_PAIRS,
    Pilot,
    half_width,
    least_change,
    least_tolerance,
    passes,
    sensitivity,
    spread_of,
)
from parabench.analysis.stats.contrasts import POWER, judge

CASES, LAUNCHES, RUNS = 5, 10, 1000


@pytest.fixture
def lot() -> np.random.Generator:
    return np.random.default_rng(5)


def judged(differences: np.ndarray) -> list:
    """The tests of `ab`, of differences of shape (cases, pairs)."""
    n = differences.shape[1]
    return [*judge({at: (np.zeros(n), row) for at, row in enumerate(differences)}, paired=True).values()]


def pilot(differences: np.ndarray, pair_s: float | None = 10.0) -> Pilot:
    cases = tuple(f"case {at}" for at in range(len(differences)))
    return Pilot("quick", rounds=4, cases=cases, differences=differences, first_s=60.0, pair_s=pair_s)


def predicted(measured: Pilot):
    return noise_of(sensitivity(measured))


def test_least_change_is_found_with_its_power(lot) -> None:
    sd = 0.02
    slower = np.log1p(least_change(sd, LAUNCHES, CASES))
    found = 0
    for _ in range(RUNS):
        drawn = sd * lot.standard_normal((CASES, LAUNCHES))
        drawn[2] += slower
        found += speed(judged(drawn)[2], tolerance=np.expm1(slower) / 2, alpha=ALPHA)[0] is Outcome.SLOWER
    assert found / RUNS == pytest.approx(POWER, abs=0.03)


def test_least_tolerance_is_passed_with_its_power(lot) -> None:
    sds = np.array([0.01, 0.01, 0.02, 0.02, 0.03])
    tolerance = least_tolerance(sds, LAUNCHES)
    passed = sum(
        all(test.upper < np.log1p(tolerance) for test in judged(sds[:, None] * lot.standard_normal((CASES, LAUNCHES))))
        for _ in range(RUNS)
    )
    assert POWER - 0.02 <= passed / RUNS <= POWER + 0.05
    assert passes(sds, LAUNCHES, tolerance) == pytest.approx(POWER, abs=1e-4)


def test_half_width_is_the_median_of_simulated_widths(lot) -> None:
    widths = [
        (test.high - test.low) / 2 for _ in range(RUNS) for test in judged(0.02 * lot.standard_normal((CASES, 6)))
    ]
    assert half_width(0.02, 6) == pytest.approx(np.median(widths), rel=0.05)


@pytest.mark.parametrize("pairs", [5, 12])
@pytest.mark.parametrize("cases", [1, 10])
def test_spread_interval_contains_the_true_value(lot, cases: int, pairs: int) -> None:
    inside, logs = 0, []
    for _ in range(RUNS):
        spread = spread_of(0.02 * lot.standard_normal((cases, pairs)))
        low, high = spread.interval
        inside += low <= 0.02 <= high
        logs.append(np.log(spread.typical / 0.02))
    assert 0.87 <= inside / RUNS <= 0.97
    assert np.mean(logs) == pytest.approx(0, abs=0.02)


def test_sensitivity_tables_by_time_and_change_agree(lot) -> None:
    answer = predicted(pilot(0.01 * lot.standard_normal((6, 20))))
    assert (answer.pairs, answer.first_s, answer.pair_s) == (20, 60, 10)
    assert [each.launches for each in answer.seen] == [None, 12, 24, 66, 174]
    sizes = [each.change for each in answer.seen[1:]]
    assert sizes == sorted(sizes, reverse=True)
    for each in answer.seen[1:]:
        assert each.low < each.change < each.high
        assert each.half_width < each.change
    for need in answer.needs:
        sd = np.log1p(answer.sd)
        assert least_change(sd, need.launches, 6) <= need.change < least_change(sd, need.launches - 1, 6)
        assert need.minutes == pytest.approx((60 + 10 * need.launches) / 60)
        assert need.low_minutes <= need.minutes <= need.high_minutes
    assert answer.exit_code == 0


def test_sensitivity_reports_missing_pairs_when_pilot_is_short(lot) -> None:
    one = predicted(pilot(0.01 * lot.standard_normal((1, FEWEST_PAIRS))))
    assert one.pairs_needed > FEWEST_PAIRS
    assert one.minutes_needed == pytest.approx((60 + 10 * one.pairs_needed) / 60)
    enough = predicted(pilot(0.01 * lot.standard_normal((1, one.pairs_needed))))
    assert (one.seen, one.exit_code) == ([], 3)
    assert enough.seen
    for pairs, pair_s in ((0, None), (1, 30.0)):
        none = predicted(pilot(np.zeros((3, pairs)), pair_s))
        assert (none.sd, none.seen, none.exit_code) == (None, [], 3)
    assert predicted(pilot(np.zeros((0, 0)))).cases == 0


def test_answer_is_unsure_when_a_run_varies(lot) -> None:
    one = predicted(pilot(0.01 * lot.standard_normal((1, 60))))
    assert [each.sure for each in one.seen] == [False, False, False, True, True]
    assert all(each.sure for each in predicted(pilot(0.01 * lot.standard_normal((12, 20)))).seen[1:])


def test_sensitivity_is_right_in_nine_of_ten_trials(lot) -> None:
    """Noise that wanders, has tails and is partly common to all cases, as of a runner that others use."""
    trials = [
        trial(before, after)
        for _ in range(40)
        for before, after in windows(recording(lot, cases=20, pairs=48), pilot=12, launches=12)
    ]
    assert len(trials) == 120
    assert share(trials)[0] >= 0.9
