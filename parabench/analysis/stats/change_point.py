"""Find the change points of a series of sessions, each with the logarithms of several launches.

The noise has two parts, both estimated from the series: launches differ within a session, and sessions differ more than
their launches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaincinv, ndtri

from parabench.analysis.stats.contrasts import FEWEST_LAUNCHES, LEAST_SD, Numbers

# With fewer sessions, the spread between sessions is unknown. In simulated series of 6 sessions, with a noise of 1%, a
# step of 10% was found in 85%.
FEWEST_SESSIONS = 6
# Sessions for each lag at which two are compared, and the longest lag. In simulated series with an autocorrelation of
# 0.3, one lag gave 16% false alarms at 30 sessions, three gave 5%. In short series, longer lags take a step for noise.
SESSIONS_PER_LAG, MOST_LAGS = 10, 3
# A shift at the end of the series that lasts less than this many sessions is an outlier.
LASTING = 1.5
# Levels are tried in steps of this many standard deviations, which costs a segment of n sessions n / 400 at most.
RESOLUTION = 0.1
# What makes Qn consistent: the lower quartile of the distances between normal values is sqrt(2) Phi^-1(5/8).
QN_NORMAL = 1 / (math.sqrt(2) * float(ndtri(5 / 8)))


@dataclass(frozen=True)
class Noise:
    """Standard deviations on the log scale: of a `launch` within its session (None if no session has two), and between
    sessions, beyond their launches."""

    launch: float | None
    session: float

    def of(self, launches: Numbers) -> Numbers:
        """Return the standard deviation of the mean of each session, by its number of launches."""
        within = 0.0 if self.launch is None else self.launch**2
        sd: Numbers = np.maximum(np.sqrt(within / launches + self.session**2), LEAST_SD)
        return sd


@dataclass(frozen=True)
class Level:
    """The sessions `start` to before `end`, which have one level: `mean`, with its standard `error`, on the log scale.
    `outliers` are the sessions that are too far away to count."""

    start: int
    end: int
    mean: float
    error: float
    outliers: tuple[int, ...]


class LevelCost:
    """The cost of sessions `y` with standard deviations `sd` at one level, for ruptures.

    It is the biweight loss of P. Fearnhead and G. Rigaill, "Changepoint detection in the presence of outliers", JASA
    114 (2019): the squared distance to the best level, in variances, at most `bound` for each session.
    """

    model, min_size = "biweight", 1

    def __init__(self, y: Numbers, sd: Numbers, bound: float) -> None:
        self.y, self.sd, self.bound = y, sd, bound
        self.signal = y.reshape(-1, 1)
        step = RESOLUTION * float(sd.min())
        # The best level is a mean of sessions within the bound, so levels far from all sessions are not tried.
        reach = math.ceil(math.sqrt(bound) * float(sd.max()) / step)
        places = np.unique((np.round((y - y.min()) / step)[:, None] + np.arange(-reach, reach + 1)).ravel())
        self._levels = y.min() + places[(places >= 0) & (places * step <= np.ptp(y) + step)] * step
        loss = np.minimum(((y[:, None] - self._levels) / sd[:, None]) ** 2, bound)
        self._summed = np.vstack([np.zeros(len(self._levels)), loss.cumsum(axis=0)])

    def fit(self, signal: object) -> LevelCost:
        return self

    def error(self, start: int, end: int) -> float:
        """Return the cost of sessions `start` to before `end`."""
        return float((self._summed[end] - self._summed[start]).min())

    def level(self, start: int, end: int) -> Level:
        """Return the level of sessions `start` to before `end`."""
        nearest = self._levels[(self._summed[end] - self._summed[start]).argmin()]
        y, sd = self.y[start:end], self.sd[start:end]
        near = ((y - nearest) / sd) ** 2 < self.bound
        weights = 1 / sd[near] ** 2
        outliers = tuple(int(place) + start for place in np.flatnonzero(~near))
        mean = float(np.average(y[near], weights=weights))
        return Level(start, end, mean, float(weights.sum() ** -0.5), outliers)


def levels_of(sessions: Sequence[Numbers]) -> tuple[tuple[Level, ...], Noise]:
    """Return the levels of a series; `sessions` are the logs of the launches of each session, in order of time.

    The segmentation has the least penalized cost (PELT: R. Killick, P. Fearnhead and I. A. Eckley, "Optimal detection
    of changepoints with a linear computational cost", JASA 107, 2012).
    """
    import ruptures

    means = np.array([session.mean() for session in sessions])
    noise = noise_of(sessions)
    sd = noise.of(np.array([len(session) for session in sessions], dtype=float))
    cost = LevelCost(means, sd, bound(len(sessions)))
    ruptures.base.BaseCost.register(LevelCost)
    ends = ruptures.Pelt(custom_cost=cost, min_size=1, jump=1).fit_predict(means, pen=penalty(len(sessions)))
    return tuple(cost.level(start, end) for start, end in itertools.pairwise([0, *ends])), noise


def penalty(sessions: int) -> float:
    """Return the least gain of a change, in variances: 2 log n + 5.

    E. Lebarbier, "Detecting multiple change-points in the mean of Gaussian process by model selection", Signal
    Processing 85 (2005), has D (2 log(n / D) + 5) for D levels. Schwarz's criterion, 2 log n, raises more false alarms
    if the variance is an estimate.
    """
    return 2 * math.log(sessions) + 5


def bound(sessions: int) -> float:
    """Return the largest cost of a session, in variances: one session is an outlier, and two that agree are a change.

    At 30 sessions it is 7.9, at 100 it is 9.5; Fearnhead and Rigaill advise 9.
    """
    return penalty(sessions) / LASTING


def noise_of(sessions: Sequence[Numbers]) -> Noise:
    """Return both parts of the noise, robust against a few steps and outliers.

    Between sessions it is Qn of the differences between neighbors, which a step affects once, without the part that
    launches explain. In long series, lags of two and three count as well, and the largest is used: a correlation of
    neighbors would hide how far sessions differ.
    """
    means = np.array([session.mean() for session in sessions])
    lags = range(1, 1 + max(1, min(MOST_LAGS, len(sessions) // SESSIONS_PER_LAG)))
    whole = max(qn_scale(means[lag:] - means[:-lag]) for lag in lags) / math.sqrt(2)
    launch = launch_noise(sessions)
    explained = 0.0 if launch is None else launch**2 * float(np.mean([1 / len(session) for session in sessions]))
    return Noise(launch, math.sqrt(max(0.0, whole**2 - explained)))


def qn_scale(values: Numbers) -> float:
    """Return Qn, a robust standard deviation.

    P. J. Rousseeuw and C. Croux, "Alternatives to the median absolute deviation", JASA 88 (1993), define it as the k-th
    smallest distance between two values, k = h (h - 1) / 2 with h = n // 2 + 1, times its factor for normal values.

    Without their factors for small samples, few values give too large a spread (5 by 18%, 6 by 64%) and so fewer false
    alarms. Half of the values may be anything.
    """
    h = len(values) // 2 + 1
    k = h * (h - 1) // 2
    i, j = np.triu_indices(len(values), 1)
    return QN_NORMAL * float(np.partition(np.abs(values[i] - values[j]), k - 1)[k - 1])


def launch_noise(sessions: Sequence[Numbers]) -> float | None:
    """Return the standard deviation of a launch within its session; None if no session has two.

    It is the median of the sessions' variances, each divided by its median for normal values.
    """
    several = [session for session in sessions if len(session) >= FEWEST_LAUNCHES]
    if not several:
        return None
    freedom = [len(session) - 1 for session in several]
    by_chance = {df: 2 * float(gammaincinv(df / 2, 0.5)) / df for df in set(freedom)}
    typical = [session.var(ddof=1) / by_chance[df] for session, df in zip(several, freedom, strict=True)]
    return math.sqrt(float(np.median(typical)))
