"""Interval sets against a grid on which every whole moment is looked at."""

from __future__ import annotations

import numpy as np
import pytest

from parabench.analysis.stats.intervals import Intervals, union

KEYS, MOMENTS = 4, 24


def drawn(random: np.random.Generator) -> tuple[Intervals, np.ndarray]:
    """A random set, and the same as a grid: moment t of key k belongs to it."""
    n = int(random.integers(0, 14))
    key = random.integers(0, KEYS, n)
    start, end = random.integers(0, MOMENTS, n), random.integers(0, MOMENTS, n)
    grid = np.zeros((KEYS, MOMENTS), bool)
    for k, a, b in zip(key, start, end, strict=True):
        grid[k, a:b] = True
    return union(key, start, end), grid


def painted(of: Intervals) -> np.ndarray:
    grid = np.zeros((KEYS, MOMENTS), bool)
    for k, a, b in zip(of.key, of.start.astype(int), of.end.astype(int), strict=True):
        assert not grid[k, a:b].any()
        assert a == 0 or not grid[k, a - 1], "two that touch are one"
        assert a < b
        grid[k, a:b] = True
    return grid


@pytest.mark.parametrize("seed", range(150))
def test_sets_are_what_a_grid_says(seed):
    random = np.random.default_rng(seed)
    (a, in_a), (b, in_b) = drawn(random), drawn(random)
    for made, expected in ((a, in_a), (a | b, in_a | in_b), (a & b, in_a & in_b), (a - b, in_a & ~in_b)):
        assert np.array_equal(painted(made), expected)
        assert np.array_equal(made.length(KEYS), expected.sum(axis=1))
        order = np.lexsort((made.start, made.key))
        assert np.array_equal(order, np.arange(len(order)))
    key, start, end = random.integers(0, KEYS, 9), random.integers(0, MOMENTS, 9), random.integers(0, MOMENTS, 9)
    within = [in_a[k, s:e].sum() for k, s, e in zip(key, start, end, strict=True)]
    assert a.within(key, start, end).tolist() == within


def test_what_is_unknown_or_empty_adds_nothing():
    unknown = float("nan")
    made = union([0, 0, 0, 1], [1.0, 2.0, unknown, 5.0], [unknown, 2.0, 3.0, 4.0])
    assert len(made.key) == 0
    assert made.length(2).tolist() == [0, 0]
    one = union([0], [1.0], [3.0])
    assert np.isnan(one.within([0, 0], [0.0, unknown], [unknown, 9.0])).all()
    assert (made | one).length(1).tolist() == (one - made).length(1).tolist() == [2.0]
    assert made.within([0], [0.0], [9.0]).tolist() == (made & one).length(1).tolist() == [0.0]
