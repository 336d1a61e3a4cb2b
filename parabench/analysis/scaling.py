"""What more ranks give: throughput and efficiency against the world size, strong and weak scaling apart.

Strong scaling (Amdahl 1967): the global batch stays, so that n ranks should take an n-th of the time. Weak scaling
(Gustafson 1988): the batch of a rank stays, so that n ranks should take the same time for n times the work.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from parabench.analysis.frames import WORK
from parabench.family import entry_of

STRONG, WEAK = "strong", "weak"

# What stays the same along a curve of each kind.
FIXED = {STRONG: "global_batch", WEAK: "batch_per_rank"}
_CURVE = ("strategy", "algorithm", "bucket_mib")
_ALIKE = tuple(name for name in WORK if name != "global_batch")
_COLUMNS = (
    "kind", *_ALIKE, "global_batch", "batch_per_rank", *_CURVE, "ranked", "world_size", "latency_s", "tokens_per_s",
    "efficiency", "base_world_size", "base_tokens_per_s", "base",
)  # fmt: skip


def scaling(cases: pd.DataFrame) -> pd.DataFrame:
    """One row per point of each curve (kind, what stays the same, strategy, algorithm, bucket) with two world sizes.

    efficiency(n) = throughput(n) / (n / n0 * throughput(n0)); under weak scaling, where the work of n ranks is n / n0
    times as much, that is step time(n0) / step time(n). n0 is the smallest measured world size of strategy `single`
    if it was measured on the same work, else of the curve itself; `base` says which. A kind's curves never hold
    another's points: along a curve `kind` says which of `global_batch` and `batch_per_rank` is the same. `ranked` is
    False for a strategy that is no answer. Where cases differ in another field (threads, schedule), the fastest at a
    world size stands for it.
    """
    measured = cases[cases["tokens_per_s"].notna()]
    measured = measured.assign(batch_per_rank=measured["global_batch"] / measured["world_size"])
    rows: list[dict[str, Any]] = []
    for kind, fixed in FIXED.items():
        for _, group in measured.groupby([*_ALIKE, fixed], dropna=False, sort=False):
            rows += _curves(kind, group)
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _curves(kind: str, group: pd.DataFrame) -> list[dict[str, Any]]:
    """The points of every curve of one work."""
    rows: list[dict[str, Any]] = []
    single = group[group["strategy"] == "single"]
    for _, curve in group[group["strategy"] != "single"].groupby(list(_CURVE), dropna=False, sort=False):
        own = _fastest(curve)
        base = _fastest(single).iloc[0] if len(single) else own.iloc[0]
        points = own if not len(single) else _with_base(own, base)
        if points["world_size"].nunique() < 2:
            continue
        named = {name: own[name].iloc[0] for name in (*_ALIKE, *_CURVE)}
        for point in points.to_dict("records"):
            ideal = point["world_size"] / base["world_size"] * base["tokens_per_s"]
            rows.append(
                named
                | {
                    "kind": kind,
                    "global_batch": int(point["global_batch"]),
                    "batch_per_rank": float(point["batch_per_rank"]),
                    "ranked": entry_of(str(named["strategy"])).ranked,
                    "world_size": int(point["world_size"]),
                    "latency_s": float(point["latency_s"]),
                    "tokens_per_s": float(point["tokens_per_s"]),
                    "efficiency": float(point["tokens_per_s"]) / float(ideal),
                    "base_world_size": int(base["world_size"]),
                    "base_tokens_per_s": float(base["tokens_per_s"]),
                    "base": str(base["strategy"]),
                }
            )
    return rows


def _fastest(curve: pd.DataFrame) -> pd.DataFrame:
    ordered = curve.sort_values(["world_size", "tokens_per_s"], ascending=[True, False])
    return ordered.drop_duplicates("world_size")


def _with_base(own: pd.DataFrame, base: pd.Series[Any]) -> pd.DataFrame:
    """The curve beginning at the base; its own point at that world size, if measured, stays."""
    if int(base["world_size"]) in set(own["world_size"]):
        return own
    return pd.concat([base.to_frame().T, own]).sort_values("world_size")
