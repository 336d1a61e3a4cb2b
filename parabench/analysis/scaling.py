"""What more ranks give: throughput and efficiency against the world size, strong and weak scaling apart.

Strong scaling (Amdahl 1967): the global batch stays, so that n ranks should take an n-th of the time. Weak scaling
(Gustafson 1988): the batch of a rank stays, so that n ranks should take the same time for n times the work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from parabench.analysis.environment.nodes import sharing
from parabench.analysis.session import SessionData
from parabench.analysis.tables import WORK
from parabench.plan.case import DEFAULTS
from parabench.store.columns import records
from parabench.strategies import entry_of

if TYPE_CHECKING:
    import pandas as pd

STRONG, WEAK = "strong", "weak"

# A case, by the names of its columns; and what rows have in common.
Row = dict[Any, Any]
Key = tuple[Any, ...]

# What stays the same along a curve of each kind.
FIXED = {STRONG: "global_batch", WEAK: "batch_per_rank"}
ALIKE = tuple(name for name in WORK if name != "global_batch")
_CURVE = ("strategy", "algorithm", "bucket_mib")
_COLUMNS = (
    "group", "curve", "kind", *ALIKE, "global_batch", "batch_per_rank", *_CURVE, "ranked", "case_id", "world_size",
    "step_time_s", "tokens_per_s", "efficiency", "base_case_id", "base_world_size", "base_tokens_per_s", "base",
)  # fmt: skip
# What is told of a curve's base, and how it is called there.
_BASE = {
    "case_id": "base_case_id", "world_size": "base_world_size", "tokens_per_s": "base_tokens_per_s", "strategy": "base",
}  # fmt: skip


def curves(seen: SessionData) -> pd.DataFrame:
    """`points` of a session as a DataFrame; for `SessionData.once`."""
    return _frame(seen.once(points))


def points(seen: SessionData) -> list[Row]:
    """`scaling` of what is known of a session, but of ranks that shared a device, as rows; for `SessionData.once`."""
    environment = seen.session.environment
    cases = records(seen.case_columns, ("case_id", "step_time_s", "tokens_per_s", *DEFAULTS))
    return _numbered(case for case in cases if sharing(environment, case) is None)


def scaling(cases: pd.DataFrame) -> pd.DataFrame:
    """One row per point of each curve (kind, what stays the same, strategy, algorithm, bucket) with two world sizes.

    efficiency(n) = throughput(n) / (n / n0 * throughput(n0)); under weak scaling, where the work of n ranks is n / n0
    times as much, that is step time(n0) / step time(n). n0 is the smallest measured world size of strategy `single`
    if it was measured on the same work, else of the curve itself; `base` says which, and a curve that has no point of
    its own there begins at the base's: `case_id` is whose point it is. A kind's curves never hold another's points:
    along a curve `kind` says which of `global_batch` and `batch_per_rank` is the same. `ranked` is False for a
    strategy that is not ranked. Where cases differ in another field (threads, schedule), the fastest at a world size
    stands for it. `group` numbers what stays the same, `curve` the curves, both from 0 in the rows' order.
    """
    return _frame(_numbered(cases.to_dict("records")))


def _frame(rows: Sequence[Row]) -> pd.DataFrame:
    import pandas as pd  # which takes longer than all that `parabench best` does

    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype(_TYPES)


def _numbered(cases: Iterable[Row]) -> list[Row]:
    measured = [case for case in cases if case["tokens_per_s"] == case["tokens_per_s"]]
    for row in measured:
        row["batch_per_rank"] = row["global_batch"] / row["world_size"]
        row["ranked"] = entry_of(str(row["strategy"])).ranked
    found = [point for kind in FIXED for point in _points(kind, measured)]
    numbers: dict[str, dict[Key, int]] = {name: {} for name in ("group", "curve")}
    for point in found:
        for name, known in numbers.items():
            point[name] = known.setdefault(point[name], len(known))
    return found


def _points(kind: str, measured: Sequence[Row]) -> Iterator[Row]:
    """The points of every curve of one kind, by curve and world size."""
    works: dict[Key, list[Row]] = {}
    for row in measured:
        works.setdefault((kind, *_values(row, (*ALIKE, FIXED[kind]))), []).append(row)
    for work, rows in works.items():
        own: dict[Key, dict[int, Row]] = {(*work, *_values(row, _CURVE)): {} for row in rows}
        # At each world size the fastest comes first.
        rows.sort(key=lambda row: (row["world_size"], -row["tokens_per_s"]))
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
                ideal = n / base["world_size"] * base["tokens_per_s"]
                told = {"kind": kind, "group": work, "curve": curve, "efficiency": point["tokens_per_s"] / ideal}
                yield point | of_base | told


def _values(row: Row, names: Sequence[str]) -> Key:
    """Those of the row's values, by which rows are alike: NaN is None."""
    return tuple(None if row[name] != row[name] else row[name] for name in names)


_TYPES = {
    "global_batch": int, "world_size": int, "base_world_size": int, "ranked": bool, "tokens_per_s": float,
    "base_tokens_per_s": float, "efficiency": float, "step_time_s": float, "batch_per_rank": float,
}  # fmt: skip
