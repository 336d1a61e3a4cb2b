"""Student's t, the studentized range and Dunnett's t: what single and simultaneous intervals of means need of them.

`scipy.stats.studentized_range` integrates twice by adaptive quadrature, a tenth of a second a value, and a search for a
quantile takes ten. All integrands here are smooth and die off at both ends, where the trapezoidal rule converges faster
than any power of its step (Trefethen and Weideman, "The exponentially convergent trapezoidal rule", 2014): the same
number to 1e-10 in a millisecond. scipy is not needed, whose `special` alone is a fifth of a second of every command.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.polynomial.chebyshev import chebinterpolate, chebpts1, chebval

Numbers = np.ndarray[Any, np.dtype[np.float64]]

# What is left out of both integrals: exp(-36) of the density's peak.
_DROPPED = 36.0
# Standard normal deviates at which the range's smallest mean is taken.
_Z = np.linspace(-8.5, 8.5, 171)
_DENSITY = np.exp(-_Z * _Z / 2) / math.sqrt(2 * math.pi) * (_Z[1] - _Z[0])
# The range of this many standard deviations is never exceeded, and up to there its distribution is a polynomial of that
# degree, to 1e-12 for ten thousand means.
_WIDEST, _DEGREE = 17.0, 256
# Logarithms of the ratio of deviations are no further apart than that: as fine as the range's distribution needs.
_FINEST = 0.02
# The largest of several deviates is never above this, and from 0 to there its distribution is a polynomial of that
# degree, to 1e-10 for ten thousand.
_HIGHEST, _DEGREE_OF_LARGEST = 9.0, 160
# Beyond this correlation the step between Dunnett's integration points would be too coarse; the quantile rises as the
# correlation falls.
MOST_ALIKE = 0.875
# How close to the quantile a search ends.
_EXACT = 1e-9


def _erfc(x: Numbers) -> Numbers:
    return np.fromiter(map(math.erfc, x.ravel().tolist()), float, x.size).reshape(x.shape)


@lru_cache(maxsize=1024)
def t_quantile(p: float, df: float) -> float:
    """The value that Student's t of `df` degrees of freedom is below with probability `p` of more than a half.

    The tail is the mean of the normal one at t*s, as in `range_cdf`. Its log is concave in log(t), so that Newton's
    tangents lead from any point to one above the quantile, and from there down to it.
    """
    logs, weights = _deviations(df)
    density = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi * df)
    log_t = math.log(-2 * math.log(2 * (1 - p))) / 2  # of a normal deviate, of which this is a bound
    for _ in range(100):
        t = math.exp(log_t)
        tail = float(weights @ _erfc(t / math.sqrt(2) * np.exp(logs))) / 2
        slope = -t * density * math.exp(-(df + 1) / 2 * math.log1p(t * t / df)) / tail
        moved = math.log(tail / (1 - p)) / slope
        log_t -= moved
        if abs(moved) < 1e-13:
            break
    return math.exp(log_t)


def range_cdf(q: float, k: int, df: int) -> float:
    """The probability that the studentized range of `k` means with `df` degrees of freedom is below `q`.

    It is the mean of the range's own distribution at q*s over s, the estimated standard deviation by the true one:
    s^2*df is chi-squared (Lund and Lund, "Algorithm AS 190", 1983).
    """
    return _studentized(q, df, _ranges(k), _WIDEST)


def dunnett_cdf(d: float, comparisons: int, df: float, correlation: float = 0.5) -> float:
    """The probability that none of as many differences from one control is above `d`, each divided by its standard
    error as estimated with `df` degrees of freedom, where any two have this `correlation`: a half where all means are
    equally certain.

    It is the mean of G(d*s) over s as in `range_cdf`, with G(x) the probability that none of as many deviates of that
    correlation is above x (C. W. Dunnett, "A multiple comparison procedure for comparing several treatments with a
    control", 1955).
    """
    return _studentized(d, df, _largest(comparisons, correlation), _HIGHEST)


def _studentized(x: float, df: float, coefficients: Numbers, end: float) -> float:
    """The mean over s of a distribution at x*s, which Chebyshev's coefficients give from 0 to `end`, where it is 1."""
    logs, weights = _deviations(df)
    deviates = np.minimum(x * np.exp(logs), end)
    return min(1.0, float(weights @ chebval(2 * deviates / end - 1, coefficients)))


@lru_cache(maxsize=256)
def _ranges(k: int) -> Numbers:
    """Chebyshev's coefficients of the distribution of the range of `k` standard normal deviates, from 0 to _WIDEST."""
    coefficients: Numbers = chebinterpolate(lambda _: k * (_within() ** (k - 1)) @ _DENSITY, _DEGREE)
    return coefficients


@cache
def _within() -> Numbers:
    """The probability that another deviate is no further above each of _Z than each width that `_ranges` looks at."""
    wide = (chebpts1(_DEGREE + 1) + 1) * _WIDEST / 2
    found: Numbers = np.clip(_erfc(_Z / math.sqrt(2)) - _erfc((_Z + wide[:, None]) / math.sqrt(2)), 0.0, None) / 2
    return found


@lru_cache(maxsize=256)
def _largest(comparisons: int, correlation: float) -> Numbers:
    """Chebyshev's coefficients of the distribution of the largest of such deviates, from 0 to _HIGHEST."""
    coefficients: Numbers = chebinterpolate(
        lambda _: _not_above(correlation) ** comparisons @ _DENSITY, _DEGREE_OF_LARGEST
    )
    return coefficients


@lru_cache(maxsize=64)
def _not_above(correlation: float) -> Numbers:
    """The probability that a deviate is not above each height that `_largest` looks at, where what it has in common
    with the others is each of _Z."""
    high = (chebpts1(_DEGREE_OF_LARGEST + 1) + 1) * _HIGHEST / 2
    return _erfc((math.sqrt(correlation) * _Z - high[:, None]) / math.sqrt(2 * (1 - correlation))) / 2


@lru_cache(maxsize=256)
def _deviations(df: float) -> tuple[Numbers, Numbers]:
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
    density = np.exp(df * logs - df * np.expm1(2 * logs) / 2 + df / 2 * math.log(df / 2) - df / 2 - math.lgamma(df / 2))
    return logs, 2 * step * density


@lru_cache(maxsize=1024)
def studentized_range(k: int, df: int, confidence: float) -> float:
    """The quantile q of the studentized range of `k` means with `df` degrees of freedom, to 1e-9.

    It lies between the quantile of two means, which is Student's, and Bonferroni's bound for all pairs.
    """
    low, high = (math.sqrt(2) * t_quantile(1 - (1 - confidence) / (2 * pairs), df) for pairs in (1, k * (k - 1) / 2))
    return low if k == 2 else _quantile(lambda q: range_cdf(q, k, df), low, high, confidence)


@lru_cache(maxsize=1024)
def dunnett(comparisons: int, df: float, confidence: float, correlation: float = 0.5) -> float:
    """The one-sided quantile d of Dunnett's t, to 1e-9 for hundreds of means and 1e-6 for ten thousand: with this
    `confidence` no difference of as many means from one control, divided by its standard error, is above it by chance.

    It lies between the quantile of one comparison, which is Student's, and Bonferroni's bound. `correlation` (see
    `dunnett_cdf`) is at most MOST_ALIKE.
    """
    low, high = (t_quantile(1 - (1 - confidence) / tests, df) for tests in (1, comparisons))
    if comparisons == 1:
        return low
    return _quantile(lambda d: dunnett_cdf(d, comparisons, df, correlation), low, high, confidence)


def _quantile(cdf: Callable[[float], float], low: float, high: float, confidence: float) -> float:
    """Where a distribution reaches `confidence`, between two bounds: there the log of the tail is nearly straight, so a
    few secants find it."""

    def off(x: float) -> float:
        return math.log((1 - cdf(x)) / (1 - confidence))

    above, below = off(low), off(high)
    # The false position of Illinois (Dowell and Jarratt, 1971): an end that stays counts half.
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
