"""The gate's rule before it was a non-inferiority test, to count how many verdicts it changes.

It passed where a test against zero had a power of 95 % for a slowdown of the tolerance: power after the fact. Variances
leaned on those of the other cases (G. K. Smyth, Statistical Applications in Genetics and Molecular Biology 3, 2004).
"""

from __future__ import annotations

import numpy as np
from scipy import stats
from scipy.special import digamma, nctdtrinc

from parabench.analysis.compare.rule import Verdict
from parabench.analysis.stats.ttest import LEAST_SD, Numbers, holm

COMMON_WEIGHT = 1.0
POWER = 0.95


def former_verdict(base: Numbers, candidate: Numbers, *, paired: bool, tolerance: float, alpha: float) -> Verdict:
    """The verdict of logs of shape (cases, launches); paired, the launches took turns."""
    sides = [candidate - base] if paired else [base, candidate]
    cases, n = base.shape
    own = np.maximum([side.var(axis=1, ddof=1) for side in sides], LEAST_SD**2)
    df = n - 1.0
    common = np.exp((np.log(own) - digamma(df / 2) + np.log(df / 2)).mean())
    part = (COMMON_WEIGHT * common + df * own) / (COMMON_WEIGHT + df) / n
    error = np.sqrt(part.sum(axis=0))
    free = part.sum(axis=0) ** 2 / (part**2 / (df + COMMON_WEIGHT)).sum(axis=0)
    difference = candidate.mean(axis=1) - base.mean(axis=1)
    slower = np.array(holm(stats.t.sf(difference / error, free))) <= alpha
    if (slower & (difference > np.log1p(tolerance))).any():
        return Verdict.REGRESSION
    level = alpha / cases
    detectable = error * nctdtrinc(free, 1 - POWER, stats.t.isf(level, free))
    return Verdict.NO_REGRESSION if detectable.max() <= np.log1p(tolerance) else Verdict.INCONCLUSIVE
