"""Dunnett's quantile has the published values, and the set of the best contains the true best."""

import numpy as np
import pytest
from scipy import stats

from parabench.analysis.stats.contrasts import fit
from parabench.analysis.stats.quantiles import dunnett


@pytest.mark.parametrize(
    ("df", "confidence", "published"),
    [
        (5, 0.95, (2.02, 2.44, 2.68, 2.85, 2.98)),
        (10, 0.95, (1.81, 2.15, 2.34, 2.47, 2.56)),
        (20, 0.95, (1.72, 2.03, 2.19, 2.30, 2.39)),
        (10, 0.99, (2.76, 3.11, 3.31, 3.45, 3.56)),
    ],
)
def test_dunnett_quantile_matches_published_tables(df, confidence, published):
    """C. W. Dunnett, 1955, table 1, for one to five comparisons."""
    assert tuple(round(dunnett(count, df, confidence), 2) for count in range(1, 6)) == published


def session(random, launches, truth, noise=0.02):
    """Return a session in which each case has this number of launches, in the first repetitions."""
    case = np.repeat(np.arange(len(launches)), launches)
    repetition = np.concatenate([np.arange(n) for n in launches])
    logs = np.asarray(truth)[case] + 0.2 * random.standard_normal(max(launches))[repetition]
    return {"case": case, "repetition": repetition, "step_s": np.exp(logs + noise * random.standard_normal(len(case)))}


def held(launches, truth, sessions):
    """Return the number of sessions whose set of the best has the first case."""
    random = np.random.default_rng(0)
    count = 0
    for _ in range(sessions):
        effects = fit(session(random, launches, truth))
        count += 0 in effects.indistinguishable(min(effects.cases, key=effects.means.__getitem__))
    return count


def fewest(sessions):
    """Return the 0.1% quantile of successes at a rate of 95%."""
    return int(stats.binom.ppf(0.001, sessions, 0.95))


LAUNCHES = {
    "all 3": lambda k: [3] * k,
    "all 12": lambda k: [12] * k,
    "it alone 12, the others 2": lambda k: [12] + [2] * (k - 1),
    "half 12, half 2": lambda k: [12] * (k // 2) + [2] * (k // 2 + k % 2),
    "it 2, the others 12": lambda k: [2] + [12] * (k - 1),
}


@pytest.mark.parametrize("cases", [4, 12, 27])
@pytest.mark.parametrize("launches", LAUNCHES)
def test_set_has_the_best_in_95_of_100_sessions(cases, launches):
    """The hardest situation is that all cases are equal, so that each is the best."""
    assert held(LAUNCHES[launches](cases), np.zeros(cases), 500) >= fewest(500)
    if launches in ("all 3", "half 12, half 2"):  # also if one is the best, or each is a little slower
        for truth in (np.where(np.arange(cases) == 0, 0.0, 0.01), 0.002 * np.arange(cases)):
            assert held(LAUNCHES[launches](cases), truth, 100) >= fewest(100)
