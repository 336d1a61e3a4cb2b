"""Confidence intervals of fitted constants, by leaving out each launch in turn.

What a launch does to one size it does to its others too, so the intervals are a jackknife over launches, not over
points (MacKinnon, Nielsen and Webb, "Cluster-robust inference: A guide to empirical practice", 2023: CV3).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.quantiles import t_quantile

Matrix = NDArray[np.float64]

# Columns closer to one another than this (as an angle) are one for any measurement.
SAME = 1e-9


def intervals(
    design: Matrix, target: Matrix, values: Matrix, launches: list[list[int]]
) -> list[tuple[float, float] | str]:
    """A 95 % interval a column that is not held at 0, or why there is none.

    Each launch is left out in turn; how far that moves a constant says how far other launches would.
    """
    found: list[tuple[float, float] | str] = ["at its bound: the times want it no larger than 0"] * len(values)
    free = np.flatnonzero(values > 0)
    columns = design[:, free]
    scale = np.linalg.norm(columns, axis=0)
    columns = columns / scale
    why, moves = _left_out(columns, launches)
    for at, column in enumerate(free):
        if why is not None:
            found[column] = why
            continue
        moved = moves[:, at] @ target
        t = t_quantile((1 + CONFIDENCE) / 2, _freedom(moves[:, at], launches))
        half = t * math.sqrt((1 - 1 / len(launches)) * float(moved @ moved)) / scale[at]
        found[column] = max(0.0, float(values[column]) - half), float(values[column]) + half
    return found


def _left_out(columns: Matrix, launches: list[list[int]]) -> tuple[str | None, Matrix]:
    """How far each constant moves when each launch is left out, or why that cannot be told.

    By launch, constant and row: the move is the last axis times the target.
    """
    nothing = np.zeros((0, 0, 0))
    if len(launches) < 2:
        return "one launch cannot tell how far launches differ: run at least 2, better 3 or more", nothing
    if len(columns) <= columns.shape[1]:
        return "as many constants as times, so nothing is left to judge the spread by", nothing
    of_all = np.linalg.pinv(columns)
    moves = []
    for rows in launches:
        rest = columns.copy()
        rest[rows] = 0.0
        if np.linalg.matrix_rank(rest, tol=SAME) < columns.shape[1]:
            return "too few launches: without one of them the constants cannot be estimated", nothing
        moves.append(np.linalg.pinv(rest) - of_all)
    return None, np.array(moves)


def _freedom(moves: Matrix, launches: list[list[int]]) -> float:
    """Degrees of freedom of the jackknife of one constant, for launches that each have an effect of their own (Bell and
    McCaffrey, 2002): launches less 1 where all say as much of it, fewer where few say most."""
    by_effect = np.array([moves[:, rows].sum(axis=1) for rows in launches])
    spread = by_effect @ by_effect.T
    if not spread.any():
        return len(launches) - 1.0
    return max(1.0, float(np.trace(spread)) ** 2 / float(np.sum(spread**2)))
