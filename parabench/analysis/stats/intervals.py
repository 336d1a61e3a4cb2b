"""Sets of intervals on a clock, exactly: unions and cuts, never sums of durations.

One object holds a set of intervals for each of many keys (a rank's step, say), so that one vectorised sweep serves
them all. Ends are picked from what was given, never computed, so nothing is lost to rounding.
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
    """Half-open intervals [start, end) of each key: sorted, apart from one another, none empty. Make it with `union`.

    `key`, `start`, `end` have shape (n,). `&`, `|` and `-` work key by key.
    """

    key: Keys
    start: Floats
    end: Floats

    def __and__(self, other: Intervals) -> Intervals:
        return _sweep(self, other, np.logical_and)

    def __or__(self, other: Intervals) -> Intervals:
        return _sweep(self, other, np.logical_or)

    def __sub__(self, other: Intervals) -> Intervals:
        return _sweep(self, other, np.greater)  # in the first and not in the second

    def length(self, keys: int) -> Floats:
        """Length of the set of each key 0 .. keys - 1, shape (keys,)."""
        return np.bincount(self.key, weights=self.end - self.start, minlength=keys).astype(np.float64)

    def within(self, key: Any, start: Any, end: Any) -> Floats:
        """Length of the set inside each window [start, end) of a key; windows, shape (n,), may overlap one another.

        0 for a window that is empty; NaN for one whose start or end is unknown.
        """
        key, start, end = np.asarray(key, np.int64), np.asarray(start, np.float64), np.asarray(end, np.float64)
        return self._before(key, np.maximum(start, end)) - self._before(key, start)

    def _before(self, key: Keys, time: Floats) -> Floats:
        """Length of all that lies before `time` in its key, and of all keys before that."""
        keys, times = np.concatenate([self.key, key]), np.concatenate([self.start, time])
        asks = np.repeat(np.array([0, 1]), [len(self.key), len(key)])
        order = np.lexsort((asks, times, keys))
        # How many intervals begin at or before each question.
        begun = np.empty(len(order), np.int64)
        begun[order] = np.cumsum(asks[order] == 0)
        last = begun[len(self.key) :] - 1
        lengths = self.end - self.start
        total = np.concatenate([np.zeros(1), np.cumsum(lengths)])[last + 1]
        if not len(self.key):
            return total + 0 * time
        after = np.where((last >= 0) & (self.key[last] == key), self.end[last] - time, 0)
        return total - np.maximum(after, 0) + 0 * time


def union(key: Any, start: Any, end: Any) -> Intervals:
    """The union of intervals, key by key; arrays of shape (n,), in any order, overlapping as they like.

    One that is empty, or whose start or end is unknown (NaN), adds nothing.
    """
    key, start, end = np.asarray(key, np.int64), np.asarray(start, np.float64), np.asarray(end, np.float64)
    real = end > start
    key, start, end = key[real], start[real], end[real]
    # Starts come before ends at the same moment, so that intervals which touch become one.
    opens = np.repeat(np.array([1, -1]), len(key))
    keys, times = np.concatenate([key, key]), np.concatenate([start, end])
    order = np.lexsort((-opens, times, keys))
    keys, times, depth = keys[order], times[order], np.cumsum(opens[order])
    closes = np.flatnonzero(depth == 0)
    begins = np.concatenate([np.zeros(1, np.int64), closes[:-1] + 1])[: len(closes)]
    return Intervals(keys[closes], times[begins], times[closes])


def _sweep(a: Intervals, b: Intervals, keep: Callable[[Flags, Flags], Flags]) -> Intervals:
    """Where `keep` of being in `a` and in `b` holds."""
    keys = np.concatenate([a.key, a.key, b.key, b.key])
    times = np.concatenate([a.start, a.end, b.start, b.end])
    order = np.lexsort((times, keys))
    zeros_a, zeros_b = np.zeros(2 * len(a.key), np.int64), np.zeros(2 * len(b.key), np.int64)
    in_a = np.concatenate([np.repeat(np.array([1, -1]), len(a.key)), zeros_b])[order].cumsum() > 0
    in_b = np.concatenate([zeros_a, np.repeat(np.array([1, -1]), len(b.key))])[order].cumsum() > 0
    keys, times = keys[order], times[order]
    # Between one event and the next nothing changes. Of several at one moment the last one's state is the true one:
    # the others' stretches are empty. Where a key ends neither set is open.
    kept = np.flatnonzero(keep(in_a, in_b)[:-1]) if len(keys) else np.zeros(0, np.int64)
    return union(keys[kept], times[kept], times[kept + 1])
