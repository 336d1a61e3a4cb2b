"""What more ranks give: throughput and efficiency against the world size."""

from __future__ import annotations

from typing import Any

import pandas as pd

from parabench.analysis.frames import same_work

_CURVE = ("strategy", "algorithm", "bucket_mib")
_COLUMNS = (
    "model", "data", "global_batch", "seq_len", "dtype", "device", *_CURVE, "world_size", "tokens_per_s",
    "efficiency", "base_world_size", "base_tokens_per_s", "base",
)  # fmt: skip


def scaling(cases: pd.DataFrame) -> pd.DataFrame:
    """One row per point of each curve (strategy, algorithm, bucket) with two world sizes of the same work.

    efficiency(n) = throughput(n) / (n / n0 * throughput(n0)), strong scaling: the global batch stays the
    same. n0 is the smallest measured world size of strategy `single` if it was measured, else of the curve
    itself; `base` says which. Where cases differ in another field (threads, ranks per node), the fastest at a
    world size stands for it.
    """
    rows: list[dict[str, Any]] = []
    measured = cases[cases["tokens_per_s"].notna()]
    for work, group in same_work(measured):
        single = group[group["strategy"] == "single"]
        for key, curve in group[group["strategy"] != "single"].groupby(list(_CURVE), dropna=False, sort=False):
            own = _fastest(curve)
            base = _fastest(single).iloc[0] if len(single) else own.iloc[0]
            points = own if not len(single) else _with_base(own, base)
            if points["world_size"].nunique() < 2:
                continue
            for point in points.to_dict("records"):
                ideal = point["world_size"] / base["world_size"] * base["tokens_per_s"]
                rows.append(
                    work
                    | dict(zip(_CURVE, key, strict=True))
                    | {
                        "world_size": int(point["world_size"]),
                        "tokens_per_s": float(point["tokens_per_s"]),
                        "efficiency": float(point["tokens_per_s"]) / float(ideal),
                        "base_world_size": int(base["world_size"]),
                        "base_tokens_per_s": float(base["tokens_per_s"]),
                        "base": str(base["strategy"]),
                    }
                )
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _fastest(curve: pd.DataFrame) -> pd.DataFrame:
    ordered = curve.sort_values(["world_size", "tokens_per_s"], ascending=[True, False])
    return ordered.drop_duplicates("world_size")


def _with_base(own: pd.DataFrame, base: pd.Series[Any]) -> pd.DataFrame:
    """The curve beginning at the base; its own point at that world size, if measured, stays."""
    if int(base["world_size"]) in set(own["world_size"]):
        return own
    return pd.concat([base.to_frame().T, own]).sort_values("world_size")
