"""Find the change points in the step times of a series of sessions with several launches each.

The noise has two parts, both estimated from the series: launches differ within a session, and sessions differ more than
their launches. docs/explanation/change-points.md explains the method and its accuracy.
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
# Sessions for each lag, and the longest lag. In simulated series of 30 sessions with an autocorrelation of 0.3, one lag
# gave 16% false alarms, three gave 5%. In short series, longer lags mistake a step for noise.
SESSIONS_PER_LAG, MOST_LAGS = 10, 3
# A shift at the end of the series that lasts less than this many sessions is an outlier.
LASTING = 1.5
# Levels are tried in steps of this many standard deviations. This adds at most n / 400 to the loss of n sessions.
RESOLUTION = 0.1
# The factor that makes Qn consistent: the lower quartile of distances between normal values is sqrt(2) Phi^-1(5/8).
QN_NORMAL = 1 / (math.sqrt(2) * float(ndtri(5 / 8)))


@dataclass(frozen=True)
class Level:
    """A segment of a series without a change point: the sessions from `start` to before `end`.

    `mean` and its standard `error` are on the log scale. `outliers` are the sessions too far from the mean to count.
    """

    start: int
    end: int
    mean: float
    error: float
    outliers: tuple[int, ...]


def levels_of(sessions: Sequence[Numbers]) -> tuple[tuple[Level, ...], float]:
    """Return the levels of a series, and the standard deviation between sessions that launches do not explain.

    `sessions` are the logarithms of the launches of each session, in order of time. The levels minimize the sum of
    losses and a penalty per change: 2 log n + 5 variances (E. Lebarbier, "Detecting multiple change-points in the mean
    of Gaussian process by model selection", Signal Processing 85, 2005: D (2 log(n / D) + 5) for D levels). Schwarz's
    criterion, 2 log n, raises more false alarms if the variance is an estimate.

    The loss of a session is the squared distance to its level in variances, at most penalty / LASTING (the biweight
    loss of P. Fearnhead and G. Rigaill, "Changepoint detection in the presence of outliers", JASA 114, 2019). So one
    session is an outlier, and two that agree are a change. At 30 sessions, the limit is 7.9; the paper advises 9.
    """
    y = np.array([session.mean() for session in sessions])
    within = (launch_noise(sessions) or 0.0) ** 2 / np.array([len(session) for session in sessions])
    # The noise of sessions is Qn of the differences between neighbors, because a change affects only one difference. In
    # long series, the largest noise of several lags is used, because neighbors may correlate.
    lags = range(1, 1 + max(1, min(MOST_LAGS, len(y) // SESSIONS_PER_LAG)))
    noise = max(qn_scale(y[lag:] - y[:-lag]) for lag in lags) / math.sqrt(2)
    between = math.sqrt(max(0.0, noise**2 - float(within.mean())))
    sd = np.maximum(np.sqrt(within + between**2), LEAST_SD)
    penalty = 2 * math.log(len(y)) + 5
    most = penalty / LASTING
    tried = _tried(y, sd, most)
    loss = np.minimum(((y[:, None] - tried) / sd[:, None]) ** 2, most)
    summed = np.vstack([np.zeros(len(tried)), loss.cumsum(axis=0)])

    def level(start: int, end: int) -> Level:
        nearest = tried[(summed[end] - summed[start]).argmin()]
        near = np.zeros(len(y), dtype=bool)
        near[start:end] = ((y - nearest) / sd)[start:end] ** 2 < most
        weights = 1 / sd[near] ** 2
        outliers = tuple(place for place in range(start, end) if not near[place])
        return Level(start, end, float(np.average(y[near], weights=weights)), float(weights.sum() ** -0.5), outliers)

    return tuple(level(*ends) for ends in itertools.pairwise(_ends(summed, penalty))), between


def _tried(y: Numbers, sd: Numbers, most: float) -> Numbers:
    """Return the levels to try: a grid around the means `y`, because the best level is within the limit of some."""
    step = RESOLUTION * float(sd.min())
    reach = math.ceil(math.sqrt(most) * float(sd.max()) / step)
    grid = np.unique((np.round((y - y.min()) / step)[:, None] + np.arange(-reach, reach + 1)).ravel())
    tried: Numbers = y.min() + grid[(grid >= 0) & (grid * step <= np.ptp(y) + step)] * step
    return tried


def _ends(summed: Numbers, penalty: float) -> list[int]:
    """Return 0 and the ends of the segments with the least penalized loss.

    `summed` are cumulative losses, shape (sessions + 1, levels). This is the exact minimum by dynamic programming
    (B. Jackson et al., "An algorithm for optimal partitioning of data on an interval", IEEE Signal Processing Letters
    12, 2005).
    """
    least, start_of = np.zeros(len(summed)), np.zeros(len(summed), dtype=int)
    for end in range(1, len(summed)):
        losses = least[:end] + (summed[end] - summed[:end]).min(axis=1) + penalty
        start_of[end] = losses.argmin()
        least[end] = losses[start_of[end]]
    ends = [len(summed) - 1]
    while ends[0]:
        ends.insert(0, int(start_of[ends[0]]))
    return ends


def qn_scale(values: Numbers) -> float:
    """Return Qn, a robust estimate of the standard deviation of `values`.

    Qn is the k-th smallest distance between two values, k = h (h - 1) / 2 with h = n // 2 + 1 (P. J. Rousseeuw and
    C. Croux, "Alternatives to the median absolute deviation", JASA 88, 1993), without their factors for small samples.
    """
    h = len(values) // 2 + 1
    k = h * (h - 1) // 2
    i, j = np.triu_indices(len(values), 1)
    return QN_NORMAL * float(np.partition(np.abs(values[i] - values[j]), k - 1)[k - 1])


def launch_noise(sessions: Sequence[Numbers]) -> float | None:
    """Return the standard deviation of launches within their session; None if no session has two launches.

    Each session's sum of squared deviations is divided by the median of the chi-square distribution with the same
    degrees of freedom. The result is the square root of the median of these quotients.
    """
    several = [session for session in sessions if len(session) >= FEWEST_LAUNCHES]
    typical = [
        session.var(ddof=0) * len(session) / (2 * gammaincinv((len(session) - 1) / 2, 0.5)) for session in several
    ]
    return math.sqrt(float(np.median(typical))) if several else None
