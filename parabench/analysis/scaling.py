"""What more ranks give: throughput and efficiency against the world size, strong and weak scaling apart.

Strong scaling (Amdahl 1967): the global batch stays, so that n ranks should take an n-th of the time. Weak scaling
(Gustafson 1988): the batch of a rank stays, so that n ranks should take the same time for n times the work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from parabench.analysis.environment.nodes import sharing
from parabench.analysis.numbers import WORK, case_table, same_work
from parabench.analysis.ranking.objectives import PER_TOKEN
from parabench.analysis.session import SessionData
from parabench.analysis.stats.block_model import Effects, fit
from parabench.plan.case import DEFAULTS
from parabench.store.results import records
from parabench.strategies import entry_of

STRONG, WEAK = "strong", "weak"

# A case, by the names of its columns; and what rows have in common.
Row = dict[Any, Any]
Key = tuple[Any, ...]

# What stays the same along a curve of each kind.
FIXED = {STRONG: "global_batch", WEAK: "batch_per_rank"}
ALIKE = tuple(name for name in WORK if name != "global_batch")
_MEASURED = ("step_time_s", "tokens_per_s", *DEFAULTS)
_CURVE = ("strategy", "algorithm", "bucket_mib")
_COLUMNS = (
    "group", "curve", "kind", *ALIKE, "global_batch", "batch_per_rank", *_CURVE, "ranked", "case_id", "world_size",
    "step_time_s", "tokens_per_s", "speedup", "efficiency", "base_case_id", "base_world_size", "base",
)  # fmt: skip
# What is told of a curve's base, and how it is called there.
_BASE = {"case_id": "base_case_id", "world_size": "base_world_size", "strategy": "base"}


def curves(seen: SessionData) -> pd.DataFrame:
    """`points` of a session as a DataFrame; for `SessionData.once`."""
    return _frame(seen.once(points))


def points(seen: SessionData) -> list[Row]:
    """Return `scaling` of a session as rows, without ranks that shared a device; for `SessionData.once`."""
    environment = seen.session.environment
    cases = records(seen.cases, ("case_id", *_MEASURED))
    return _numbered((case for case in cases if sharing(environment, case) is None), seen.numbers)


def scaling(launches: pd.DataFrame) -> pd.DataFrame:
    """Return one row per point of each curve (kind, what stays the same, strategy, algorithm, bucket) with two world
    sizes, from a session's launch table.

    speedup(n) is the ratio of throughput(n) to throughput(n0) in common launches and repetitions, NaN if none connects
    the two. efficiency(n) = speedup(n) / (n / n0); under weak scaling, where the work of n ranks is n / n0 times as
    much, that is step time(n0) / step time(n). n0 is the smallest measured world size of strategy `single`
    if it was measured on the same work, else of the curve itself; `base` says which, and a curve that has no point of
    its own there begins at the base's: `case_id` is whose point it is. A kind's curves never hold another's points:
    along a curve `kind` says which of `global_batch` and `batch_per_rank` is the same. `ranked` is False for a
    strategy that is not ranked. Where cases differ in another field (threads, schedule), the fastest at a world size
    stands for it. `group` numbers what stays the same, `curve` the curves, both from 0 in the rows' order.
    """
    return _frame(_numbered(records(case_table(launches), ("case_id", *_MEASURED)), launches))


def _frame(rows: Sequence[Row]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype(_TYPES)


def _numbered(cases: Iterable[Row], launches: pd.DataFrame) -> list[Row]:
    measured = [case for case in cases if case["tokens_per_s"] == case["tokens_per_s"]]
    for row in measured:
        row["batch_per_rank"] = row["global_batch"] / row["world_size"]
        row["ranked"] = entry_of(str(row["strategy"])).ranked
    effects = _effects(launches)
    found = [point for kind in FIXED for point in _points(kind, measured, effects)]
    numbers: dict[str, dict[Key, int]] = {name: {} for name in ("group", "curve")}
    for point in found:
        for name, known in numbers.items():
            point[name] = known.setdefault(point[name], len(known))
    return found


def _effects(launches: pd.DataFrame) -> dict[str, Effects]:
    """Return for each case the model of token times that it belongs to: one for all batches of a workload."""
    models = (fit(own, "token_s") for _, own in same_work(launches[launches["timed"]], PER_TOKEN))
    return {case: model for model in models for case in model.cases}


def _speedup(row: Row, base: Row, effects: Mapping[str, Effects]) -> float:
    """Return throughput of `row` over that of `base` in common launches and repetitions; NaN if none connects them."""
    model = effects[row["case_id"]]
    return math.exp(model.behind(row["case_id"])[model.cases.index(base["case_id"])])


def _points(kind: str, measured: Sequence[Row], effects: Mapping[str, Effects]) -> Iterator[Row]:
    """The points of every curve of one kind, by curve and world size."""
    works: dict[Key, list[Row]] = {}
    for row in measured:
        works.setdefault((kind, *_values(row, (*ALIKE, FIXED[kind]))), []).append(row)
    for work, rows in works.items():
        own: dict[Key, dict[int, Row]] = {(*work, *_values(row, _CURVE)): {} for row in rows}
        # At each world size the fastest comes first.
        rows.sort(key=lambda row: (row["world_size"], effects[row["case_id"]].means[row["case_id"]]))
        single = next((row for row in rows if row["strategy"] == "single"), None)
        for row in rows:
            if row["strategy"] != "single":
                own[*work, *_values(row, _CURVE)].setdefault(row["world_size"], row)
        for curve, points in own.items():
            if points and single is not None:  # a curve's own point at the base's world size stays
                first = next(iter(points.values()))
                points.setdefault(single["world_size"], single | {name: first[name] for name in (*_CURVE, "ranked")})
            if len(points) < 2:
                continue
            base = single or next(iter(points.values()))
            of_base = {called: base[name] for name, called in _BASE.items()}
            for n, point in sorted(points.items()):
                speedup = _speedup(point, base, effects)
                efficiency = speedup / (n / base["world_size"])
                told = {"kind": kind, "group": work, "curve": curve, "speedup": speedup, "efficiency": efficiency}
                yield point | of_base | told


def _values(row: Row, names: Sequence[str]) -> Key:
    """Those of the row's values, by which rows are alike: NaN is None."""
    return tuple(None if row[name] != row[name] else row[name] for name in names)


_TYPES = {
    "global_batch": int, "world_size": int, "base_world_size": int, "ranked": bool, "tokens_per_s": float,
    "speedup": float, "efficiency": float, "step_time_s": float, "batch_per_rank": float,
}  # fmt: skip
