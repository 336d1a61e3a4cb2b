"""Steps and calls of a training that somebody else recorded, by rank; what a recording does not tell is NaN.

Communication is when a collective ran, exposed what of it no kernel of the rank's device computed in, on a CPU no
operator: nobody noted when a rank was blocked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis.collectives.bus import bus_factor
from parabench.analysis.environment.nodes import node_of_rank
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import with_numbers
from parabench.analysis.step.calls import MUTUAL
from parabench.analysis.step.timeline import Timeline
from parabench.plan.case import UNKNOWN
from parabench.store.metrics import STEP_PARTS
from parabench.store.record import COMMUNICATION, GB, OTHER, WAIT, Phase

PARTS = tuple(part.removesuffix("_s") for part in STEP_PARTS)
RANK_COLUMNS = (
    "rank", "steps", "step_s", *STEP_PARTS, "communication_s", "exposed_s", "exposed_share",
)  # fmt: skip
_CALL = ["op", "ranks", "group_size", "bytes", "dtype"]
CALL_COLUMNS = (*_CALL, "seen", "per_step", "duration_s", "shortest_s", "algbw", "busbw")
FLIGHT_COLUMNS = (*_CALL, "seen", "calls", "duration_s")


def step_lengths(seen: SessionData) -> pd.DataFrame:
    """One row per rank and step, with `step_s`, in their order."""
    # A recording has thousands of steps at most, not a session's millions.
    rows = seen.results.sample
    rows = rows[(rows["metric"] == "step_s") & rows["launch_id"].isin(seen.launches["launch_id"])]
    table = rows[["rank", "step"]].assign(step_s=pd.to_numeric(rows["value"]))
    return table.sort_values(["rank", "step"], kind="stable").reset_index(drop=True)


def slowest_lengths(seen: SessionData) -> pd.Series[float]:
    """How long each step took on its slowest rank, in seconds, by step."""
    return seen.once(step_lengths).groupby("step")["step_s"].max()


def rank_table(seen: SessionData) -> pd.DataFrame:
    """One row per rank with steps: `steps`, how many, and medians over them, in seconds: the step, its parts (NaN where
    none is named so), `other_s` of no name, communication, and how much of it is exposed, also as a share of the
    step."""
    lengths = seen.once(step_lengths)
    if lengths.empty:
        return pd.DataFrame(columns=list(RANK_COLUMNS))
    spans = seen.results.span
    spans = spans.assign(length=spans["end_s"] - spans["start_s"])
    every = lengths.set_index(["rank", "step"])
    sums = spans.pivot_table("length", ["rank", "step"], "name", "sum").reindex(every.index)
    sums = sums.reindex(columns=[*PARTS, COMMUNICATION, WAIT])
    named = sums.notna().groupby("rank").any()
    case = seen.launches.iloc[0]
    # A process without peers does not communicate; otherwise communication that was not recorded is unknown.
    named[COMMUNICATION] |= bool(told(seen).get("alone"))
    named[WAIT] = named[COMMUNICATION] & bool(case["device"] != UNKNOWN)
    named[OTHER] = True
    known = named.reindex(sums.index.get_level_values("rank")).set_axis(sums.index)
    sums = sums.fillna(0.0).where(known).assign(step_s=every["step_s"])
    table = sums.groupby("rank").median().rename(columns={WAIT: "exposed"})
    table = table.rename(columns={name: f"{name}_s" for name in table if name != "step_s"})
    share = (sums[WAIT] / sums["step_s"]).groupby("rank").median()
    table = table.assign(steps=every.groupby("rank").size(), exposed_share=share)
    return table.reset_index()[list(RANK_COLUMNS)]


def _calls(seen: SessionData, phase: Phase) -> pd.DataFrame:
    rows = seen.results.collective
    rows = with_numbers(rows[rows["phase"] == phase])
    return rows.sort_values(["rank", "seq"], kind="stable")


def call_table(seen: SessionData) -> pd.DataFrame:
    """One row per operation, group, size and type of the calls in steps, the longest together first.

    `seen` is how many ranks told of it, `per_step` its calls on one rank in one, `duration_s` the median of all.
    `shortest_s` is that of the rank that waited least, which came last, median over calls that all ranks of the group
    told of; by it `algbw` and `busbw`, in GB/s as nccl-tests has them, NaN for operations that need not wait for all.
    """
    rows = _calls(seen, Phase.INSTRUMENT)
    if rows.empty:
        return pd.DataFrame(columns=list(CALL_COLUMNS))
    nth = rows.groupby(["step", "rank", *_CALL], dropna=False).cumcount()
    rows = rows.assign(nth=nth, told=rows["duration_s"].notna())
    one = rows.groupby(["step", "nth", *_CALL], dropna=False)
    calls = one.agg(ranks_told=("told", "sum"), shortest_s=("duration_s", "min")).reset_index()
    # Groups of the same size with unknown ranks may be different groups, whose calls must not be matched.
    whole = (calls["ranks_told"] == calls["group_size"]) & calls["op"].isin(MUTUAL) & calls["ranks"].notna()
    calls["shortest_s"] = calls["shortest_s"].where(whole)
    shortest = calls.groupby(_CALL, dropna=False)["shortest_s"].median()
    groups = rows.groupby(_CALL, dropna=False)
    table = groups.agg(seen=("rank", "nunique"), duration_s=("duration_s", "median"), all_s=("duration_s", "sum"))
    per_step = rows.groupby([*_CALL, "rank", "step"], dropna=False).size().groupby(_CALL, dropna=False).median()
    table = table.assign(per_step=per_step, shortest_s=shortest).sort_values("all_s", ascending=False).reset_index()
    positive = (table["shortest_s"] > 0) & (table["bytes"] > 0)
    algbw = (table["bytes"] / table["shortest_s"] / GB).where(positive)
    factors = [bus_factor(str(op), int(n)) for op, n in zip(table["op"], table["group_size"], strict=True)]
    return table.assign(algbw=algbw, busbw=algbw * np.array(factors))[list(CALL_COLUMNS)]


def flight_table(seen: SessionData) -> pd.DataFrame:
    """One row per operation, group, size and type that flight recorders hold: `seen` ranks told of it, the one with
    most of so many `calls`; `duration_s` is the median where it was timed."""
    rows = _calls(seen, Phase.FLIGHT)
    if rows.empty:
        return pd.DataFrame(columns=list(FLIGHT_COLUMNS))
    groups = rows.groupby(_CALL, dropna=False)
    table = groups.agg(seen=("rank", "nunique"), duration_s=("duration_s", "median"))
    table["calls"] = rows.groupby([*_CALL, "rank"], dropna=False).size().groupby(_CALL, dropna=False).max()
    return table.sort_values("calls", ascending=False, kind="stable").reset_index()[list(FLIGHT_COLUMNS)]


def median_timeline(seen: SessionData) -> Timeline | None:
    """The step of median length (the lower of two), by its slowest rank; None where none was recorded."""
    lengths = slowest_lengths(seen).sort_values(kind="stable")
    if lengths.empty:
        return None
    step = int(lengths.index[(len(lengths) - 1) // 2])
    case = seen.launches.iloc[0]
    spans, calls = seen.results.span, _calls(seen, Phase.INSTRUMENT)
    spans, calls = spans[spans["step"] == step], calls[calls["step"] == step]
    begin = float(spans["start_s"].min())
    moments = ["made_s", "start_s", "ready_s"]
    calls = calls.assign(busbw=np.nan, **{name: calls[name] - begin for name in moments})
    drawn = calls[calls["start_s"].notna() | calls["made_s"].notna()]
    return Timeline(
        case_id=str(case["case_id"]),
        launch_id=int(case["launch_id"]),
        step=step,
        length_s=float(lengths.loc[step]),
        steps=len(lengths),
        spans=spans.assign(start_s=spans["start_s"] - begin, end_s=spans["end_s"] - begin).to_dict("records"),
        calls=drawn.to_dict("records"),
        node_of=node_of_rank({}),
    )


def told(seen: SessionData) -> dict[str, Any]:
    """Return the launch's facts about its recordings, as `imports.into_store` writes them."""
    recorded: dict[str, Any] = seen.facts[int(seen.launches["launch_id"].iloc[0])].get("recorded") or {}
    return recorded
