"""Quantiles of Student's t, the studentized range and Dunnett's t, for single and simultaneous intervals of means.

`scipy.stats.studentized_range` takes a tenth of a second for a value, and importing `scipy.special` a fifth. All
integrands here are smooth and die off at both ends, so the trapezoidal rule converges faster than any power of its step
(Trefethen and Weideman, "The exponentially convergent trapezoidal rule", 2014): to 1e-10 in a millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.polynomial.chebyshev import chebinterpolate, chebpts1, chebtrim, chebval

Numbers = np.ndarray[Any, np.dtype[np.float64]]

# Integrals leave out densities below exp(-36) of their peak.
_DROPPED = 36.0
# Standard normal deviates for the smallest mean, and their probabilities.
_Z = np.linspace(-8.5, 8.5, 171)
_DENSITY = np.exp(-_Z * _Z / 2) / math.sqrt(2 * math.pi) * (_Z[1] - _Z[0])
# The range of standard normal deviates is always below the first, and its distribution is a polynomial of this degree.
_WIDEST, _DEGREE = 17.0, 256
# Smaller coefficients are rounding errors.
_ROUNDING = 1e-13
# The largest step between logarithms of the estimated over the true standard deviation.
_FINEST = 0.02
# The same as _WIDEST and _DEGREE for the largest of several deviates.
_HIGHEST, _DEGREE_OF_LARGEST = 9.0, 160
# With a higher correlation the step between Dunnett's integration points would be too coarse; the quantile rises as the
# correlation falls.
MOST_ALIKE = 0.875
# A search ends this close to the quantile.
_EXACT = 1e-9


def _erfc(x: Numbers) -> Numbers:
    return np.fromiter(map(math.erfc, x.ravel().tolist()), float, x.size).reshape(x.shape)


@lru_cache(maxsize=1024)
def t_quantile(p: float, df: float) -> float:
    """Return the quantile of Student's t with `df` degrees of freedom for a probability `p` above a half."""
    # The tail is the mean of the normal one at t*s (see `_studentized`). Its log is concave in log(t), so Newton's
    # method converges from any point.
    logs, weights = _deviations(df)
    density = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi * df)
    log_t = math.log(-2 * math.log(2 * (1 - p))) / 2  # a bound for a normal deviate
    for _ in range(100):
        t = math.exp(log_t)
        tail = float(weights @ _erfc(t / math.sqrt(2) * np.exp(logs))) / 2
        slope = -t * density * math.exp(-(df + 1) / 2 * math.log1p(t * t / df)) / tail
        moved = math.log(tail / (1 - p)) / slope
        log_t -= moved
        if abs(moved) < 1e-13:
            break
    return math.exp(log_t)


def dunnett_cdf(d: float, comparisons: int, df: float, correlation: float = 0.5) -> float:
    """Return the probability that no difference from one control is above `d`.

    Differences are in standard errors with `df` degrees of freedom. Any two have this `correlation`, a half for equally
    certain means (C. W. Dunnett, "A multiple comparison procedure ...", 1955).
    """
    return _studentized(d, df, _largest(comparisons, correlation), _HIGHEST)


def _studentized(x: float, df: float, coefficients: Numbers, end: float) -> float:
    """Return the mean of a distribution at x*s over s, the estimated standard deviation over the true one, whose
    s^2*df is chi-squared (Lund and Lund, "Algorithm AS 190", 1983). Chebyshev's coefficients give the distribution from
    0 to `end`; beyond, it is 1."""
    logs, weights = _deviations(df)
    deviates = np.minimum(x * np.exp(logs), end)
    return min(1.0, float(weights @ chebval(2 * deviates / end - 1, coefficients)))


@lru_cache(maxsize=256)
def _ranges(k: int) -> Numbers:
    """Return Chebyshev's coefficients of the distribution of the range of `k` standard normal deviates."""
    return _trimmed(chebinterpolate(lambda _: k * (_within() ** (k - 1)) @ _DENSITY, _DEGREE))


@cache
def _within() -> Numbers:
    """Return the probability that another deviate is above each of _Z by at most each width of `_ranges`."""
    wide = (chebpts1(_DEGREE + 1) + 1) * _WIDEST / 2
    found: Numbers = np.clip(_erfc(_Z / math.sqrt(2)) - _erfc((_Z + wide[:, None]) / math.sqrt(2)), 0.0, None) / 2
    return found


@lru_cache(maxsize=256)
def _largest(comparisons: int, correlation: float) -> Numbers:
    """Return Chebyshev's coefficients of the distribution of the largest correlated deviate."""
    return _trimmed(chebinterpolate(lambda _: _not_above(correlation) ** comparisons @ _DENSITY, _DEGREE_OF_LARGEST))


def _trimmed(coefficients: Numbers) -> Numbers:
    """Return Chebyshev coefficients without the trailing rounding errors."""
    trimmed: Numbers = np.asarray(chebtrim(coefficients, _ROUNDING), dtype=float)
    return trimmed


@lru_cache(maxsize=64)
def _not_above(correlation: float) -> Numbers:
    """Return the probability that a deviate is not above each height of `_largest`, for each common part in _Z."""
    high = (chebpts1(_DEGREE_OF_LARGEST + 1) + 1) * _HIGHEST / 2
    return _erfc((math.sqrt(correlation) * _Z - high[:, None]) / math.sqrt(2 * (1 - correlation))) / 2


@lru_cache(maxsize=256)
def _deviations(df: float) -> tuple[Numbers, Numbers]:
    """Return equally spaced log(s), and their probabilities."""

    def reach(sign: int) -> float:
        """Return the distance from the peak, at 0, that leaves a negligible density."""
        low, high = 0.0, _DROPPED / df + 1.0 + 9.0 / math.sqrt(df)
        for _ in range(40):
            middle = (low + high) / 2
            lost = df * (math.expm1(2 * sign * middle) / 2 - sign * middle)
            low, high = (low, middle) if lost > _DROPPED else (middle, high)
        return high

    step = min(_FINEST, 0.35 / math.sqrt(2 * df))
    logs = np.arange(-reach(-1), reach(1) + step, step)
    density = np.exp(df * logs - df * np.expm1(2 * logs) / 2 + df / 2 * math.log(df / 2) - df / 2 - math.lgamma(df / 2))
    return logs, 2 * step * density


@lru_cache(maxsize=1024)
def studentized_range(k: int, df: int, confidence: float) -> float:
    """Return the quantile of the studentized range of `k` means with `df` degrees of freedom.

    It is between the quantile of two means, which is Student's, and Bonferroni's bound for all pairs.
    """
    low, high = (math.sqrt(2) * t_quantile(1 - (1 - confidence) / (2 * pairs), df) for pairs in (1, k * (k - 1) / 2))
    return low if k == 2 else _quantile(lambda q: _studentized(q, df, _ranges(k), _WIDEST), low, high, confidence)


@lru_cache(maxsize=1024)
def dunnett(comparisons: int, df: float, confidence: float, correlation: float = 0.5) -> float:
    """Return the one-sided quantile of Dunnett's t for a `correlation` of at most MOST_ALIKE.

    It is between the quantile of one comparison, which is Student's, and Bonferroni's bound.
    """
    low, high = (t_quantile(1 - (1 - confidence) / tests, df) for tests in (1, comparisons))
    if comparisons == 1:
        return low
    return _quantile(lambda d: dunnett_cdf(d, comparisons, df, correlation), low, high, confidence)


def _quantile(cdf: Callable[[float], float], low: float, high: float, confidence: float) -> float:
    """Return where a distribution reaches `confidence`, between two bounds. The log of the tail is nearly straight
    there, so a few secants find it."""

    def off(x: float) -> float:
        return math.log((1 - cdf(x)) / (1 - confidence))

    above, below = off(low), off(high)
    # The Illinois method (Dowell and Jarratt, 1971): an end that stays counts half.
    side = 0
    for _ in range(60):
        x = (low * below - high * above) / (below - above)
        value = off(x)
        if abs(value) < 1e-13 or high - low < _EXACT:
            break
        if value > 0:
            moved, low, above = x - low, x, value
            below, side = (below / 2 if side > 0 else below), 1
        else:
            moved, high, below = high - x, x, value
            above, side = (above / 2 if side < 0 else above), -1
        if moved < _EXACT:
            break
    return x
