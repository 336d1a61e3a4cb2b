"""The studentized range and Student's t: what simultaneous and single intervals of means need of them.

`scipy.stats.studentized_range` integrates twice by adaptive quadrature, a tenth of a second a value, and a search for a
quantile takes ten. Both integrands are smooth and die off at both ends, where the trapezoidal rule converges faster
than any power of its step (Trefethen and Weideman, "The exponentially convergent trapezoidal rule", 2014): the same
number to 1e-10 in a millisecond. `scipy.stats` itself is not needed, which is half a second of every command.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import gammaln, ndtr, stdtrit

Numbers = np.ndarray[Any, np.dtype[np.float64]]

# What is left out of both integrals: exp(-36) of the density's peak.
_DROPPED = 36.0
# Standard normal deviates at which the range's smallest mean is taken.
_Z = np.linspace(-8.5, 8.5, 341)
_DENSITY = np.exp(-_Z * _Z / 2) / math.sqrt(2 * math.pi) * (_Z[1] - _Z[0])
_BELOW = ndtr(_Z)
# Logarithms of the ratio of deviations are no further apart than that: as fine as the range's distribution needs.
_FINEST = 0.02
# How close to the quantile a search ends.
_EXACT = 1e-9


def t_quantile(p: float, df: float) -> float:
    """The value that Student's t of `df` degrees of freedom is below with probability `p`."""
    return float(stdtrit(df, p))


def range_cdf(q: float, k: int, df: int) -> float:
    """The probability that the studentized range of `k` means with `df` degrees of freedom is below `q`.

    It is the mean of the range's own distribution at q*s over s, the estimated standard deviation by the true one:
    s^2*df is chi-squared (Lund and Lund, "Algorithm AS 190", 1983).
    """
    if q <= 0:
        return 0.0
    logs, weights = _deviations(df)
    wide = q * np.exp(logs)
    within = np.clip(ndtr(_Z + wide[:, None]) - _BELOW, 0.0, None)
    ranges = k * (within ** (k - 1)) @ _DENSITY
    return float(min(1.0, weights @ ranges))


@lru_cache(maxsize=256)
def _deviations(df: int) -> tuple[Numbers, Numbers]:
    """log(s), equally spaced, and the probability of each."""

    def reach(sign: int) -> float:
        """How far from its peak, at 0, the density has died off."""
        low, high = 0.0, _DROPPED / df + 1.0 + 9.0 / math.sqrt(df)
        for _ in range(40):
            middle = (low + high) / 2
            lost = df * (math.expm1(2 * sign * middle) / 2 - sign * middle)
            low, high = (low, middle) if lost > _DROPPED else (middle, high)
        return high

    step = min(_FINEST, 0.35 / math.sqrt(2 * df))
    logs = np.arange(-reach(-1), reach(1) + step, step)
    density = np.exp(df * logs - df * np.expm1(2 * logs) / 2 + df / 2 * math.log(df / 2) - df / 2 - gammaln(df / 2))
    return logs, 2 * step * density


@lru_cache(maxsize=1024)
def studentized_range(k: int, df: int, confidence: float) -> float:
    """The quantile q of the studentized range of `k` means with `df` degrees of freedom, to 1e-9.

    It lies between the quantile of two means, which is Student's, and Bonferroni's bound for all pairs, and between
    them the log of the tail is nearly straight: a few secants find it.
    """
    low, high = (math.sqrt(2) * t_quantile(1 - (1 - confidence) / (2 * pairs), df) for pairs in (1, k * (k - 1) / 2))
    if k == 2:
        return low

    def off(q: float) -> float:
        return math.log((1 - range_cdf(q, k, df)) / (1 - confidence))

    above, below = off(low), off(high)
    # The false position of Illinois (Dowell and Jarratt, 1971): an end that stays counts half.
    side = 0
    for _ in range(60):
        q = (low * below - high * above) / (below - above)
        value = off(q)
        if abs(value) < 1e-13 or high - low < _EXACT:
            break
        if value > 0:
            moved, low, above = q - low, q, value
            below, side = (below / 2 if side > 0 else below), 1
        else:
            moved, high, below = high - q, q, value
            above, side = (above / 2 if side < 0 else above), -1
        if moved < _EXACT:
            break
    return q
