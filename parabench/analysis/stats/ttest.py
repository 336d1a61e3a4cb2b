"""Is a difference between launches more than their noise, and how large a one can be ruled out?

Everything here is about the logarithms of launches' numbers, one number a launch: steps of one launch share its fate,
and counted as independent they raised false alarms to 22-42 % (docs/explanation/certainty.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtrc, chdtri, nctdtr, nctdtrinc, stdtr, stdtrit

from parabench.analysis.stats import CONFIDENCE

Numbers = np.ndarray[Any, np.dtype[np.float64]]
Case = TypeVar("Case")

# Launches are planned so that two equal sides pass with this probability, in all cases at once.
POWER = 0.9
# Below two launches a side there is no spread to judge a difference against.
FEWEST_LAUNCHES = 2
# Few launches may show less spread than there is: plans are made with the upper 80 % bound of the variance, as R. H.
# Browne has it in "On the use of a pilot sample for sample size determination", Statistics in Medicine 14 (1995).
SURE_ENOUGH = 0.8
# A plan with more launches than this is not a plan; the answer is then "more than".
MOST_LAUNCHES = 500
# Standard deviations of log times below this are a clock's resolution, not agreement.
LEAST_SD = 1e-6


@dataclass(frozen=True)
class Between:
    """What two sessions of one case differ by themselves, where they did not take turns.

    `variance` is of the log of a session's mean, with `df` degrees of freedom. Of it `launches` is what the noise of a
    session's launches accounts for, where it was read from `sessions` sessions. An allowance (`sessions` is 0) is
    known, so its `df` is infinite, and holds nothing of the launches.
    """

    variance: float
    df: float
    launches: float
    sessions: int

    @property
    def sd(self) -> float:
        """The standard deviation of a session's log time."""
        return math.sqrt(self.variance)


@dataclass(frozen=True)
class TTest:
    """One case. `difference` is log(candidate / base), with its standard error and degrees of freedom.

    `p_slower` and `p_faster` are one-sided; `judge` adjusts them over all cases by Holm's method. `low` to `high` is
    the two-sided 95 % interval of the difference, and `upper` its one-sided 95 % upper bound, for this case alone.
    `variances` are of one launch of each side (of the differences where launches are paired), and `counts` the launches
    of each (the pairs of them). `among` is how many cases were judged.
    """

    difference: float
    error: float
    df: float
    p_slower: float
    p_faster: float
    low: float
    high: float
    upper: float
    variances: tuple[float, ...]
    counts: tuple[int, ...]
    between: Between | None
    among: int

    def launches_for(self, tolerance: float) -> int | None:
        """With how many launches a side `upper` would lie below `tolerance`, a fraction, if both sides were equal:
        with probability POWER in all cases at once (Bonferroni). None beyond MOST_LAUNCHES, and where sessions differ
        so much by themselves that no number does. Planned with SURE_ENOUGH that the spread is not larger. Where the
        bound is not there with the launches that there are, the shorter side needs more."""
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
    """Test each case's logs of base and candidate, one number a launch; cases with too few launches are left out.

    Paired: both sides hold the same blocks in the same order, and the test is a t-test of their differences. Unpaired:
    the variances of both means, and of what sessions differ (`between`, for each case), add up, with Satterthwaite's
    degrees of freedom; without `between` that is Welch's t-test. A case is judged by its own variance alone: one
    that leans on other cases is too small where it is the noisiest of them, and neither the rate of false
    alarms nor the bound would hold there (docs/explanation/certainty.md).
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
    slower, faster = stdtr(df, -difference / error), stdtr(df, difference / error)
    half, above = (stdtrit(df, share) * error for share in ((1 + CONFIDENCE) / 2, CONFIDENCE))
    p_slower, p_faster = holm(slower), holm(faster)
    return {
        case: TTest(
            difference=float(difference[i]),
            error=float(error[i]),
            df=float(df[i]),
            p_slower=p_slower[i],
            p_faster=p_faster[i],
            low=float(difference[i] - half[i]),
            high=float(difference[i] + half[i]),
            upper=float(difference[i] + above[i]),
            variances=own[i],
            counts=counts[i],
            between=beside[i],
            among=len(logs),
        )
        for i, case in enumerate(logs)
    }


def logs_of(numbers: ArrayLike) -> Numbers:
    """The logarithms of launches' numbers."""
    logs: Numbers = np.log(np.asarray(numbers, dtype=float))
    return logs


def factor(difference: float) -> float:
    """What a difference of logarithms multiplies by; an end of an interval from two wild launches stays JSON-able."""
    return math.exp(max(-50.0, min(50.0, difference)))


def holm(p_values: Sequence[float] | Numbers) -> list[float]:
    """Holm's step-down adjustment: the smallest of m p-values times m, the next times m - 1, never below one before it.

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
    """The fewest launches a side with which the one-sided 95 % upper bound of two equal sides lies below `difference`
    with probability `power`; None beyond MOST_LAUNCHES.

    `variances` are of one launch, of each side; of one when launches are paired, and then of the differences.
    """
    n = np.arange(FEWEST_LAUNCHES, MOST_LAUNCHES + 1, dtype=float)
    each = np.array(variances)[:, None] * np.ones_like(n)
    error, df = _standard_error(each, np.array([n] * len(variances)), [between] * len(n))
    enough = shown(difference / error, df) >= power
    return int(n[enough.argmax()]) if enough.any() else None


# From so many standard errors on a difference's own noise is nothing beside it.
MANY_ERRORS = 30.0


def shown(errors: Numbers, df: Numbers, confidence: float = CONFIDENCE) -> Numbers:
    """The probability that a one-sided t-test at `confidence` shows a difference of so many of its standard errors, and
    as well that the one-sided bound of two equal sides rules it out: that of a noncentral t beyond the t quantile."""
    quantile = stdtrit(df, confidence)
    # Of many errors scipy has no number, or a wrong one. There only the spread can make t small, not the difference's
    # own noise: what is missed is the chance that the variance is so much too large, a chi-square's upper tail.
    large = chdtrc(df, df * (errors / quantile) ** 2)
    found: Numbers = 1 - np.where(np.asarray(errors) > MANY_ERRORS, large, nctdtr(df, errors, quantile))
    return found


def errors_shown(df: Numbers, confidence: float, power: float) -> Numbers:
    """The difference, in standard errors, that such a test shows with probability `power`."""
    found: Numbers = nctdtrinc(df, 1 - power, stdtrit(df, confidence))
    return found


def _standard_error(variances: Numbers, counts: Numbers, between: Sequence[Between | None]) -> tuple[Numbers, Numbers]:
    """(standard error, degrees of freedom by Satterthwaite) of each of several differences of means.

    `variances` are of one launch, of shape (sides, differences), and so are `counts`. What sessions differ is added as
    `with_sessions` does.
    """
    part = variances / counts
    launches = part.sum(axis=0)
    df = launches**2 / (part**2 / (counts - 1)).sum(axis=0)
    total, df = with_sessions(launches, df, counts.min(axis=0) - 1, between)
    return np.sqrt(total), df


def with_sessions(
    launches: Numbers, df: Numbers, fewest_df: Numbers, between: Sequence[Between | None]
) -> tuple[Numbers, Numbers]:
    """(variance, degrees of freedom by Satterthwaite) of differences of two sessions' means: `launches` is what their
    launches alone give it, with `df` degrees of freedom, `fewest_df` of them on the side that has fewer.

    What sessions differ is added twice. A variance between sessions' means that was read from sessions holds the noise
    of as many launches as these had: of the launches only what goes beyond that is added.
    """
    rows = [(each.variance, each.df, each.launches) if each is not None else (0.0, math.inf, 0.0) for each in between]
    session, session_df, held = np.array(rows).T
    measured = np.array([each is not None and each.sessions > 0 for each in between])
    own = np.where(measured, np.maximum(0.0, launches - 2 * held), launches)
    own_df = np.where(measured, fewest_df, df)
    total = own + 2 * session
    return total, total**2 / (own**2 / own_df + (2 * session) ** 2 / session_df)
