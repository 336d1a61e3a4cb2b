"""The geometric mean of many cases' ratios, with an interval whose unit is the block.

A geometric mean, because it alone does not depend on which side one divides by: P. J. Fleming and J. J. Wallace, "How
not to lie with statistics: the correct way to summarize benchmark results", CACM 29(3), 1986.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.ttest import FEWEST_LAUNCHES, LEAST_SD, Between, Case, Numbers, factor, with_sessions


@dataclass(frozen=True)
class Mean:
    """candidate / base over `cases` common cases, with its 95 % interval for just these cases and machines.

    `reason` says why it, or its interval, is unknown. `session_sd` is the standard deviation of a session's log mean
    that the interval holds twice, read from `sessions` sessions, an allowance where that is 0; None where the interval
    is of the launches alone.
    """

    ratio: float | None
    low: float | None
    high: float | None
    cases: int
    base_blocks: int
    candidate_blocks: int
    reason: str
    session_sd: float | None = None
    sessions: int = 0


def geometric_mean(logs: Sequence[tuple[pd.Series[float], ...]], reason: str, between: Between | None = None) -> Mean:
    """The mean over cases of (base, candidate); or of launches that took turns, of their differences
    (candidate - base,) alone.

    With k cases, n launches of a case in a side and y their logs, a side's mean is M = (1/k) sum over cases of mean(y),
    and the ratio exp(M_candidate - M_base). What a block's launches share (clocks, neighbours) is in all cases at once,
    so blocks and neither launches nor cases are independent: with r = y - mean(y of its case), a block has
    u = (1/k) sum of r / n over its launches, and the variance of M is m / (m - 1) times the sum of u^2 over blocks,
    with m - 1 degrees of freedom, m being the launches of the case that has fewest. Where no launch is missing m is the
    number of blocks B, and this is var(block means) / B; else it is the cluster-robust variance of A. C. Cameron and
    D. L. Miller, "A practitioner's guide to cluster-robust inference", Journal of Human Resources 50 (2015), with m
    for their number of clusters, because a block of few cases tells little of the others. The two sides add up as
    in Welch's t-test. Cases with fewer than two launches on a side have no r: they are left out, and where that leaves
    none, all are taken and there is no interval. `reason` is why cases without any launch on a side have none.
    `between` is what M of two sessions differs by without any change; without it the interval is of the launches alone.
    """
    judged, enough = averaged(dict(enumerate(logs)))
    taken = [logs[at] for at in judged]
    if not taken:
        return Mean(None, None, None, 0, 0, 0, reason)
    sides = [_side(cases) for cases in zip(*taken, strict=True)]
    difference = sides[-1][0] - (sides[0][0] if len(sides) > 1 else 0.0)
    blocks = sides[0][3], sides[-1][3]
    if not enough:
        why = f"an interval needs {FEWEST_LAUNCHES} launches of a case on each side"
        return Mean(math.exp(difference), None, None, len(taken), *blocks, why)
    launches = sum(variance for _, variance, _, _ in sides)
    df = launches**2 / sum(variance**2 / df for _, variance, df, _ in sides)
    fewest = min(df for _, _, df, _ in sides)
    total, whole_df = with_sessions(np.array([launches]), np.array([df]), np.array([fewest]), [between])
    half = float(stdtrit(whole_df[0], (1 + CONFIDENCE) / 2)) * math.sqrt(total[0])
    low, high = (factor(difference + sign * half) for sign in (-1, 1))
    known = (between.sd, between.sessions) if between is not None else (None, 0)
    return Mean(math.exp(difference), low, high, len(taken), *blocks, "", *known)


def averaged(logs: Mapping[Case, tuple[pd.Series[float], ...]]) -> tuple[list[Case], bool]:
    """Those of the cases that a mean is of, and whether they have launches enough for its interval."""
    known = [case for case, pair in logs.items() if all(len(side) for side in pair)]
    enough = [case for case in known if all(len(side) >= FEWEST_LAUNCHES for side in logs[case])]
    return enough or known, bool(enough)


def by_block(cases: Sequence[pd.Series[float]]) -> Numbers:
    """One side as a number a block, whose mean is M: of a block, M and what its launches are off it."""
    mean, shares = _shares(cases)
    return mean + len(shares) * shares


def _side(cases: Sequence[pd.Series[float]]) -> tuple[float, float, int, int]:
    """(mean, its variance, degrees of freedom, blocks) of one side; without a variance where a case has one launch."""
    mean, shares = _shares(cases)
    fewest = min(map(len, cases))
    if fewest < FEWEST_LAUNCHES:
        return mean, math.nan, 0, len(shares)
    variance = fewest / (fewest - 1) * float((shares**2).sum())
    return mean, max(variance, LEAST_SD**2 / len(shares)), fewest - 1, len(shares)


def _shares(cases: Sequence[pd.Series[float]]) -> tuple[float, Numbers]:
    """(M, u of each block) of one side."""
    launches = np.array([len(case) for case in cases])
    of_case = np.repeat(np.arange(len(cases)), launches)
    values = np.concatenate([case.to_numpy() for case in cases])
    means = np.bincount(of_case, values) / launches
    _, block = np.unique(np.concatenate([case.index.get_level_values(0) for case in cases]), return_inverse=True)
    return float(np.mean(means)), np.bincount(block, (values - means[of_case]) / launches[of_case]) / len(cases)
