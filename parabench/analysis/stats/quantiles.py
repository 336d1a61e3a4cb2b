"""Quantiles of Student's t, the studentized range and Dunnett's t, for single and simultaneous intervals of means.

`scipy.stats.studentized_range` takes a tenth of a second for a value, and importing `scipy.special` a fifth. Here, all
integrands are smooth and vanish at both ends. For these, the trapezoidal rule converges exponentially (Trefethen and
Weideman, "The exponentially convergent trapezoidal rule", 2014): to 1e-10 in a millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.polynomial.chebyshev import chebinterpolate, chebtrim, chebval

Numbers = np.ndarray[Any, np.dtype[np.float64]]

# Standard normal deviates, and their probabilities.
_Z = np.linspace(-8.5, 8.5, 171)
_DENSITY = np.exp(-_Z * _Z / 2) / math.sqrt(2 * math.pi) * (_Z[1] - _Z[0])
# The distribution of the range of deviates is 1 beyond the first number, and below a polynomial of this degree.
_WIDEST, _DEGREE_OF_RANGE = 17.0, 256
# The same limits for the largest of several deviates.
_HIGHEST, _DEGREE_OF_LARGEST = 9.0, 160
# Smaller coefficients are rounding errors.
_ROUNDING = 1e-13
# Integrals leave out densities below exp(-36) of their peak.
_DROPPED = 36.0
# With a higher correlation, the points of Dunnett's integral would be too far apart. A lower correlation gives a larger
# quantile.
MOST_ALIKE = 0.875
# A search ends with this relative error.
_EXACT = 1e-11


def _erfc(x: Numbers) -> Numbers:
    return np.fromiter(map(math.erfc, x.ravel().tolist()), float, x.size).reshape(x.shape)


@lru_cache(maxsize=1024)
def t_quantile(p: float, df: float) -> float:
    """Return the quantile of Student's t with `df` degrees of freedom for a probability `p` above a half."""
    logs, weights = _deviations(df)
    ratios = np.exp(logs) / math.sqrt(2)

    def tail(t: float) -> float:
        return float(weights @ _erfc(t * ratios)) / 2

    low, high = 0.0, 1.0
    while tail(high) > 1 - p:
        low, high = high, 2 * high
    return _quantile(tail, low, high, 1 - p)


@lru_cache(maxsize=1024)
def studentized_range(k: int, df: int, confidence: float) -> float:
    """Return the quantile of the studentized range of `k` means with `df` degrees of freedom.

    It is between the quantile of two means, which is Student's, and Bonferroni's bound for all pairs.
    """
    low, high = (math.sqrt(2) * t_quantile(1 - (1 - confidence) / (2 * pairs), df) for pairs in (1, k * (k - 1) / 2))
    if k == 2:
        return low
    return _quantile(lambda q: 1 - _studentized(q, df, _range(k), _WIDEST), low, high, 1 - confidence)


@lru_cache(maxsize=1024)
def dunnett(comparisons: int, df: float, confidence: float, correlation: float = 0.5) -> float:
    """Return the one-sided quantile of Dunnett's t for a `correlation` of at most MOST_ALIKE.

    It is between the quantile of one comparison, which is Student's, and Bonferroni's bound.
    """
    low, high = (t_quantile(1 - (1 - confidence) / tests, df) for tests in (1, comparisons))
    if comparisons == 1:
        return low
    return _quantile(lambda d: 1 - dunnett_cdf(d, comparisons, df, correlation), low, high, 1 - confidence)


def dunnett_cdf(d: float, comparisons: int, df: float, correlation: float = 0.5) -> float:
    """Return the probability that no difference from one control is above `d`.

    Differences are in standard errors with `df` degrees of freedom. Any two have this `correlation`, a half for equally
    certain means (C. W. Dunnett, "A multiple comparison procedure ...", 1955).
    """
    return _studentized(d, df, _largest(comparisons, correlation), _HIGHEST)


def _studentized(x: float, df: float, coefficients: Numbers, end: float) -> float:
    """Return the mean of a distribution at x*s over s, the estimated standard deviation over the true one.

    s^2*df is chi-squared (Lund and Lund, "Algorithm AS 190", 1983). Chebyshev's `coefficients` give the distribution
    from 0 to `end`.
    """
    logs, weights = _deviations(df)
    deviates = np.minimum(x * np.exp(logs), end)
    return min(1.0, float(weights @ chebval(2 * deviates / end - 1, coefficients)))


@lru_cache(maxsize=256)
def _deviations(df: float) -> tuple[Numbers, Numbers]:
    """Return equally spaced log(s), and their probabilities."""
    # The density at l, over its peak at 0, is exp(-df (expm1(2l) / 2 - l)). The bracket is at least l^2 above the peak,
    # and at least -l - 1/2 below it.
    step = min(0.02, 0.35 / math.sqrt(2 * df))
    logs = np.arange(-_DROPPED / df - 0.5, math.sqrt(_DROPPED / df) + step, step)
    density = np.exp(df * logs - df * np.expm1(2 * logs) / 2 + df / 2 * math.log(df / 2) - df / 2 - math.lgamma(df / 2))
    return logs, 2 * step * density


@lru_cache(maxsize=256)
def _range(k: int) -> Numbers:
    """Return Chebyshev's coefficients of the distribution of the range of `k` standard normal deviates."""

    def probability(points: Any) -> Any:
        above = _Z + (points[:, None] + 1) * _WIDEST / 2
        within = np.clip(_erfc(_Z / math.sqrt(2)) - _erfc(above / math.sqrt(2)), 0.0, None) / 2
        return k * within ** (k - 1) @ _DENSITY

    return _polynomial(probability, _DEGREE_OF_RANGE)


@lru_cache(maxsize=256)
def _largest(comparisons: int, correlation: float) -> Numbers:
    """Return Chebyshev's coefficients of the distribution of the largest correlated deviate."""

    def probability(points: Any) -> Any:
        high = (points[:, None] + 1) * _HIGHEST / 2
        not_above = _erfc((math.sqrt(correlation) * _Z - high) / math.sqrt(2 * (1 - correlation))) / 2
        return not_above**comparisons @ _DENSITY

    return _polynomial(probability, _DEGREE_OF_LARGEST)


def _polynomial(function: Callable[[Any], Any], degree: int) -> Numbers:
    """Return Chebyshev's coefficients of a function from -1 to 1."""
    found: Numbers = chebtrim(chebinterpolate(function, degree), _ROUNDING).astype(float)
    return found


def _quantile(tail: Callable[[float], float], low: float, high: float, error: float) -> float:
    """Return where a tail has the probability `error`, between two bounds.

    The logarithm of the tail is nearly straight there. So the Illinois method (Dowell and Jarratt, 1971) takes a few
    secants: it halves the value at an end that stays.
    """

    def off(x: float) -> float:
        return math.log(tail(x) / error)

    above, below, x = off(low), off(high), low
    for _ in range(100):
        before, x = x, (low * below - high * above) / (below - above)
        value = off(x)
        if abs(value) < _EXACT or abs(x - before) < _EXACT * x:
            break
        if value > 0:
            low, above, below = x, value, below / (2 if before == low else 1)
        else:
            high, below, above = x, value, above / (2 if before == high else 1)
    return x
