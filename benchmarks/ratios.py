"""Ratios of interleaved measurements, with their 95% intervals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats


class Ratio(NamedTuple):
    """A ratio and the ends of its interval; prints as `0.998 (0.990 to 1.007)`."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def mean_ratio(logs: ArrayLike) -> Ratio:
    """Return the geometric mean of ratios given by their logarithms, with its t interval."""
    interval = stats.ttest_1samp(logs, 0.0).confidence_interval()
    return Ratio(*(float(np.exp(each)) for each in (np.mean(logs), interval.low, interval.high)))


def median_ratio(logs: ArrayLike) -> Ratio:
    """Return the median of ratios given by their logarithms, with its distribution-free interval."""
    interval = stats.quantile_test(logs, p=0.5).confidence_interval()
    return Ratio(*(float(np.exp(each)) for each in (np.median(logs), interval.low, interval.high)))
