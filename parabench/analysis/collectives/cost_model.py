"""The cost model: an algorithm's latency a, time per byte b and per added byte c, fitted to measured times.

The fit minimizes squared errors relative to the model, by iteration. Errors relative to the measured times would make
every constant too small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from parabench.analysis import format
from parabench.analysis.collectives.rounds import costs
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.quantiles import t_quantile
from parabench.store.results import records

Matrix = NDArray[np.float64]
# A constant of the model: its tier (of `rounds`, or LINE) and its letter.
Key = tuple[str, str]
# A column of the fit: its constants, which the times cannot separate, each with its multiple of the first.
Group = list[tuple[Key, float]]

# Reweighting ends when all constants move by less than this, relatively, or after the most iterations.
_STEADY = 1e-10
_MOST_ITERATIONS = 100
# The least expected part of a measured time, because a model of 0 has no relative error.
_LEAST = 1e-3
# Columns closer to one another than this (as an angle) are one for any measurement.
_SAME = 1e-9

# An algorithm without a formula has a line a + S b for each operation and world size.
LINE = "line"


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant of the model, or a sum that the times cannot separate.

    - `name`: a, b or c, or a sum such as 'b + 0.5 c'
    - `tier`: the links that it describes
    - `unit`: s or s/B
    - `low` and `high`: the 95% confidence interval
    - `reason`: the reason of a missing value or interval
    """

    name: str
    tier: str
    unit: str
    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted model of one algorithm, or without a formula of one operation and world size.

    `points` are the times that it is fitted to, with their `residual`: (model - measured) / measured.
    """

    algorithm: str
    op: str | None
    world_size: int | None
    constants: tuple[Constant, ...]
    points: pd.DataFrame

    @property
    def is_line(self) -> bool:
        """Whether the algorithm has no formula."""
        return self.op is not None

    @property
    def scope(self) -> str:
        """The only operation and world size that a line is for; empty for a formula."""
        return f"{self.op}, {format.count(self.world_size or 0, 'rank')}" if self.is_line else ""

    @property
    def typical_error(self) -> float:
        """The root mean square of the residuals, as a fraction of the measured time."""
        return float(np.sqrt(np.mean(np.square(self.points["residual"]))))


def fit_costs(times: pd.DataFrame) -> tuple[Fit, ...]:
    """Fit each algorithm to the `call_s` of `bus.good_sizes` with one timing.

    All operations and world sizes of an algorithm are fitted together. all_gather adds no bytes, which separates b and
    c.
    """
    groups: dict[tuple[str, str | None, int | None], dict[int, dict[Key, float]]] = {}
    for at, time in enumerate(records(times)):
        counts = _counts(time)
        line = (time["op"], int(time["world_size"])) if (LINE, "a") in counts else (None, None)
        groups.setdefault((time["algorithm"], *line), {})[at] = counts
    return tuple(_fit(*key, times.iloc[list(rows)], list(rows.values())) for key, rows in groups.items())


def _counts(time: Mapping[Any, Any]) -> dict[Key, float]:
    """Return the multiple of each constant in a time."""
    per_node, piece = (
        int(value) if format.known(value := time[name]) else None for name in ("ranks_per_node", "piece_bytes")
    )
    size = int(time["bytes"])
    # Without a recorded length of pieces, messages are not cut.
    found = costs(time["op"], time["algorithm"], int(time["world_size"]), size, per_node, piece or size)
    return {(LINE, "a"): 1.0, (LINE, "b"): float(size)} if found is None else found


def _fit(
    algorithm: str, op: str | None, world_size: int | None, times: pd.DataFrame, counts: Sequence[Mapping[Key, float]]
) -> Fit:
    keys = sorted({key for each in counts for key in each}, key=lambda key: (key[1], key[0]))
    # Divided by the measured time, each row's target is 1.
    design = np.array([[each.get(key, 0.0) for key in keys] for each in counts]) / times[["call_s"]].to_numpy()
    merged, groups = _merge(design, keys)
    values, row_weights = _solve(merged)
    launches = [np.flatnonzero(times["launch_id"] == each) for each in times["launch_id"].unique()]
    reach = _intervals(merged * row_weights[:, None], row_weights, values, launches)
    known = _known(merged / np.linalg.norm(merged, axis=0))
    constants = [each for column in zip(groups, values, reach, known, strict=True) for each in _constants(*column)]
    points = times.assign(residual=merged @ values - 1)
    return Fit(algorithm, op, world_size, tuple(constants), points)


def _merge(design: Matrix, keys: Sequence[Key]) -> tuple[Matrix, list[Group]]:
    """Merge columns that are multiples of one another."""
    groups: list[Group] = []
    firsts: list[Matrix] = []
    for key, column in zip(keys, design.T, strict=True):
        for group, first in zip(groups, firsts, strict=True):
            ratio = float(column @ first / (first @ first))
            if np.linalg.norm(column - ratio * first) <= _SAME * np.linalg.norm(column):
                group.append((key, ratio))
                break
        else:
            groups.append([(key, 1.0)])
            firsts.append(column)
    return np.stack(firsts, axis=1), groups


def _known(design: Matrix) -> list[bool]:
    """Return for each column whether the data determine its constant: its axis is in the row space."""
    projection = np.linalg.pinv(design, rcond=_SAME) @ design
    return [bool(abs(each - 1) < 1e-6) for each in np.diag(projection)]


def _solve(design: Matrix) -> tuple[Matrix, Matrix]:
    """Return the constants, and the weight of each row in their fit: measured / model."""
    from scipy import optimize  # a third of a second that most commands need not spend

    row_weights = np.ones(len(design))
    values = np.zeros(design.shape[1])
    for _ in range(_MOST_ITERATIONS):
        before, weighted = values, design * row_weights[:, None]
        scale = np.linalg.norm(weighted, axis=0)
        values = optimize.nnls(weighted / scale, row_weights)[0] / scale
        if np.allclose(values, before, rtol=_STEADY, atol=0):
            break
        row_weights = 1 / np.maximum(design @ values, _LEAST)
    return values, row_weights


def _intervals(
    design: Matrix, target: Matrix, values: Matrix, launches: Sequence[NDArray[Any]]
) -> list[tuple[float, float] | str]:
    """Return a 95% confidence interval of each constant, or the reason why it is unknown.

    A jackknife over launches, because a disturbed launch shifts all of its sizes (MacKinnon, Nielsen and Webb, 2023:
    CV3), with the degrees of freedom of Bell and McCaffrey (2002).
    """
    found: list[tuple[float, float] | str] = ["at its bound: the times want it no larger than 0"] * len(values)
    free = np.flatnonzero(values > 0)
    scale = np.linalg.norm(design[:, free], axis=0)
    columns = design[:, free] / scale
    left_out = [columns.copy() for _ in launches]
    for rest, rows in zip(left_out, launches, strict=True):
        rest[rows] = 0.0
    few = len(launches) < 2 or len(columns) <= len(free)
    if few or any(np.linalg.matrix_rank(rest, tol=_SAME) < len(free) for rest in left_out):
        why = "too few launches or sizes to estimate how far launches differ: run 3 launches or more"
        return [why if value > 0 else each for value, each in zip(values, found, strict=True)]
    # By launch, constant and row: the move of the constant is the last axis times the target.
    moves = np.array([np.linalg.pinv(rest) for rest in left_out]) - np.linalg.pinv(columns)
    for at, column in enumerate(free):
        moved = moves[:, at] @ target
        by_effect = np.array([moves[:, at, rows].sum(axis=1) for rows in launches])
        spread = by_effect @ by_effect.T
        df = max(1.0, float(np.trace(spread)) ** 2 / float(np.sum(spread**2))) if spread.any() else len(launches) - 1.0
        half = t_quantile((1 + CONFIDENCE) / 2, df)
        half *= math.sqrt((1 - 1 / len(launches)) * float(moved @ moved)) / scale[at]
        found[column] = max(0.0, float(values[column]) - half), float(values[column]) + half
    return found


def _constants(group: Group, value: float, interval: tuple[float, float] | str, known: bool) -> list[Constant]:
    """Return the constant of a column, or a sum and the constants that it hides."""
    # A letter has its tier if the group has the same letter of another tier.
    letters = [letter for (_, letter), _ in group]
    names = [key[1] if letters.count(key[1]) == 1 else f"{key[1]}_{key[0]}" for key, _ in group]
    units = ["s" if letter == "a" else "s/B" for letter in letters]
    terms = [
        name if abs(ratio - 1) < 1e-9 else f"{ratio:.3g} {name}" for name, (_, ratio) in zip(names, group, strict=True)
    ]
    name, found = " + ".join(terms), list[Constant]()
    why = "not identifiable: other constants together explain the same times"
    if known:
        tier = " + ".join(dict.fromkeys(tier for (tier, _), _ in group))
        low, high, reason = (None, None, interval) if isinstance(interval, str) else (*interval, None)
        found = [Constant(name, tier, units[0], float(value), low, high, reason)]
        why = f"not identifiable: these times only show {name}; measure an operation that sets them apart"
    if not known or len(group) > 1:
        found += [
            Constant(name, tier, unit, None, reason=why)
            for name, unit, ((tier, _), _) in zip(names, units, group, strict=True)
        ]
    return found
