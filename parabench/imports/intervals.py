"""Sets of intervals of one trace: an array (n, 2) of begin and end, in rising order, of which none touch."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from parabench.analysis.stats import intervals as sets

Pairs = npt.NDArray[np.float64]
# Intervals are joined as soon as there are so many, or twice as many as were apart the last time; of those that are
# apart there are so many kernels in a trace of several GB.
MANY, MOST = 1 << 20, 4 << 20


class Times:
    """Intervals in microseconds, however many: joined where they touch. Raises ValueError for more than MOST apart."""

    def __init__(self) -> None:
        self._flat = array("d")
        self._join_at = MANY

    def add(self, begin: float, end: float) -> None:
        self._flat.extend((begin, end))
        if len(self._flat) >= 2 * self._join_at:
            joined = self.joined()
            if len(joined) > MOST:
                raise ValueError(f"it computes in more than {MOST:,} pieces; record fewer steps")
            self._flat = array("d", joined.tobytes())
            self._join_at = max(MANY, 2 * len(joined))

    def joined(self) -> Pairs:
        return union(np.frombuffer(self._flat, dtype=np.float64).reshape(-1, 2))


def union(pairs: Pairs) -> Pairs:
    """Return the intervals in rising order, joined where they touch."""
    return _pairs(_set(pairs))


def _set(pairs: Pairs) -> sets.Intervals:
    return sets.union(np.zeros(len(pairs)), pairs[:, 0], pairs[:, 1])


def _pairs(intervals: sets.Intervals) -> Pairs:
    return np.column_stack([intervals.start, intervals.end])


def within(pairs: Pairs, begin: float, end: float) -> Pairs:
    """The parts of them, which are as `union` has them, that lie between two moments."""
    first, last = np.searchsorted(pairs[:, 1], begin, side="right"), np.searchsorted(pairs[:, 0], end)
    return np.clip(pairs[first:last], begin, end)


def without(pairs: Pairs, others: Pairs) -> Pairs:
    """Return the parts of intervals that are in none of the others."""
    return _pairs(_set(pairs) - _set(others))


def bridged(pieces: Pairs, others: Iterable[Pairs]) -> Pairs:
    """The pieces joined over the gaps between them, but for those in which something else begins."""
    begins = np.sort(np.concatenate([pairs[:, 0] for pairs in others]))
    between = np.searchsorted(begins, pieces[1:, 0], side="right") > np.searchsorted(begins, pieces[:-1, 1])
    first = np.append(True, between)
    last = np.append(np.flatnonzero(first)[1:] - 1, len(pieces) - 1)
    return np.column_stack([pieces[first, 0], pieces[last, 1]])
