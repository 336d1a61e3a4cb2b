"""Stragglers: ranks that enter collectives last, while the other ranks are blocked.

Only blocked ranks lose time. So the cost for a rank is the part of the time from its call to the last rank's call
during which its training was blocked, as a union over the calls of a step. In a pipeline, the first stage ends backward
last on any hardware, so its lateness says nothing about the rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.environment.nodes import clock_error_s, rank_said
from parabench.analysis.session import SessionData
from parabench.analysis.stats.intervals import union
from parabench.analysis.step.breakdown import instrumented_steps
from parabench.analysis.step.calls import CALL, rank_calls
from parabench.store.record import Finding
from parabench.store.results import records
from parabench.strategies import Layout, entry_of

# A straggler is last in nearly every step of every launch. With this number of steps, one of two equal ranks would be
# last by chance in less than 1 of 100 cases (2 x 0.5^8). It must also cost this share of the step.
NEARLY_ALL = 0.9
ENOUGH_STEPS = 8
COSTLY = 0.05

_STEP = ["launch_id", "step"]
CASE_COLUMNS = [
    "case_id", "label", "straggler", "share", "waited_s", "waited_share", "steps", "launches", "agreeing",
    "by_schedule", "who", "clock_error_s",
]  # fmt: skip


def step_stragglers(seen: SessionData) -> pd.DataFrame:
    """Return one row per instrumented step in which all ranks of a group made a call: `launch_id, case_id, step,
    straggler, waited_s, step_s`.

    `straggler` is the rank that cost the others most. `waited_s` is its cost for the rank that waited longest: the time
    during which that rank was blocked between its call and the straggler's. They are NaN and 0 if no rank waited.
    `step_s` is the length of the step on its slowest rank.
    """
    steps, rows = seen.once(instrumented_steps), seen.once(rank_calls)
    groups = rows.groupby(CALL, sort=False)
    made, ops = groups["made_s"].transform("count"), groups["op"].transform("nunique")
    rows = rows[(rows["sender"] < 0) & (made == rows["group_size"]) & (ops == 1)]
    last = rows.sort_values("made_s", kind="stable").drop_duplicates(CALL, keep="last")
    rows = rows.merge(last[[*CALL, "rank", "made_s"]], on=CALL, suffixes=("", "_last"))
    # A rank that has finished before the last one comes does not wait for it: the root of a broadcast.
    until = np.fmin(rows["made_s_last"], rows["end_s"])
    ranks = int(steps.table["rank"].max()) + 1 if len(steps.table) else 1
    late = union(rows["place"] * ranks + rows["rank_last"], rows["made_s"], until)
    own = steps.table.iloc[late.key // ranks].reset_index(drop=True)
    waited = steps.blocked.within(own["key"], late.start, np.minimum(late.end, own["end_s"]))
    waits = own.assign(straggler=late.key % ranks, waited_s=waited)
    cost = waits.groupby([*_STEP, "rank", "straggler"])["waited_s"].sum().groupby([*_STEP, "straggler"]).max()
    most = cost[cost > 0].reset_index().sort_values("waited_s", ascending=False, kind="stable").drop_duplicates(_STEP)
    lengths = steps.table.assign(step_s=steps.table["end_s"] - steps.table["start_s"])
    table = lengths.groupby(_STEP)["step_s"].max().reset_index().merge(rows[_STEP].drop_duplicates(), on=_STEP)
    table = table.merge(most, "left", _STEP).fillna({"waited_s": 0.0})
    return table.assign(case_id=table["launch_id"].map(seen.counted.set_index("launch_id")["case"]))


def straggler_table(seen: SessionData) -> pd.DataFrame:
    """Return one row per case with a rank that others waited for, with CASE_COLUMNS, in the order of `seen.cases`.

    - `straggler` is the rank that is the straggler in most steps, in this `share` of them. In `agreeing` of the
      `launches`, no other rank is the straggler as often. `who` is its name, with its node if there are several.
    - `waited_s` is how long the others waited for it in a step, the median over `steps`, and `waited_share` the same
      relative to the step.
    - `by_schedule`: the strategy is a pipeline, whose schedule makes one rank the last.
    - `clock_error_s` is by how much clocks of nodes may differ, NaN if unknown. If ranks differ by less, the last one
      is unknown.
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
        who=[rank_said(int(rank), told) for rank, told in zip(launches["rank"], facts, strict=True)],
        clock_error_s=pd.Series([clock_error_s(told) for told in facts], launches.index, dtype=float),
    )
    by_case = launches.groupby("case_id")
    table["straggler"] = table["straggler"].astype(int)
    table["agreeing"], table["who"] = by_case["agrees"].sum(), by_case["who"].first()
    table["clock_error_s"] = by_case["clock_error_s"].agg(lambda each: each.max(skipna=False))
    pipelines = [entry_of(str(strategy)).layout is Layout.PIPELINE for strategy in seen.cases["strategy"]]
    cases = seen.cases[["case_id", "label"]].assign(by_schedule=pipelines)
    return cases.merge(table, left_on="case_id", right_index=True)[CASE_COLUMNS].reset_index(drop=True)


def always_last(table: pd.DataFrame) -> pd.Series[bool]:
    """Return for each row of `straggler_table` whether its rank is last in nearly all steps of all launches."""
    never_by_schedule = ~table["by_schedule"].astype(bool)
    return never_by_schedule & (table["share"] >= NEARLY_ALL) & (table["agreeing"] == table["launches"])


def findings(seen: SessionData) -> Iterator[Finding]:
    """Yield the ranks that all others wait for, in nearly all steps of all launches."""
    table = seen.once(straggler_table)
    sure = always_last(table) & (table["steps"] >= ENOUGH_STEPS) & (table["waited_s"] > table["clock_error_s"])
    for case in records(table[sure & (table["waited_share"] > COSTLY)]):
        yield Finding(
            code="straggler",
            message=f"{case['label']}: {case['who']} was the last to enter the collectives in "
            f"{format.percent(case['share'])} of the steps; the others waited {format.milliseconds(case['waited_s'])} "
            f"per step for it ({format.percent(case['waited_share'])}).",
            advice="Look at what that rank does more than the others, at its device, and at what else runs there.",
            case_id=case["case_id"],
        )
