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
    residual = math.sqrt(error @ error / df) if df else math.nan
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


def design(kind: str, random: np.random.Generator) -> list[tuple[int, int]]:
    """(case, repetition) of each launch."""
    whole = list(itertools.product(range(int(random.integers(2, 7))), range(int(random.integers(2, 6)))))
    if kind == "one repetition":
        return [(case, 0) for case in range(4)]
    if kind == "missing launches":
        return [pair for pair in whole if random.random() < 0.7] or whole
    if kind == "apart":
        other = [(case + 10, repetition + 10) for case, repetition in itertools.product(range(3), range(2))]
        return [pair for pair in whole if random.random() < 0.8] + other + [(20, 20)]
    if kind == "more repetitions of few cases":
        return whole + [(case, repetition) for repetition in range(10, 14) for case in (0, 1)]
    if kind == "a launch twice":
        return [*whole, whole[0], whole[-1]]
    return whole


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "kind", ["whole", "missing launches", "apart", "one repetition", "more repetitions of few cases", "a launch twice"]
)
def test_eliminating_cases_gives_what_the_whole_design_gives(kind, seed):
    random = np.random.default_rng(seed)
    pairs = design(kind, random)
    logs = random.normal(-3, 0.3, len(pairs))
    frame = pd.DataFrame([(f"c{case}", repetition) for case, repetition in pairs], columns=["case", "repetition"])
    frame = frame.assign(step_s=np.exp(logs)).sample(frac=1, random_state=seed)
    means, variances, residual, df, scales = dense(frame)
    effects = fit(frame)
    assert effects.df == df
    assert [effects.means[case] for case in effects.cases] == pytest.approx(means.tolist(), abs=1e-9)
    if df == 0:
        assert math.isnan(effects.strata[0].residual)
        assert effects.half_widths(effects.cases[0])[effects.cases[1]] == math.inf
        return
    assert effects.strata[0].residual == pytest.approx(residual, rel=1e-9)
    assert list(effects.variances) == pytest.approx(variances.tolist(), rel=1e-9)
    q = studentized_range(len(effects.cases), df, 0.95)
    for i, case in enumerate(effects.cases):
        assert effects.half_widths(case).tolist() == pytest.approx((q * scales[i]).tolist(), rel=1e-9, abs=1e-9)
    if kind == "apart":
        assert effects.half_widths("c0")["c10"] == math.inf
        assert effects.half_widths("c10")["c11"] < math.inf
