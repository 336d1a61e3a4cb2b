"""Find stragglers: ranks that enter collectives last, while the other ranks are blocked.

A blocked rank loses the time from its call to the last rank's call. Calls at the same time count once.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from parabench.analysis.environment.nodes import clock_error_s, rank_text
from parabench.analysis.session import SessionData
from parabench.analysis.stats.intervals import union
from parabench.analysis.step.breakdown import instrumented_steps
from parabench.analysis.step.calls import rank_calls
from parabench.strategies import Layout, entry_of

# A straggler is last in this share of the steps of every launch.
NEARLY_ALL = 0.9

_STEP = ["launch_id", "step"]
CASE_COLUMNS = [
    "case_id", "label", "straggler", "share", "waited_s", "waited_share", "steps", "launches", "agreeing",
    "by_schedule", "always_last", "who", "clock_error_s",
]  # fmt: skip


def step_stragglers(seen: SessionData) -> pd.DataFrame:
    """Return one row per `launch_id`, `case_id` and instrumented `step` with a call of all ranks of a group.

    - `straggler`: the rank that others waited for the longest, NaN if no rank waited
    - `waited_s`: how long the rank with the longest wait waited for it
    - `step_s`: the length of the step on its slowest rank
    """
    steps, rows = seen.once(instrumented_steps), seen.once(rank_calls)
    # The last rank to make a call is its last row.
    rows = rows[(rows["sender"] < 0) & rows["made_s"].notna()].sort_values(["call", "made_s"], kind="stable")
    groups = rows.groupby("call")
    rows = rows.join(groups[["rank", "made_s"]].transform("last").add_suffix("_last"))
    rows = rows[(groups["rank"].transform("size") == rows["group_size"]) & ~rows["mixed"]]
    # A rank that finishes before the last one comes, such as the root of a broadcast, does not wait.
    until = np.fmin(rows["made_s_last"], rows["end_s"])
    ranks = int(steps.table["rank"].max()) + 1 if len(steps.table) else 1
    late = union(rows["step_row"] * ranks + rows["rank_last"], rows["made_s"], until)
    waiting = steps.table.iloc[late.key // ranks].reset_index(drop=True)
    waited = steps.blocked.within(waiting["key"], late.start, np.minimum(late.end, waiting["end_s"]))
    waits = waiting.assign(straggler=late.key % ranks, waited_s=waited)
    cost = waits.groupby([*_STEP, "rank", "straggler"])["waited_s"].sum().groupby([*_STEP, "straggler"]).max()
    most = cost[cost > 0].reset_index().sort_values("waited_s", ascending=False, kind="stable").drop_duplicates(_STEP)
    lengths = steps.table.assign(step_s=steps.table["end_s"] - steps.table["start_s"])
    table = lengths.groupby(_STEP)["step_s"].max().reset_index().merge(rows[_STEP].drop_duplicates(), on=_STEP)
    table = table.merge(most, "left", _STEP).fillna({"waited_s": 0.0})
    return table.assign(case_id=table["launch_id"].map(seen.counted.set_index("launch_id")["case"]))


def straggler_table(seen: SessionData) -> pd.DataFrame:
    """Return one row per case with a rank that others waited for, with CASE_COLUMNS, in the order of `seen.cases`.

    - `straggler` and `who`: the most frequent straggler as a number and as text ('rank 9 (node 1)')
    - `share`: the share of the steps with this straggler
    - `agreeing`: how many of the `launches` have the same most frequent straggler
    - `waited_s` and `waited_share`: how long the others waited for it in a step, the median over `steps`
    - `by_schedule`: the strategy is a pipeline, whose schedule makes one rank the last
    - `always_last`: the rank is last in nearly all steps of all launches, and not by schedule
    - `clock_error_s`: how far the clocks of the nodes may differ, NaN if unknown; smaller delays are not reliable
    """
    steps = seen.once(step_stragglers)
    modes = {of: steps.dropna(subset="straggler").groupby(of)["straggler"] for of in ("case_id", "launch_id")}
    rank = modes["case_id"].agg(lambda each: each.mode().iloc[0])
    steps = steps.assign(rank=steps["case_id"].map(rank)).dropna(subset="rank")
    if steps.empty:
        return pd.DataFrame(columns=CASE_COLUMNS)
    is_it = steps["straggler"] == steps["rank"]
    steps = steps.assign(is_it=is_it, waited_s=steps["waited_s"].where(is_it, 0.0))
    steps["waited_share"] = steps["waited_s"] / steps["step_s"]
    table = steps.groupby("case_id").agg(
        straggler=("rank", "first"),
        share=("is_it", "mean"),
        waited_s=("waited_s", "median"),
        waited_share=("waited_share", "median"),
        steps=("is_it", "size"),
        launches=("launch_id", "nunique"),
    )
    launches = steps.drop_duplicates("launch_id").set_index("launch_id")
    only = modes["launch_id"].agg(lambda each: each.mode().iloc[0] if len(each.mode()) == 1 else math.nan)
    facts = [seen.facts[at] for at in launches.index]
    launches = launches.assign(
        agrees=launches["rank"] == only.reindex(launches.index),
        who=[rank_text(int(rank), launch_facts) for rank, launch_facts in zip(launches["rank"], facts, strict=True)],
        clock_error_s=pd.Series([clock_error_s(launch_facts) for launch_facts in facts], launches.index, dtype=float),
    )
    by_case = launches.groupby("case_id")
    table["straggler"] = table["straggler"].astype(int)
    table["agreeing"], table["who"] = by_case["agrees"].sum(), by_case["who"].first()
    table["clock_error_s"] = by_case["clock_error_s"].agg(lambda each: each.max(skipna=False))
    pipelines = [entry_of(str(strategy)).layout is Layout.PIPELINE for strategy in seen.cases["strategy"]]
    cases = (
        seen.cases[["case_id", "label"]].assign(by_schedule=pipelines).merge(table, left_on="case_id", right_index=True)
    )
    agree = (cases["share"] >= NEARLY_ALL) & (cases["agreeing"] == cases["launches"])
    return cases.assign(always_last=agree & ~cases["by_schedule"])[CASE_COLUMNS].reset_index(drop=True)
