"""Compute with sets of intervals of one trace: arrays (n, 2) of begin and end, sorted and apart from one another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from parabench.analysis.stats import intervals as sets

Pairs = npt.NDArray[np.float64]


def union(*several: Any) -> Pairs:
    """Return the union of intervals in any order, each given as pairs or as a flat row of begins and ends."""
    found = _set(np.concatenate([np.zeros((0, 2)), *(np.reshape(each, (-1, 2)) for each in several)]))
    return np.column_stack([found.start, found.end])


def _set(pairs: Pairs) -> sets.Intervals:
    return sets.union(np.zeros(len(pairs)), pairs[:, 0], pairs[:, 1])


def within(pairs: Pairs, begin: float, end: float) -> Pairs:
    """Return the parts of a set between two times."""
    first, last = np.searchsorted(pairs[:, 1], begin, side="right"), np.searchsorted(pairs[:, 0], end)
    return np.clip(pairs[first:last], begin, end)


def without(pairs: Pairs, others: Pairs) -> Pairs:
    """Return the parts of a set that are not in the other set."""
    left = _set(pairs) - _set(others)
    return np.column_stack([left.start, left.end])


def bridged(pieces: Pairs, others: Iterable[Pairs]) -> Pairs:
    """Return the pieces, joined over gaps unless an interval of the others begins there."""
    begins = np.sort(np.concatenate([pairs[:, 0] for pairs in others]))
    between = np.searchsorted(begins, pieces[1:, 0], side="right") > np.searchsorted(begins, pieces[:-1, 1])
    first = np.append(True, between)
    last = np.append(np.flatnonzero(first)[1:] - 1, len(pieces) - 1)
    return np.column_stack([pieces[first, 0], pieces[last, 1]])
