"""What it costs that sessions have one level: a loss with a bound, for ruptures. Imported where a change is sought."""

from __future__ import annotations

import math

import numpy as np
from ruptures.base import BaseCost

Numbers = np.ndarray[tuple[int], np.dtype[np.float64]]

# Levels are tried in steps of this many standard deviations, which costs a segment of n sessions n / 400 at most.
RESOLUTION = 0.1


class LevelCost(BaseCost):  # type: ignore[misc]  # ruptures has no types
    """The biweight loss of sessions `y` with standard deviations `sd`: the squared distance to the best level, in
    variances, at most `bound` for each."""

    model = "biweight"
    min_size = 1

    def __init__(self, y: Numbers, sd: Numbers, bound: float) -> None:
        self.y, self.sd, self.bound = y, sd, bound
        self.signal = y.reshape(-1, 1)
        step = RESOLUTION * float(sd.min())
        # A best level is the mean of sessions within the bound, so there is one near it; far from all none is tried.
        reach = math.ceil(math.sqrt(bound) * float(sd.max()) / step)
        places = np.unique((np.round((y - y.min()) / step)[:, None] + np.arange(-reach, reach + 1)).ravel())
        self._levels = y.min() + places[(places >= 0) & (places * step <= np.ptp(y) + step)] * step
        loss = np.minimum(((y[:, None] - self._levels) / sd[:, None]) ** 2, bound)
        self._summed = np.vstack([np.zeros(len(self._levels)), loss.cumsum(axis=0)])

    def fit(self, signal: object) -> LevelCost:
        """All that is needed is known."""
        return self

    def error(self, start: int, end: int) -> float:
        """Cost of sessions `start` to before `end`."""
        return float((self._summed[end] - self._summed[start]).min())

    def level(self, start: int, end: int) -> tuple[float, float, tuple[int, ...]]:
        """(level, its standard error, the places of sessions beyond the bound) of sessions `start` to before `end`."""
        nearest = self._levels[(self._summed[end] - self._summed[start]).argmin()]
        y, sd = self.y[start:end], self.sd[start:end]
        near = ((y - nearest) / sd) ** 2 < self.bound
        weights = 1 / sd[near] ** 2
        outliers = tuple(int(place) + start for place in np.flatnonzero(~near))
        return float(np.average(y[near], weights=weights)), float(weights.sum() ** -0.5), outliers
