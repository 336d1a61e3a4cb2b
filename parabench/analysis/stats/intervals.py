"""Compute unions, intersections and differences of time intervals.

One object has the sets of many keys, such as the steps of a rank, for one vectorized pass. The ends of results are ends
of the input, without rounding errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Keys = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """Half-open intervals [start, end) of each key: sorted, disjoint, and not empty. `union` makes them.

    `key`, `start`, `end` have shape (n,). `&`, `|` and `-` combine the sets of each key.
    """

    key: Keys
    start: Floats
    end: Floats

    def __and__(self, other: Intervals) -> Intervals:
        return _both(self, other, lambda state: state == 3)

    def __or__(self, other: Intervals) -> Intervals:
        return _both(self, other, lambda state: state > 0)

    def __sub__(self, other: Intervals) -> Intervals:
        return _both(self, other, lambda state: state == 1)

    def within(self, key: Any, start: Any, end: Any) -> Floats:
        """Return how much of each window [start, end) of a key the set covers; shape (n,), windows may overlap.

        It is 0 for an empty window, and NaN if the start or end is unknown.
        """
        key, start, end = np.asarray(key, np.int64), np.asarray(start, np.float64), np.asarray(end, np.float64)
        return self._before(key, np.maximum(start, end)) - self._before(key, start)

    def _before(self, key: Keys, time: Floats) -> Floats:
        """Return the length of the set before each `time` in its key, plus the length of all sets of smaller keys."""
        if not len(self.key):
            return 0 * time
        keys, times = np.concatenate([self.key, key]), np.concatenate([self.start, time])
        order = np.lexsort((np.arange(len(keys)) >= len(self.key), times, keys))
        # The number of intervals that start at or before each time.
        started = np.empty(len(order), np.int64)
        started[order] = np.cumsum(order < len(self.key))
        last = started[len(self.key) :] - 1
        total = np.concatenate([np.zeros(1), np.cumsum(self.end - self.start)])[last + 1]
        after = np.where((last >= 0) & (self.key[last] == key), self.end[last] - time, 0)
        return total - np.maximum(after, 0) + 0 * time


def union(key: Any, start: Any, end: Any) -> Intervals:
    """Return the union of intervals, key by key; arrays of shape (n,), in any order, which may overlap.

    Intervals that are empty, or whose start or end is unknown (NaN), add nothing.
    """
    key, start, end = np.asarray(key, np.int64), np.asarray(start, np.float64), np.asarray(end, np.float64)
    real = end > start
    return _sweep(key[real], start[real], end[real], np.ones(real.sum(), np.int64), lambda state: state > 0)


def _both(a: Intervals, b: Intervals, keep: Callable[[Keys], Flags]) -> Intervals:
    """Return the intervals with a state to keep: 0 outside both, 1 in `a` alone, 2 in `b` alone, 3 in both."""
    weight = np.repeat([1, 2], [len(a.key), len(b.key)])
    start, end = np.concatenate([a.start, b.start]), np.concatenate([a.end, b.end])
    return _sweep(np.concatenate([a.key, b.key]), start, end, weight, keep)


def _sweep(key: Keys, start: Floats, end: Floats, weight: Keys, keep: Callable[[Keys], Flags]) -> Intervals:
    """Return the intervals whose sum of weights makes `keep` true."""
    keys, times = np.concatenate([key, key]), np.concatenate([start, end])
    order = np.lexsort((times, keys))
    keys, times, state = keys[order], times[order], np.cumsum(np.concatenate([weight, -weight])[order])
    # Several events at one time are one change.
    last = np.append((keys[1:] != keys[:-1]) | (times[1:] != times[:-1]), [True] * (len(keys) > 0)).astype(bool)
    keys, times, inside = keys[last], times[last], keep(state[last])
    before = np.append([False], inside)[: len(inside)].astype(bool)
    begins, closes = inside & ~before, before & ~inside
    return Intervals(keys[begins], times[begins], times[closes])
