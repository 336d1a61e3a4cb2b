"""The cost model, fitted: an algorithm's latency a, time per byte b and per added byte c, from measured times.

Relative-error least squares, so that 64 KiB counts as much as 64 MiB; no constant may be negative. Errors are relative
to the model's own value, found by iteration: relative to what was measured, times that came out short would count for
more, and every constant would come out too small. All operations and world sizes of an algorithm are fitted together,
because one alone cannot tell b from c: all_gather adds nothing, which is what sets them apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis.collectives.bus import good_sizes
from parabench.analysis.collectives.cost_formula import Terms, terms
from parabench.analysis.stats.cluster import SAME, Matrix, intervals
from parabench.analysis.text import format

# Reweighting ends when no constant moves by more than this, relatively, or after so many rounds.
_STEADY = 1e-10
_MOST_ROUNDS = 100
# No time is expected to be less than this part of what was measured: a model of 0 has no relative error.
_LEAST = 1e-3

# What has no formula is a line a + S b of its own for each operation and world size.
LINE = "line"


@dataclass(frozen=True, slots=True)
class Point:
    """One measured time: what ran, how many bytes (the whole buffer) in pieces of how many, how many seconds.

    `launch` is the group of processes that it is from; None is one of its own. `timing` is how calls were timed
    (`in_words` of a protocol); None is unknown.
    """

    op: str
    algorithm: str
    world_size: int
    ranks_per_node: int | None
    bytes: int
    seconds: float
    piece_bytes: int
    launch: int | None = None
    timing: str | None = None


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant of the model, or a sum of them that cannot be taken apart.

    `name` is a, b or c, or such a sum: 'b + 0.5 c'; `tier` where it holds. `unit` is s or s/B. `low` and `high` are
    its 95 % interval. `reason` says why `value` is None, or why there is no interval.
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
    """A fitted model of one algorithm, and of one operation and world size where it is only a line.

    `residuals` are (model - measured) / measured, one a point of `points`. `weights` are what `predict` uses: one
    value a constant, also where only their sum is known.
    """

    algorithm: str
    op: str | None
    world_size: int | None
    constants: tuple[Constant, ...]
    points: tuple[Point, ...]
    residuals: tuple[float, ...]
    weights: dict[tuple[str, str], float]

    @property
    def timing(self) -> str | None:
        """How the calls were timed that it is fitted to; None is unknown."""
        return self.points[0].timing

    @property
    def is_line(self) -> bool:
        """Whether there is no formula behind it."""
        return self.op is not None

    @property
    def typical_error(self) -> float:
        """The root mean square of the residuals: how far the model is off, as a fraction."""
        return float(np.sqrt(np.mean(np.square(self.residuals))))

    def predict(self, op: str, world_size: int, size: int, ranks_per_node: int | None = None) -> float:
        """Seconds for `size` bytes in all. Raises ValueError for what this fit says nothing about.

        Sound within the operations and world sizes that were measured; beyond them only where every constant is known.
        """
        if self.is_line and (op, world_size) != (self.op, self.world_size):
            raise ValueError(f"{self.algorithm} was fitted for {self.op} among {self.world_size} ranks only")
        piece_bytes = self.points[0].piece_bytes
        row = _row(Point(op, self.algorithm, world_size, ranks_per_node, size, 0.0, piece_bytes))
        missing = set(row) - set(self.weights)
        if missing:
            raise ValueError(f"{self.algorithm} was not measured with {', '.join(' '.join(key) for key in missing)}")
        return sum(self.weights[key] * count for key, count in row.items())


def fit_costs(points: Sequence[Point]) -> tuple[Fit, ...]:
    """A fit of each algorithm in `points`, in the order in which they first appear.

    Raises ValueError for a time that is not above 0, and for times that are not all of one mode: the latency of a call
    alone is another constant than that of one among others.
    """
    if len(timings := {str(point.timing) for point in points}) > 1:
        raise ValueError(f"one model cannot be fitted to calls that were timed as {' and as '.join(sorted(timings))}")
    for point in points:
        if not point.seconds > 0 or not math.isfinite(point.seconds):
            raise ValueError(f"a time must be above 0, got {point.seconds} s for {point.op} {point.algorithm}")
    groups: dict[tuple[str, str | None, int | None], list[Point]] = {}
    for point in points:
        known = _terms(point) is not None
        key = (point.algorithm, None, None) if known else (point.algorithm, point.op, point.world_size)
        groups.setdefault(key, []).append(point)
    return tuple(_fit(*key, group) for key, group in groups.items())


def points_of(sizes: pd.DataFrame) -> list[Point]:
    """The points of `bus.measured`: every launch that succeeded, in the form that algorithms are compared in."""
    good = good_sizes(sizes)
    return [
        Point(
            op=row["op"],
            algorithm=row["algorithm"],
            world_size=int(row["world_size"]),
            ranks_per_node=int(row["ranks_per_node"]) if format.known(row["ranks_per_node"]) else None,
            bytes=int(row["bytes"]),
            seconds=float(row["call_s"]),
            # Where it was not recorded, nothing is known to have been cut.
            piece_bytes=int(row["piece_bytes"] if format.known(row["piece_bytes"]) else row["bytes"]),
            launch=int(row["launch_id"]),
            timing=str(row["timing"]),
        )
        for row in good.to_dict("records")
    ]


def _terms(point: Point) -> dict[str, Terms] | None:
    return terms(point.op, point.algorithm, point.world_size, point.bytes, point.ranks_per_node, point.piece_bytes)


def _row(point: Point) -> dict[tuple[str, str], float]:
    """How often each constant, (tier, letter), counts; those that never count are left out."""
    tiers = _terms(point)
    if tiers is None:
        return {(LINE, "a"): 1.0, (LINE, "b"): float(point.bytes)}
    row: dict[tuple[str, str], float] = {}
    for tier, of_tier in tiers.items():
        # Adding is done by the rank, at whatever level.
        for key, count in (
            ((tier, "a"), of_tier.messages),
            ((tier, "b"), of_tier.sent),
            (("rank", "c"), of_tier.added),
        ):
            if count:
                row[key] = row.get(key, 0.0) + count
    return row


def _fit(algorithm: str, op: str | None, world_size: int | None, points: list[Point]) -> Fit:
    rows = [_row(point) for point in points]
    keys = sorted({key for row in rows for key in row}, key=lambda key: (key[1], key[0]))
    measured = np.array([p.seconds for p in points])
    # Divided by what was measured, each row's target is 1.
    design = np.array([[row.get(key, 0.0) for key in keys] for row in rows]) / measured[:, None]
    merged, groups = _merge(design)
    values, row_weights = _solve(merged)
    residuals = merged @ values - 1
    constants: list[Constant] = []
    weights: dict[tuple[str, str], float] = {}
    known = _known(merged / np.linalg.norm(merged, axis=0))
    reach = intervals(merged * row_weights[:, None], row_weights, values, _launches(points))
    for column, group in enumerate(groups):
        value = float(values[column])
        # Of a sum that is known, any split predicts the same; all of it goes to the first.
        weights |= {keys[i]: value if i == group[0][0] else 0.0 for i, _ in group}
        constants += _constants([(keys[i], ratio) for i, ratio in group], value, reach[column], known[column])
    return Fit(
        algorithm=algorithm,
        op=op,
        world_size=world_size,
        constants=tuple(constants),
        points=tuple(points),
        residuals=tuple(float(r) for r in residuals),
        weights=weights,
    )


def _merge(design: Matrix) -> tuple[Matrix, list[list[tuple[int, float]]]]:
    """One column for all that are multiples of one another, and for each the columns behind it with their ratios."""
    groups: list[list[tuple[int, float]]] = []
    for i in range(design.shape[1]):
        column = design[:, i]
        for group in groups:
            first = design[:, group[0][0]]
            ratio = float(column @ first / (first @ first))
            if np.linalg.norm(column - ratio * first) <= SAME * np.linalg.norm(column):
                group.append((i, ratio))
                break
        else:
            groups.append([(i, 1.0)])
    return design[:, [group[0][0] for group in groups]], groups


def _known(design: Matrix) -> list[bool]:
    """Which columns' constants follow from the data alone: those whose axis lies in the row space."""
    projection = np.linalg.pinv(design, rcond=SAME) @ design
    return [bool(abs(projection[i, i] - 1) < 1e-6) for i in range(design.shape[1])]


def _solve(design: Matrix) -> tuple[Matrix, Matrix]:
    """The constants, and the weight of each row that they came out with: measured / model."""
    row_weights = np.ones(len(design))
    values = np.zeros(design.shape[1])
    for _ in range(_MOST_ROUNDS):
        before, weighted = values, design * row_weights[:, None]
        scale = np.linalg.norm(weighted, axis=0)
        from scipy import optimize  # a third of a second that most commands need not spend

        values = optimize.nnls(weighted / scale, row_weights)[0] / scale
        if np.allclose(values, before, rtol=_STEADY, atol=0):
            break
        row_weights = 1 / np.maximum(design @ values, _LEAST)
    return values, row_weights


def _launches(points: list[Point]) -> list[list[int]]:
    """The rows of each launch."""
    launches: dict[tuple[str, int], list[int]] = {}
    for i, point in enumerate(points):
        key = ("alone", i) if point.launch is None else ("launch", point.launch)
        launches.setdefault(key, []).append(i)
    return list(launches.values())


def _constants(
    group: list[tuple[tuple[str, str], float]], value: float, interval: tuple[float, float] | str, known: bool
) -> list[Constant]:
    """What is said of one column: the constant, or a sum and the constants that it hides."""
    tier = " + ".join(dict.fromkeys(tier for (tier, _), _ in group))
    unit = _unit(group[0][0][1])
    name = " + ".join(_times(ratio, _letter(key, group)) for key, ratio in group)
    if not known:
        why = "not identifiable: other constants together explain the same times"
        return [Constant(_letter(key, group), key[0], _unit(key[1]), None, reason=why) for key, _ in group]
    if isinstance(interval, str):
        found = [Constant(name, tier, unit, value, reason=interval)]
    else:
        found = [Constant(name, tier, unit, value, *interval)]
    if len(group) > 1:
        why = f"not identifiable: these times only show {name}; measure an operation that sets them apart"
        found += [Constant(_letter(key, group), key[0], _unit(key[1]), None, reason=why) for key, _ in group]
    return found


def _letter(key: tuple[str, str], group: list[tuple[tuple[str, str], float]]) -> str:
    """a, b or c; with its tier where the same letter of another tier stands beside it."""
    same = [other for other, _ in group if other[1] == key[1]]
    return key[1] if len(same) == 1 else f"{key[1]}_{key[0]}"


def _times(ratio: float, name: str) -> str:
    return name if abs(ratio - 1) < 1e-9 else f"{ratio:.3g} {name}"


def _unit(letter: str) -> str:
    return "s" if letter == "a" else "s/B"


def to_dict(fit: Fit) -> dict[str, Any]:
    """A fit as JSON can hold it, without its points."""
    return {
        "algorithm": fit.algorithm,
        "op": fit.op,
        "world_size": fit.world_size,
        "timing": fit.timing,
        "constants": [
            {name: getattr(constant, name) for name in ("name", "tier", "unit", "value", "low", "high", "reason")}
            for constant in fit.constants
        ],
        "points": len(fit.points),
        "typical_error": fit.typical_error,
    }
