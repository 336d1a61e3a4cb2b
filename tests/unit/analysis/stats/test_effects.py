"""The fit of case + repetition against least squares by the pseudo-inverse of the whole design matrix."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from parabench.analysis.stats.contrasts import COMMON_WEIGHT, fit
from parabench.analysis.stats.quantiles import studentized_range


def dense(frame):
    """(means, variances, residual, df, scales of all pairs) by the textbook: one column a case and one a repetition."""
    cases, repetitions = list(frame["case"].unique()), list(frame["repetition"].unique())
    y = np.log(frame["step_s"].to_numpy())
    case = frame["case"].map(cases.index).to_numpy()
    design = np.zeros((len(frame), len(cases) + len(repetitions)))
    design[np.arange(len(frame)), case] = 1
    design[np.arange(len(frame)), len(cases) + frame["repetition"].map(repetitions.index).to_numpy()] = 1
    pseudo = np.linalg.pinv(design)
    beta = pseudo @ y
    df = len(y) - np.linalg.matrix_rank(design)
    error = y - design @ beta
    residual = math.sqrt(error @ error / df)
    free = np.bincount(case, 1 - np.einsum("ij,ji->i", design, pseudo))
    variances = (COMMON_WEIGHT * residual**2 + np.bincount(case, error**2)) / (COMMON_WEIGHT + free)
    k = len(cases)
    own = ((pseudo * variances[case]) @ pseudo.T)[:k, :k]
    spread = own.diagonal()[:, None] + own.diagonal() - 2 * own
    changed = (pseudo @ design - np.eye(design.shape[1]))[:k]  # a contrast that projecting changes is not estimable
    comparable = (np.abs(changed[:, None] - changed) <= 1e-8).all(axis=-1)
    scales = np.where(comparable, np.sqrt(np.maximum(0, spread) / 2), np.inf)
    # The average over the repetitions that are connected with a case.
    connected = np.linalg.matrix_power(design.T @ design > 0, len(beta))[:k, k:] > 0
    return beta[:k] + (connected @ beta[k:]) / connected.sum(axis=1), variances, residual, df, scales


def design(random: np.random.Generator) -> list[tuple[int, int]]:
    """Return (case, repetition) of each launch: some missing, one twice, and cases in separate repetitions."""
    whole = itertools.product(range(int(random.integers(2, 7))), range(int(random.integers(3, 6))))
    apart = [(case + 10, repetition + 10) for case, repetition in itertools.product(range(3), range(2))]
    return [(0, 0), (0, 0), *(pair for pair in whole if random.random() < 0.8), *apart, (20, 20)]


@pytest.mark.parametrize("seed", range(20))
def test_fit_equals_least_squares_by_the_pseudo_inverse(seed):
    random = np.random.default_rng(seed)
    pairs = design(random)
    frame = pd.DataFrame([(f"c{case}", repetition) for case, repetition in pairs], columns=["case", "repetition"])
    frame = frame.assign(step_s=np.exp(random.normal(-3, 0.3, len(pairs)))).sample(frac=1, random_state=seed)
    means, variances, residual, df, scales = dense(frame)
    effects = fit(frame)
    assert effects.df == df
    assert [effects.means[case] for case in effects.cases] == pytest.approx(means.tolist(), abs=1e-9)
    assert effects.strata[0].residual == pytest.approx(residual, rel=1e-9)
    assert list(effects.variances) == pytest.approx(variances.tolist(), rel=1e-9)
    q = studentized_range(len(effects.cases), df, 0.95)
    for i, case in enumerate(effects.cases):
        assert effects.half_widths(case).tolist() == pytest.approx((q * scales[i]).tolist(), rel=1e-9, abs=1e-9)
    assert effects.half_widths("c0")["c10"] == math.inf
    assert effects.half_widths("c10")["c11"] < math.inf
