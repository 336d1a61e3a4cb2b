"""The model of sessions with partly shared launches: two strata, and a variance for each pair of cases."""

import math
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from parabench.analysis.stats.contrasts import fit

# Two groups of interleaved cases, and a case with separate launches.
COHORTS = (("a", "b", "c"), ("d", "e"), ("f",))
CASES = [case for cohort in COHORTS for case in cohort]
TRUTH = dict(zip(CASES, np.log([1.0, 1.02, 1.03, 1.2, 1.25, 1.1]), strict=True))
LAUNCH_SD, TURN_SD = 0.10, 0.01


def session(rng, repetitions=6, launch_sd=LAUNCH_SD, turn_sd=TURN_SD, cohorts=COHORTS, truth=TRUTH):
    rows = []
    for repetition in range(repetitions):
        drift = 0.05 * rng.standard_normal()
        for at, cohort in enumerate(cohorts):
            level = drift + launch_sd * rng.standard_normal()
            for case in cohort:
                seconds = math.exp(truth[case] + level + turn_sd * rng.standard_normal())
                rows.append((case, repetition, 10 * repetition + at, seconds))
    return pd.DataFrame(rows, columns=["case", "repetition", "shared_launch", "step_s"])


def test_cases_of_shared_launches_have_narrower_intervals():
    effects = fit(session(np.random.default_rng(0)))
    assert len(effects.strata) == 2
    assert effects.n_blocks == 6
    assert effects.half_widths("a")["b"] < 0.03
    assert effects.half_widths("a")["d"] > 0.1
    assert effects.half_widths("a")["d"] == pytest.approx(effects.half_widths("d")["a"])
    assert effects.half_widths("d")["f"] == pytest.approx(effects.half_widths("f")["d"])
    assert effects.means["b"] - effects.means["a"] == pytest.approx(math.log(1.02), abs=0.02)
    assert effects.own_half_widths()["a"] > 0.05
    behind = effects.best_half_widths("a")
    assert all(behind[case] < effects.half_widths("a")[case] for case in "bcdef")
    assert behind["b"] < 0.03 < 0.1 < behind["d"]


def test_one_launch_of_each_cohort_decides_nothing_between_them():
    effects = fit(session(np.random.default_rng(3), repetitions=1))
    assert effects.half_widths("a")["d"] == math.inf
    assert effects.best_half_widths("a")["d"] == math.inf


def test_intervals_of_all_pairs_hold_the_truth_together():
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(300):
        effects = fit(session(rng))
        held += all(
            abs(effects.means[one] - effects.means[other] - TRUTH[one] + TRUTH[other])
            <= effects.half_widths(one)[other]
            for one, other in combinations(CASES, 2)
        )
    # With a rate of 0.95, fewer than 273 of 300 have a probability of 0.1%.
    assert held >= 273


@pytest.mark.parametrize("best", ["a", "d", "f"])
def test_set_holds_the_best_of_all_cohorts(best):
    """All cases are equal, which is the hardest situation; each may be the best."""
    rng = np.random.default_rng(ord(best))
    held = 0
    for _ in range(300):
        effects = fit(session(rng, truth=dict.fromkeys(CASES, 0.0)))
        held += best in effects.indistinguishable(min(effects.cases, key=lambda case: effects.means[case]))
    assert held >= 273
