"""Ratios between two sides, with intervals, tests, and the number of launches that a plan needs.

All functions take the logarithms of one number per launch. The steps of one launch are correlated, so they never count
as independent samples: that raised 22-42% false alarms (docs/explanation/certainty.md).

Two error models:

- Paired: both sides ran interleaved, so each launch of one has a partner in the other. The differences of the partners
  are tested with a t-test. This is the additive model of `block_model` for two units.
- Unpaired: the variances of both means add up, with Satterthwaite's degrees of freedom (Welch's t-test). The variance
  between sessions (`Between`) is added twice, once for each side.

A configuration is judged by its own variance. A variance that is pooled over configurations is too small for the
noisiest of them, so neither the false-alarm rate nor the bound would hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import chdtrc, chdtri, nctdtr, nctdtrinc, stdtr, stdtrit

from parabench.analysis.stats import CONFIDENCE

Numbers = np.ndarray[Any, np.dtype[np.float64]]
Case = TypeVar("Case")

# The probability with which two equal sides pass in a plan, for all configurations together.
POWER = 0.9
# A side with fewer launches has no spread.
FEWEST_LAUNCHES = 2
# Few launches can show less spread than there is, so plans use the upper 80% bound of the variance (R. H. Browne, "On
# the use of a pilot sample for sample size determination", Statistics in Medicine 14, 1995).
SURE_ENOUGH = 0.8
# A plan with more launches is reported as "more than" this number.
MOST_LAUNCHES = 500
# A smaller standard deviation of log times is the resolution of a clock.
LEAST_SD = 1e-6
# From so many standard errors on, the noise of a difference itself is negligible.
MANY_ERRORS = 30.0


@dataclass(frozen=True)
class Between:
    """The variation between sessions of one configuration.

    `variance` is the variance of the log of a session's mean, with `df` degrees of freedom. `launches` is the part of
    it that the noise of a session's launches explains, if it was measured in `sessions` sessions. If `sessions` is 0 it
    is an allowance: `df` is infinite and `launches` is 0.
    """

    variance: float
    df: float
    launches: float
    sessions: int

    @property
    def sd(self) -> float:
        """The standard deviation of a session's log time."""
        return math.sqrt(self.variance)

    @classmethod
    def allowed(cls, logs: Sequence[Numbers], allowance: float) -> Between:
        """Return an assumed standard deviation, for a configuration with these launches in each session.

        If the launches of one session differ by more, that is used instead: on a machine that drifts, the mean of a
        session is no more certain than one launch. With an allowance of 0, sessions do not differ.
        """
        df, within = _within(logs)
        if allowance and within > allowance**2:
            return cls(within, float(df), 0.0, 0)
        return cls(allowance**2, math.inf, 0.0, 0)

    @classmethod
    def measured(cls, logs: Sequence[Numbers]) -> Between:
        """Return the variance of the means of several sessions."""
        _, within = _within(logs)
        means = np.array([session.mean() for session in logs])
        return cls(
            variance=max(float(means.var(ddof=1)), LEAST_SD**2),
            df=len(logs) - 1.0,
            launches=within * float(np.mean([1 / len(session) for session in logs])),
            sessions=len(logs),
        )


def _within(logs: Sequence[Numbers]) -> tuple[int, float]:
    """Return the degrees of freedom and the variance of one launch within its session; 0 if it is unknown."""
    several = [session for session in logs if len(session) >= FEWEST_LAUNCHES]
    df = sum(len(session) - 1 for session in several)
    squares = sum((len(session) - 1) * float(session.var(ddof=1)) for session in several)
    return df, squares / df if df else 0.0


@dataclass(frozen=True)
class TTest:
    """The test of one configuration. `difference` is log(candidate / base), `error` its standard error.

    `p_slower` and `p_faster` are one-sided and adjusted over all `among` configurations by Holm's method. The bounds
    hold for this configuration alone. `variances` belong to one launch of each side, or to the differences of paired
    launches; `counts` are the launches of each side, or the pairs.
    """

    difference: float
    error: float
    df: float
    p_slower: float
    p_faster: float
    variances: tuple[float, ...]
    counts: tuple[int, ...]
    between: Between | None
    among: int

    def bound(self, confidence: float) -> float:
        """Return the one-sided upper bound of the difference; for a lower bound, pass 1 - confidence."""
        return self.difference + self.error * float(stdtrit(self.df, confidence))

    @property
    def low(self) -> float:
        """The lower end of the two-sided 95% interval."""
        return self.bound((1 - CONFIDENCE) / 2)

    @property
    def high(self) -> float:
        """The upper end of the two-sided 95% interval."""
        return self.bound((1 + CONFIDENCE) / 2)

    @property
    def upper(self) -> float:
        """The one-sided 95% upper bound."""
        return self.bound(CONFIDENCE)

    def launches_for(self, tolerance: float) -> int | None:
        """Return the launches per side with which `upper` of two equal sides is below `tolerance`, a fraction.

        The plan holds with probability POWER in all configurations together (Bonferroni). Return None if it needs more
        than MOST_LAUNCHES, or if sessions differ too much for any number.
        """
        df = [count - 1.0 for count in self.counts]
        planned = [v * own / float(chdtri(own, SURE_ENOUGH)) for v, own in zip(self.variances, df, strict=True)]
        power = 1 - (1 - POWER) / self.among
        needed = launches_for(math.log1p(tolerance), planned, power, self.between)
        if needed is not None and self.upper >= math.log1p(tolerance):
            needed = max(needed, min(self.counts) + 1)
        return needed if needed is None or needed <= MOST_LAUNCHES else None


def judge(
    cases: Mapping[Case, tuple[Sequence[float] | Numbers, Sequence[float] | Numbers]],
    *,
    paired: bool,
    between: Mapping[Case, Between] | None = None,
) -> dict[Case, TTest]:
    """Test the logarithms of base and candidate of each configuration; those with too few launches are left out.

    Paired sides hold the same blocks in the same order. `between` is the variation between sessions of each
    configuration; without it, unpaired sides get Welch's t-test.
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
    own = [tuple(max(float(side.var(ddof=1)), LEAST_SD**2) for side in sides) for sides in logs.values()]
    counts = [tuple(len(side) for side in sides) for sides in logs.values()]
    beside = [None if between is None or paired else between.get(case) for case in logs]
    error, df = _standard_error(np.array(own).T, np.array(counts, dtype=float).T, beside)
    difference = np.array([sides[-1].mean() - (0.0 if paired else sides[0].mean()) for sides in logs.values()])
    p_slower, p_faster = (holm(stdtr(df, sign * difference / error)) for sign in (-1, 1))
    numbers = zip(difference.tolist(), error.tolist(), df.tolist(), p_slower, p_faster, strict=True)
    return {
        case: TTest(*numbers_of, own[i], counts[i], beside[i], len(logs))
        for i, (case, numbers_of) in enumerate(zip(logs, numbers, strict=True))
    }


def logs_of(numbers: ArrayLike) -> Numbers:
    """Return the logarithms of launches' numbers."""
    logs: Numbers = np.log(np.asarray(numbers, dtype=float))
    return logs


def factor(difference: float) -> float:
    """Return the ratio of a difference of logarithms, limited so that JSON can hold it."""
    return math.exp(max(-50.0, min(50.0, difference)))


def holm(p_values: Sequence[float] | Numbers) -> list[float]:
    """Return p-values adjusted by Holm's step-down method.

    It keeps the family-wise error without assuming independence (S. Holm, "A simple sequentially rejective multiple
    test procedure", Scandinavian Journal of Statistics 6, 1979).
    """
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    found: list[float] = adjusted.tolist()
    return found


def launches_for(
    difference: float, variances: Sequence[float], power: float, between: Between | None = None
) -> int | None:
    """Return the fewest launches per side with which the upper bound of two equal sides is below `difference`.

    This holds with probability `power`; None beyond MOST_LAUNCHES. `variances` are those of one launch of each side, or
    the one of the differences of paired launches.
    """
    n = np.arange(FEWEST_LAUNCHES, MOST_LAUNCHES + 1, dtype=float)
    each = np.array(variances)[:, None] * np.ones_like(n)
    error, df = _standard_error(each, np.array([n] * len(variances)), [between] * len(n))
    enough = shown(difference / error, df) >= power
    return int(n[enough.argmax()]) if enough.any() else None


def shown(errors: Numbers, df: Numbers, confidence: float = CONFIDENCE) -> Numbers:
    """Return the probability that a one-sided t-test shows a difference of so many standard errors.

    It is also the probability that the one-sided bound of two equal sides rules the difference out: that of a
    noncentral t beyond the quantile of t.
    """
    quantile = stdtrit(df, confidence)
    # For many errors scipy returns NaN or a wrong number. There, t is only small if the variance is overestimated by so
    # much, which is the upper tail of a chi-square.
    large = chdtrc(df, df * (errors / quantile) ** 2)
    found: Numbers = 1 - np.where(np.asarray(errors) > MANY_ERRORS, large, nctdtr(df, errors, quantile))
    return found


def errors_shown(df: Numbers, confidence: float, power: float) -> Numbers:
    """Return the difference, in standard errors, that such a test shows with probability `power`."""
    found: Numbers = nctdtrinc(df, 1 - power, stdtrit(df, confidence))
    return found


def _standard_error(variances: Numbers, counts: Numbers, between: Sequence[Between | None]) -> tuple[Numbers, Numbers]:
    """Return the standard errors and degrees of freedom (Satterthwaite) of several differences of means.

    `variances` of one launch and `counts` have the shape (sides, differences).
    """
    part = variances / counts
    launches = part.sum(axis=0)
    df = launches**2 / (part**2 / (counts - 1)).sum(axis=0)
    return _with_sessions(launches, df, counts.min(axis=0) - 1, between)


def _with_sessions(
    launches: Numbers, df: Numbers, fewest_df: Numbers, between: Sequence[Between | None]
) -> tuple[Numbers, Numbers]:
    """Return the standard errors and degrees of freedom of differences of the means of two sessions.

    `launches` is the variance that their launches alone give, with `df` degrees of freedom, of which the side with
    fewer has `fewest_df`. A variance that was measured between sessions contains the noise of their launches, so only
    what goes beyond it is added.
    """
    rows = [(each.variance, each.df, each.launches) if each is not None else (0.0, math.inf, 0.0) for each in between]
    session, session_df, held = np.array(rows).T
    measured = np.array([each is not None and each.sessions > 0 for each in between])
    own = np.where(measured, np.maximum(0.0, launches - 2 * held), launches)
    own_df = np.where(measured, fewest_df, df)
    total = own + 2 * session
    return np.sqrt(total), total**2 / (own**2 / own_df + (2 * session) ** 2 / session_df)


@dataclass(frozen=True)
class Mean:
    """The geometric mean of candidate / base over `cases` common configurations, with its 95% interval.

    The interval holds for just these configurations and machines. `reason` is why the mean or its interval is unknown.
    `session_sd` is the standard deviation of a session's log mean that the interval contains, from `sessions` sessions
    (0: an allowance); None if the interval is of the launches alone.
    """

    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    cases: int = 0
    reason: str = ""
    session_sd: float | None = None
    sessions: int = 0


def geometric_mean(
    logs: Sequence[tuple[pd.Series[float], ...]], reason: str = "", between: Between | None = None
) -> Mean:
    """Return the mean over configurations of (base, candidate), or of paired differences (candidate - base,).

    The mean is geometric because only then it does not depend on the side that one divides by (P. J. Fleming and J. J.
    Wallace, "How not to lie with statistics: the correct way to summarize benchmark results", CACM 29(3), 1986).

    The series are indexed by block. For k configurations with n launches each and logarithms y, the mean of a side is
    M = mean over configurations of mean(y). Launches of a block share its clocks and neighbors, so blocks are the
    independent units: with r = y - mean(y of its configuration), a block has u = sum(r / n) / k over its launches. The
    variance of M is m / (m - 1) times the sum of u^2, with m - 1 degrees of freedom, where m is the smallest n. If no
    launch is missing, this is var(block means) / blocks. Otherwise it is the cluster-robust variance of A. C. Cameron
    and D. L. Miller, "A practitioner's guide to cluster-robust inference", Journal of Human Resources 50 (2015), with m
    in place of the number of clusters. The two sides add up as in Welch's t-test.

    Configurations with fewer than two launches on a side are left out. If that leaves none, all are taken and there is
    no interval. `reason` explains configurations without a launch.
    """
    known = [sides for sides in logs if all(map(len, sides))]
    enough = [sides for sides in known if min(map(len, sides)) >= FEWEST_LAUNCHES]
    if not known:
        return Mean(reason=reason)
    sides = [_table(side) for side in zip(*(enough or known), strict=True)]
    levels = [float(side.mean().mean()) for side in sides]
    difference = levels[-1] - (levels[0] if len(sides) > 1 else 0.0)
    ratio = math.exp(difference)
    if not enough:
        why = f"an interval needs {FEWEST_LAUNCHES} launches of a case on each side"
        return Mean(ratio, cases=len(known), reason=why)
    variances, df = np.array([_variance(side) for side in sides]).T
    launches = variances.sum()
    own_df = launches**2 / (variances**2 / df).sum()
    error, whole_df = _with_sessions(np.array([launches]), np.array([own_df]), np.array([df.min()]), [between])
    half = float(stdtrit(whole_df[0], (1 + CONFIDENCE) / 2) * error[0])
    session = (between.sd, between.sessions) if between is not None else (None, 0)
    return Mean(ratio, factor(difference - half), factor(difference + half), len(enough), "", *session)


def by_block(cases: Sequence[pd.Series[float]]) -> Numbers:
    """Return one number per block of a side; their mean is M of `geometric_mean`."""
    table = _table(cases)
    blocks: Numbers = np.asarray(table.mean().mean() + len(table) * _shares(table), dtype=float)
    return blocks


def _table(cases: Sequence[pd.Series[float]]) -> pd.DataFrame:
    """Return the logarithms of a side by block and configuration."""
    of_case = np.repeat(np.arange(len(cases)), [len(case) for case in cases])
    block = np.concatenate([case.index.get_level_values(0) for case in cases])
    return pd.Series(np.concatenate(cases), [block, of_case]).unstack()


def _shares(table: pd.DataFrame) -> pd.Series[float]:
    """Return `u` of `geometric_mean`, by block."""
    return ((table - table.mean()) / table.count()).sum(axis=1) / table.shape[1]


def _variance(table: pd.DataFrame) -> tuple[float, float]:
    """Return the variance of a side's mean, and its degrees of freedom."""
    fewest = int(table.count().min())
    variance = fewest / (fewest - 1) * float((_shares(table) ** 2).sum())
    return max(variance, LEAST_SD**2 / len(table)), fewest - 1
