"""Who comes late: the n-th collective of a group in a step is one call of all its ranks, and they wait for the last.

Only ranks that stand still lose anything by it, so what counts is the time from a rank's own call to the last one's in
which its training was blocked, as a union over the calls of a step.

In a pipeline the first stage ends backward last whatever it runs on: who comes last there says nothing of a rank.
"""

from __future__ import annotations

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
from parabench.strategies import Layout, entry_of

# A straggler is last in nearly every step of every launch, and in so many steps that of two equal ranks one would be by
# chance in less than 1 of 100 cases (2 x 0.5^8). Then it must cost something.
NEARLY_ALL = 0.9
ENOUGH_STEPS = 8
COSTLY = 0.05

STEP_COLUMNS = ("launch_id", "case_id", "step", "straggler", "waited_s", "step_s")
CASE_COLUMNS = (
    "case_id", "label", "straggler", "share", "waited_s", "waited_share", "steps", "launches", "agreeing",
    "by_schedule", "who", "clock_error_s",
)  # fmt: skip


def step_stragglers(seen: SessionData) -> pd.DataFrame:
    """One row per instrumented step with calls that all ranks of a group made.

    `straggler` is the rank that cost the others most and `waited_s` what it cost: of the rank that waited longest for
    it, the time in which its training was blocked between its own call and the straggler's. NaN and 0 where nobody
    waited. `step_s` is the step's length on its slowest rank.
    """
    steps = seen.once(instrumented_steps)
    rows = seen.once(rank_calls)
    rows = rows[rows["mutual"]]
    groups = rows.groupby(CALL, sort=False)
    rows = rows.assign(size=groups["made_s"].transform("count"), ops=groups["op"].transform("nunique"))
    rows = rows[(rows["size"] == rows["group_size"]) & (rows["ops"] == 1)]
    if rows.empty:
        return pd.DataFrame(columns=list(STEP_COLUMNS))
    last = rows.sort_values("made_s", kind="stable").drop_duplicates(CALL, keep="last")
    rows = rows.merge(last[[*CALL, "rank", "made_s"]], on=CALL, suffixes=("", "_last"))
    # One that was over before the last came did not wait for it: a broadcast's root, say.
    until = np.fmin(rows["made_s_last"], rows["end_s"])
    ranks = int(rows["rank_last"].max()) + 1
    late = union(rows["key"] * ranks + rows["rank_last"], rows["made_s"], until)
    waited = steps.stood.within(late.key // ranks, late.start, late.end)
    cost = np.bincount(late.key, weights=waited, minlength=len(steps) * ranks).reshape(len(steps), ranks)
    by_step = pd.concat([steps.table[["launch_id", "step"]], pd.DataFrame(cost)], axis=1)
    by_step = by_step[np.isin(np.arange(len(steps)), rows["key"])]
    most = by_step.groupby(["launch_id", "step"]).max()
    lengths = (steps.table["end_s"] - steps.table["start_s"]).groupby([steps.table["launch_id"], steps.table["step"]])
    table = most.index.to_frame(index=False)
    table["waited_s"] = most.max(axis=1).to_numpy()
    table["straggler"] = most.idxmax(axis=1).where(most.max(axis=1) > 0).to_numpy(float)
    table["step_s"] = lengths.max().reindex(most.index).to_numpy()
    table["case_id"] = table["launch_id"].map(seen.counted.set_index("launch_id")["case"])
    return table[list(STEP_COLUMNS)]


def straggler_table(seen: SessionData) -> pd.DataFrame:
    """One row per case whose ranks call collectives together, in the order of `seen.cases`.

    `straggler` is the rank that is it in most steps, in the `share` of them. `waited_s` is how long the others waited
    for it in a step, the median over its `steps`, and `waited_share` that by the step's length. In `agreeing` of
    its `launches` it is the rank that is it in most steps. `by_schedule`: the strategy is a pipeline, whose schedule
    makes one rank the last. `who` is the straggler in words, with its node where there are several, and `clock_error_s`
    by how much clocks of nodes may differ: which rank is last by less is unknown. NaN where that is unknown.
    """
    steps = seen.once(step_stragglers).copy()
    named = steps.dropna(subset="straggler")
    if named.empty:
        return pd.DataFrame(columns=list(CASE_COLUMNS))
    in_case = _most(named, "case_id")
    # A launch agrees where no other rank is it as often.
    in_launch = _most(named, "launch_id")
    in_launch = in_launch[in_launch["shared_by"] == 1]
    steps["rank"] = steps["case_id"].map(in_case["straggler"])
    steps = steps.dropna(subset="rank")
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
    agrees = launches["rank"] == in_launch["straggler"].reindex(launches.index)
    table["agreeing"] = agrees.groupby(launches["case_id"]).sum()
    table["straggler"] = table["straggler"].astype(int)
    launches["clock_error_s"] = pd.Series({at: clock_error_s(seen.facts[at]) for at in launches.index}, dtype=float)
    one_of = launches.reset_index().drop_duplicates("case_id").set_index("case_id")["launch_id"].reindex(table.index)
    table["who"] = [rank_said(rank, seen.facts[at]) for rank, at in zip(table["straggler"], one_of, strict=True)]
    table["clock_error_s"] = launches.groupby("case_id")["clock_error_s"].agg(lambda each: each.max(skipna=False))
    pipelines = [entry_of(str(strategy)).layout is Layout.PIPELINE for strategy in seen.cases["strategy"]]
    cases = seen.cases[["case_id", "label"]].assign(by_schedule=pipelines)
    return cases.merge(table, left_on="case_id", right_index=True)[list(CASE_COLUMNS)].reset_index(drop=True)


def _most(steps: pd.DataFrame, of: str) -> pd.DataFrame:
    """By case or launch, the rank that is the `straggler` in most steps, and how many ranks that is `shared_by`."""
    counts = steps.groupby([of, "straggler"]).size().rename("steps").reset_index()
    most = counts[counts["steps"] == counts.groupby(of)["steps"].transform("max")]
    return most.groupby(of).agg(straggler=("straggler", "min"), shared_by=("straggler", "size"))


def findings(seen: SessionData) -> Iterator[Finding]:
    """The ranks that all others wait for, step after step and launch after launch."""
    table = seen.once(straggler_table)
    table = table[~table["by_schedule"].astype(bool)]
    sure = (table["share"] >= NEARLY_ALL) & (table["agreeing"] == table["launches"]) & (table["steps"] >= ENOUGH_STEPS)
    sure &= table["waited_s"] > table["clock_error_s"]
    for case in table[sure & (table["waited_share"] > COSTLY)].to_dict("records"):
        yield Finding(
            code="straggler",
            message=f"{case['label']}: {case['who']} was the last to enter the collectives in "
            f"{format.percent(case['share'])} of the steps; the others waited {format.milliseconds(case['waited_s'])} "
            f"per step for it ({format.percent(case['waited_share'])}).",
            advice="Look at what that rank does more than the others, at its device, and at what else runs there.",
            case_id=case["case_id"],
        )
