"""Is a difference between launches more than their noise, and how small a one could have been seen?

Everything here is about the logarithms of launches' numbers, one number a launch: steps of one launch share its fate,
and counted as independent they raised false alarms to 22-42 % (docs/certainty.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats
from scipy.special import digamma, nctdtrinc

Numbers = np.ndarray[Any, np.dtype[np.float64]]

CONFIDENCE = 0.95
# The smallest detectable slowdown is one that is found with this probability.
POWER = 0.95
# Below two launches a side there is no spread to judge a difference against.
FEWEST_LAUNCHES = 2
# Few launches may show less spread than there is: plans are made with the upper 80 % bound of the variance, as R. H.
# Browne has it in "On the use of a pilot sample for sample size determination", Statistics in Medicine 14 (1995).
SURE_ENOUGH = 0.8
# A plan with more launches than this is not a plan; the answer is then "more than".
MOST_LAUNCHES = 500
# Further out in the tail of a t distribution scipy's nctdtrinc searches without an end (at 1e-12 with 2 degrees of
# freedom; 1e-9 takes it 20 ms).
LEAST_LEVEL = 1e-9
# Standard deviations of log times below this are a clock's resolution, not agreement.
LEAST_SD = 1e-6
# How many launches the variance that all cases have in common is worth beside a case's own. In simulated comparisons
# of one machine with itself, with every kind of noise that was tried, 1 kept the false alarms below the level asked for
# at 3 and 5 launches; 2 did not where cases differ tenfold in noise.
COMMON_WEIGHT = 1.0


@dataclass(frozen=True)
class Test:
    """One case. `difference` is log(candidate / base), with its standard error and degrees of freedom.

    `p_slower` and `p_faster` are one-sided; `judge` adjusts them over all cases by Holm's method. `low` to `high` is
    the two-sided 95 % interval of the difference, for this case alone. `detectable` is the smallest slowdown, on the
    log scale, that would have been significant with probability POWER, if the spread is as measured. `variances` are of
    one launch of each side (of the differences where launches are paired), to be planned with: SURE_ENOUGH that they
    are not larger. `level` is what a single case has to pass, `counts` are the
    launches of each side (the pairs of them).
    """

    difference: float
    error: float
    df: float
    p_slower: float
    p_faster: float
    low: float
    high: float
    detectable: float
    variances: tuple[float, ...]
    level: float
    counts: tuple[int, ...]

    def launches_for(self, tolerance: float) -> int | None:
        """How many launches a side would make a slowdown of `tolerance`, a fraction, detectable; None beyond
        MOST_LAUNCHES. Where it is not detectable with the launches that there are, the shorter side needs more."""
        needed = launches_for(math.log1p(tolerance), self.variances, self.level)
        if needed is not None and self.detectable > math.log1p(tolerance):
            needed = max(needed, min(self.counts) + 1)
        return needed if needed is None or needed <= MOST_LAUNCHES else None


def judge(
    cases: Mapping[str, tuple[Sequence[float] | Numbers, Sequence[float] | Numbers]],
    *,
    paired: bool,
    alpha: float,
) -> dict[str, Test]:
    """Test each case's logs of base and candidate, one number a launch; cases with too few launches are left out.

    Paired: both sides hold the same blocks in the same order, and the test is a t-test of their differences. Unpaired:
    Welch's t-test with Satterthwaite's degrees of freedom. The variance of a few launches is hardly known, so each is
    moderated by what all cases have in common, as G. K. Smyth does it in "Linear models and empirical Bayes methods",
    Statistical Applications in Genetics and Molecular Biology 3 (2004), with a small fixed weight, COMMON_WEIGHT.
    """
    logs = {
        case: tuple(np.asarray(side, dtype=float) for side in sides)
        for case, sides in cases.items()
        if min(len(side) for side in sides) >= FEWEST_LAUNCHES
    }
    if not logs:
        return {}
    if paired:
        logs = {case: (candidate - base,) for case, (base, candidate) in logs.items()}
    variances = _moderated([side for sides in logs.values() for side in sides])
    level = alpha / len(logs)  # of the first of Holm's steps, which a single slow case has to pass
    tests = {}
    for case, sides in logs.items():
        own = [next(variances) for _ in sides]
        error, df = map(float, _standard_error(own, [len(side) for side in sides]))
        difference = float(sides[-1].mean()) if paired else float(sides[1].mean() - sides[0].mean())
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, df)) * error
        tests[case] = Test(
            difference=difference,
            error=error,
            df=df,
            p_slower=float(stats.t.sf(difference / error, df)),
            p_faster=float(stats.t.cdf(difference / error, df)),
            low=difference - half,
            high=difference + half,
            detectable=float(detectable(error, df, level)),
            variances=tuple(variance * df / float(stats.chi2.isf(SURE_ENOUGH, df)) for variance, df in own),
            level=level,
            counts=tuple(len(side) for side in sides),
        )
    slower, faster = holm([test.p_slower for test in tests.values()]), holm([test.p_faster for test in tests.values()])
    return {
        case: replace(test, p_slower=p, p_faster=q)
        for (case, test), p, q in zip(tests.items(), slower, faster, strict=True)
    }


def logs_of(numbers: pd.Series[float]) -> Numbers:
    """The logarithms of launches' numbers."""
    logs: Numbers = np.log(numbers.to_numpy(dtype=float))
    return logs


def factor(difference: float) -> float:
    """What a difference of logarithms multiplies by; an end of an interval from two wild launches stays JSON-able."""
    return math.exp(max(-50.0, min(50.0, difference)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment; keeps the family-wise error without assuming independence."""
    from statsmodels.stats.multitest import multipletests

    return [float(p) for p in multipletests(p_values, method="holm")[1]] if len(p_values) else []


def detectable(error: ArrayLike, df: ArrayLike, level: float, power: float = POWER) -> Numbers:
    """The smallest difference that a one-sided t-test at `level` finds with probability `power`.

    `error` is the standard error of the difference, `df` its degrees of freedom; both may be arrays. The noncentral t
    distribution, solved for its noncentrality: what statsmodels' `ttest_power` gives, turned around. Raises ValueError
    for a level below LEAST_LEVEL, with which it would not return; a larger one in its place would promise too much.
    """
    if level < LEAST_LEVEL:
        raise ValueError(f"level {level:g} is below {LEAST_LEVEL:g}; ask for a larger alpha, or compare fewer cases")
    noncentrality: Numbers = nctdtrinc(df, 1 - power, stats.t.isf(level, df))
    return np.asarray(error) * noncentrality


def launches_for(difference: float, variances: Sequence[float], level: float, power: float = POWER) -> int | None:
    """The fewest launches a side with which `difference` is detectable; None beyond MOST_LAUNCHES.

    `variances` are of one launch, of each side; of one when launches are paired, and then of the differences.
    """
    n = np.arange(FEWEST_LAUNCHES, MOST_LAUNCHES + 1, dtype=float)
    error, df = _standard_error([(variance, n - 1 + COMMON_WEIGHT) for variance in variances], [n] * len(variances))
    enough = detectable(error, df, level, power) <= difference
    return int(n[enough.argmax()]) if enough.any() else None


def _moderated(sides: Sequence[Numbers]) -> Iterator[tuple[float, float]]:
    """(variance, degrees of freedom) of each side, in order."""
    own = np.maximum([side.var(ddof=1) for side in sides], LEAST_SD**2)
    df = np.array([len(side) - 1.0 for side in sides])
    # The mean of log variances, corrected for the bias of a logarithm (Smyth 2004, section 6.2).
    common = float(np.exp((np.log(own) - digamma(df / 2) + np.log(df / 2)).mean()))
    moderated = (COMMON_WEIGHT * common + df * own) / (COMMON_WEIGHT + df)
    return iter(zip(moderated.tolist(), (df + COMMON_WEIGHT).tolist(), strict=True))


def _standard_error(
    variances: Sequence[tuple[float, float | Numbers]], counts: Sequence[int | Numbers]
) -> tuple[Numbers, Numbers]:
    """(standard error, degrees of freedom by Satterthwaite) of a sum of means with (variance, df) each."""
    parts = [(variance / np.asarray(n, dtype=float), df) for (variance, df), n in zip(variances, counts, strict=True)]
    total = np.sum([part for part, _ in parts], axis=0)
    return np.sqrt(total), total**2 / np.sum([part**2 / df for part, df in parts], axis=0)
