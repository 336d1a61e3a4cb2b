"""Compute scaling curves: throughput and efficiency by world size.

- Strong scaling (Amdahl 1967): the global batch stays. Ideally, n ranks take an n-th of the time.
- Weak scaling (Gustafson 1988): the batch of a rank stays. Ideally, n ranks take the same time for n times the work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.environment.nodes import sharing
from parabench.analysis.numbers import WORK, same_work
from parabench.analysis.ranking.objectives import PER_TOKEN
from parabench.analysis.session import SessionData
from parabench.analysis.stats.contrasts import Effects, fit
from parabench.store.results import records
from parabench.strategies import entry_of

STRONG, WEAK = "strong", "weak"

# The field that stays the same along a curve of each kind, and the other fields of the workload.
FIXED = {STRONG: "global_batch", WEAK: "batch_per_rank"}
ALIKE = tuple(name for name in WORK if name != "global_batch")
_CURVE = ("strategy", "algorithm", "bucket_mib")
_MEASURED = ("case_id", "world_size", "step_time_s", "tokens_per_s")
_COLUMNS = (
    "group", "curve", "kind", *ALIKE, "global_batch", "batch_per_rank", *_CURVE, "ranked", "case_id", "world_size",
    "step_time_s", "tokens_per_s", "speedup", "efficiency", "base_case_id", "base_world_size", "base",
)  # fmt: skip


def curves(seen: SessionData) -> pd.DataFrame:
    """Return one row per point of each curve with two or more world sizes. Call it through `SessionData.once`.

    A curve has one `kind`, workload, strategy, algorithm and bucket size. If its cases differ in another field, the
    fastest at each world size is its point. Configurations whose ranks shared a device are left out.

    - `base_case_id`, `base`, `base_world_size`: strategy `single` with the same workload, or else the smallest world
      size of the curve. The base `single` is also added to a curve without a point at its world size.
    - `speedup`: throughput relative to the base, in common launches and repetitions; NaN if none connects the two
    - `efficiency`: speedup / (world size / base world size)
    """
    cases = seen.cases[seen.cases["tokens_per_s"].notna()]
    apart = [sharing(seen.session.environment, case) is None for case in records(cases)]
    measured = cases.loc[np.array(apart, dtype=bool), [*_MEASURED, *WORK, *_CURVE]]
    models = (fit(own, "token_s") for _, own in same_work(seen.timed, PER_TOKEN))
    effects = {case: model for model in models for case in model.cases}
    measured = measured.assign(
        batch_per_rank=measured["global_batch"] / measured["world_size"],
        ranked=[entry_of(str(name)).ranked for name in measured["strategy"]],
        level=[effects[case].means[case] for case in measured["case_id"]],
    )
    groups = [
        _curves(rows.assign(kind=kind), effects)
        for kind, fixed in FIXED.items()
        for _, rows in same_work(measured, (*ALIKE, fixed))
        if rows["world_size"].nunique() > 1
    ]
    found = [points for points in groups if len(points)]
    if not found:
        return pd.DataFrame(columns=list(_COLUMNS))
    table = pd.concat([points.assign(group=group) for group, points in enumerate(found)], ignore_index=True)
    table["curve"] = table.groupby(["group", "curve"], sort=False).ngroup()
    return table[list(_COLUMNS)]


def _curves(rows: pd.DataFrame, effects: Mapping[str, Effects]) -> pd.DataFrame:
    """Return the points of all curves of one kind and workload, by curve and world size."""
    alone = rows["strategy"] == "single"
    single = rows[alone].sort_values(["world_size", "level"], kind="stable").head(1)
    own = rows[~alone]
    curve = own.groupby(list(_CURVE), dropna=False, sort=False).ngroup()
    # The fastest at each world size; the curve's own point replaces the base.
    points = own.assign(curve=curve).sort_values("level", kind="stable")
    if len(single):
        same = ["curve", *_CURVE, "ranked"]
        base = single.drop(columns=same[1:]).merge(points.drop_duplicates("curve")[same], how="cross")
        points = pd.concat([points, base])
    points = points.drop_duplicates(["curve", "world_size"]).sort_values(["curve", "world_size"], kind="stable")
    points = points[points.groupby("curve")["case_id"].transform("size") > 1]
    bases = single["case_id"].iloc[0] if len(single) else points.groupby("curve")["case_id"].transform("first")
    points = points.assign(base_case_id=bases)
    of_base = rows.set_index("case_id")[["world_size", "strategy"]].loc[points["base_case_id"]]
    # NaN if no launch or repetition connects the two.
    pairs = zip(points["case_id"], points["base_case_id"], strict=True)
    speedups = np.exp([effects[case].behind(case)[base] for case, base in pairs])
    return points.assign(
        speedup=speedups,
        efficiency=speedups / (points["world_size"] / of_base["world_size"].to_numpy()),
        base_world_size=of_base["world_size"].to_numpy(),
        base=of_base["strategy"].to_numpy(),
    )


def scaling_lines(seen: SessionData) -> Iterator[str]:
    """Yield a sentence per kind and workload: the best speedup at each world size, relative to one rank.

    'Strong scaling (global batch 8), throughput relative to 1 rank: 1.40 (70% of linear) of ddp native, 2 ranks; ...'
    """
    table = seen.once(curves)
    own = table[table["speedup"].notna() & table["ranked"].astype(bool) & (table["base_world_size"] == 1)]
    own = own[own["world_size"] > 1].sort_values("speedup", ascending=False, kind="stable")
    best = own.drop_duplicates(["group", "world_size"]).sort_values(["group", "world_size"])
    for _, points in best.groupby("group"):
        first, texts = points.iloc[0], list[str]()
        for point in records(points):
            linear = format.percent(point["efficiency"]) + ("" if texts else " of linear")
            label = seen.labels[point["case_id"]].removesuffix(f" (global batch {point['global_batch']})")
            texts.append(f"{format.digits(point['speedup'], 3)} ({linear}) of {label}")
        kind, same = "Weak", f"{first['batch_per_rank']:g} a rank"
        if first["kind"] == STRONG:
            kind, same = "Strong", f"global batch {first['global_batch']:,}"
        yield f"{kind} scaling ({same}), throughput relative to 1 rank: {'; '.join(texts)}."
