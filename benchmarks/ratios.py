"""The ratio of two sides that were measured in turns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats


def median_ratio(logs: NDArray[np.float64]) -> tuple[float, float, float]:
    """(ratio, low, high): the median of ratios given by their logarithms, and its 95 % bootstrap interval."""
    interval = stats.bootstrap((logs,), np.median, rng=0).confidence_interval
    ratio, low, high = np.exp([np.median(logs), interval.low, interval.high])
    return float(ratio), float(low), float(high)
