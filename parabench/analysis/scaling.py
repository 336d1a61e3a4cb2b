"""What more ranks give: throughput and efficiency against the world size, strong and weak scaling apart.

Strong scaling (Amdahl 1967): the global batch stays, so that n ranks should take an n-th of the time. Weak scaling
(Gustafson 1988): the batch of a rank stays, so that n ranks should take the same time for n times the work.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from parabench.analysis.environment.nodes import sharing
from parabench.analysis.session import SessionData
from parabench.analysis.tables import WORK
from parabench.strategies import entry_of

STRONG, WEAK = "strong", "weak"

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
    """`scaling` of what is known of a session, but of ranks that shared a device; for `SessionData.once`."""
    environment = seen.session.environment
    alone = [sharing(environment, case) is None for case in seen.cases.to_dict("records")]
    return scaling(seen.cases[np.array(alone, dtype=bool)])


def scaling(cases: pd.DataFrame) -> pd.DataFrame:
    """One row per point of each curve (kind, what stays the same, strategy, algorithm, bucket) with two world sizes.

    efficiency(n) = throughput(n) / (n / n0 * throughput(n0)); under weak scaling, where the work of n ranks is n / n0
    times as much, that is step time(n0) / step time(n). n0 is the smallest measured world size of strategy `single`
    if it was measured on the same work, else of the curve itself; `base` says which, and a curve that has no point of
    its own there begins at the base's: `case_id` is whose point it is. A kind's curves never hold another's points:
    along a curve `kind` says which of `global_batch` and `batch_per_rank` is the same. `ranked` is False for a
    strategy that is no answer. Where cases differ in another field (threads, schedule), the fastest at a world size
    stands for it. `group` numbers what stays the same, `curve` the curves, both from 0 in the rows' order.
    """
    measured = cases[cases["tokens_per_s"].notna()]
    measured = measured.assign(
        batch_per_rank=measured["global_batch"] / measured["world_size"],
        ranked=[entry_of(str(name)).ranked for name in measured["strategy"]],
    )
    table = pd.concat([_curves(kind, measured) for kind in FIXED])
    by_kind = {name: table.groupby(["kind", own], sort=False).ngroup() for name, own in _NUMBERED.items()}
    return table.assign(**by_kind)[list(_COLUMNS)].reset_index(drop=True)


def _curves(kind: str, measured: pd.DataFrame) -> pd.DataFrame:
    """The points of every curve of one kind, by curve and world size."""
    work = measured.groupby([*ALIKE, FIXED[kind]], dropna=False, sort=False).ngroup()
    every = measured.assign(kind=kind, work=work)
    every["curve"] = every.groupby(["work", *_CURVE], dropna=False, sort=False).ngroup()
    every = every.sort_values(["work", "world_size", "tokens_per_s"], ascending=[True, True, False], kind="stable")

    is_single = every["strategy"] == "single"
    points = every[~is_single].drop_duplicates(["curve", "world_size"])
    first = points.drop_duplicates("curve").set_index("curve")
    single = every[is_single].drop_duplicates("work").set_index("work")
    of_single = first["work"].isin(single.index)
    bases = single.reindex(first["work"]).set_axis(first.index).where(of_single, first)[list(_BASE)]

    begins = single.loc[first["work"][of_single]].reset_index().set_axis(first.index[of_single])
    begins = begins.assign(**{name: first.loc[of_single, name] for name in (*_CURVE, "ranked")}, curve=begins.index)
    # A curve's own point at the base's world size stays.
    points = pd.concat([points, begins[points.columns]]).drop_duplicates(["curve", "world_size"])
    points = points[points.groupby("curve")["world_size"].transform("size") > 1]
    points = points.join(bases.rename(columns=_BASE), on="curve").sort_values(["work", "curve", "world_size"])
    ideal = points["world_size"] / points["base_world_size"] * points["base_tokens_per_s"]
    return points.assign(efficiency=points["tokens_per_s"] / ideal).astype(_TYPES)


_NUMBERED = {"group": "work", "curve": "curve"}
_TYPES = {
    "global_batch": int, "world_size": int, "base_world_size": int, "ranked": bool, "tokens_per_s": float,
    "base_tokens_per_s": float, "efficiency": float, "step_time_s": float, "batch_per_rank": float,
}  # fmt: skip
