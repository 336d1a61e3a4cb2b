"""Analyze steps and collectives in profiler traces and dumps, and compare two recordings.

Communication is the time when a collective ran. It is exposed while no other kernel (on a CPU, no operator) ran.
Unknown numbers are NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.collectives.bus import bus_factor
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import with_numbers
from parabench.analysis.step.timeline import Timeline, timeline_of
from parabench.metrics import STEP_PARTS
from parabench.plan.case import UNKNOWN
from parabench.store.record import COMMUNICATION, GB, OTHER, WAIT, Phase
from parabench.store.results import records

PARTS = tuple(part.removesuffix("_s") for part in STEP_PARTS)
_KIND = ["op", "ranks", "group_size", "bytes", "dtype"]
_LATE = ["op", "ranks", "bytes", "dtype", "rank", "calls", "late_s", "total_s", "last", "shortest_s"]


def facts_of(seen: SessionData) -> dict[str, Any]:
    """Return what `imports.into_store` stored about the recorded files, by name; empty for other sessions."""
    recorded: dict[str, Any] = seen.facts[int(seen.numbers["launch_id"].iloc[0])].get("recorded") or {}
    return recorded


def is_whole(seen: SessionData) -> bool:
    """Return whether no trace marks its steps. Each trace then counts as one step."""
    return all(each.get("whole") for each in facts_of(seen).get("files") or [] if each.get("steps"))


def slowest_lengths(seen: SessionData) -> pd.Series[float]:
    """Return the seconds of each step on its slowest rank, indexed by step."""
    return seen.once(step_table).groupby("step")["step_s"].max()


def step_table(seen: SessionData) -> pd.DataFrame:
    """Return the seconds of each rank and step: `step_s`, `PARTS`, communication, and waiting for communication."""
    rows = seen.results.sample
    rows = rows[(rows["metric"] == "step_s") & rows["launch_id"].isin(seen.numbers["launch_id"])]
    lengths = rows.set_index(["rank", "step"])["value"].astype(float).sort_index(kind="stable")
    spans = seen.results.span
    spans = spans.assign(length=spans["end_s"] - spans["start_s"])
    sums = spans.pivot_table("length", ["rank", "step"], "name", "sum").reindex(lengths.index)
    sums = sums.reindex(columns=[*PARTS, COMMUNICATION, WAIT])
    named = sums.notna().groupby("rank").any()
    # A process without peers does not communicate; otherwise communication that was not recorded is unknown.
    named[COMMUNICATION] |= bool(facts_of(seen).get("alone"))
    named[WAIT] = named[COMMUNICATION] & (named[WAIT] | bool(seen.numbers.iloc[0]["device"] != UNKNOWN))
    named[OTHER] = True
    known = named.reindex(sums.index.get_level_values("rank")).set_axis(sums.index)
    return sums.fillna(0.0).where(known).assign(step_s=lengths)


def rank_table(seen: SessionData) -> pd.DataFrame:
    """Return one row per rank that has steps, with medians over its steps.

    - `step_s`, `communication_s`, `exposed_s`, and `{part}_s` for PARTS: seconds
    - `exposed_share`: exposed communication as a share of the step
    - `steps`: the number of steps
    """
    table = seen.once(step_table).rename(columns={name: f"{name}_s" for name in (*PARTS, COMMUNICATION)})
    table = table.rename(columns={WAIT: "exposed_s"})
    by_rank = table.assign(exposed_share=table["exposed_s"] / table["step_s"]).groupby("rank")
    return by_rank.median().assign(steps=by_rank.size()).reset_index()


def _calls(seen: SessionData, phase: Phase) -> pd.DataFrame:
    rows = seen.results.collective
    rows = with_numbers(rows[rows["phase"] == phase])
    rows = rows.assign(bytes=pd.to_numeric(rows["bytes"]), group_size=pd.to_numeric(rows["group_size"]))
    return rows.sort_values(["rank", "seq"], kind="stable")


def _kinds(seen: SessionData, phase: Phase, by: str) -> pd.DataFrame:
    """Return one row per kind of call in a phase: operation, ranks, size and type. Largest values in `by` first.

    - `seen`: the number of ranks with the call
    - `calls`: the number of calls of the rank with the most calls
    - `per_step`: the number of calls of a rank in a step, the median
    - `duration_s` and `all_s`: the median and the sum of the durations of all calls
    """
    rows = _calls(seen, phase)
    table = rows.groupby(_KIND, dropna=False).agg(
        seen=("rank", "nunique"), duration_s=("duration_s", "median"), all_s=("duration_s", "sum")
    )
    counts = rows.groupby([*_KIND, "rank", "step"], dropna=False).size()
    calls = counts.groupby([*_KIND, "rank"], dropna=False).sum().groupby(_KIND, dropna=False).max()
    table = table.assign(calls=calls, per_step=counts.groupby(_KIND, dropna=False).median())
    return table.sort_values(by, ascending=False, kind="stable").reset_index()


def call_kinds(seen: SessionData) -> pd.DataFrame:
    """Return one row per kind of call in steps (`_kinds`) with its bandwidths, longest total duration first.

    `shortest_s` is the median duration on the last rank to enter (`imports.clocks.lateness`). `algbw` and `busbw` are
    computed from it, in GB/s as in nccl-tests.
    """
    kind = ["op", "ranks", "bytes", "dtype"]
    shortest = late_table(seen).drop_duplicates(kind)[[*kind, "shortest_s"]]
    table = _kinds(seen, Phase.INSTRUMENT, "all_s")
    # A column without any value has another type in one of the tables.
    types = table[kind].dtypes.to_dict()
    shortest = shortest.assign(bytes=pd.to_numeric(shortest["bytes"]))
    table = table.merge(shortest.astype({name: types[name] for name in ("op", "dtype")}), "left", kind)
    positive = (table["shortest_s"] > 0) & (table["bytes"] > 0)
    algbw = (table["bytes"] / table["shortest_s"] / GB).where(positive)
    sizes = table["group_size"].fillna(1)
    factors = [bus_factor(str(op), int(n)) for op, n in zip(table["op"], sizes, strict=True)]
    return table.assign(algbw=algbw, busbw=algbw * np.array(factors))


def flight_table(seen: SessionData) -> pd.DataFrame:
    """Return one row per kind of call in flight recorder dumps (`_kinds`), the most frequent kind first."""
    return _kinds(seen, Phase.FLIGHT, "calls")


def late_table(seen: SessionData) -> pd.DataFrame:
    """Return one row per kind of collective and rank: delays after the first rank to enter, longest total first.

    - `late_s` and `total_s`: the median and the sum of the delays
    - `last`: how often the rank was last, in `calls` calls
    - `shortest_s`: the median duration on the last rank to enter
    """
    table = pd.DataFrame(facts_of(seen).get("late") or [], columns=_LATE)
    return table.sort_values(["total_s", "last"], ascending=False, kind="stable", ignore_index=True)


def median_timeline(seen: SessionData) -> Timeline | None:
    """Return the timeline of the step whose slowest rank has the median length; None if no step was recorded."""
    lengths = slowest_lengths(seen).sort_values(kind="stable")
    if lengths.empty:
        return None
    step = int(lengths.index[(len(lengths) - 1) // 2])
    calls = _calls(seen, Phase.INSTRUMENT).assign(busbw=np.nan)
    calls = calls[(calls["step"] == step) & (calls["start_s"].notna() | calls["made_s"].notna())]
    return timeline_of(seen, int(seen.numbers["launch_id"].iloc[0]), step, float(lengths.loc[step]), calls)


_NUMBERS = ("base_median_s", "base_least_s", "base_most_s", "candidate_median_s", "candidate_least_s",
            "candidate_most_s", "ratio")  # fmt: skip
COMPARED = {"what": str, "name": str, **dict.fromkeys(_NUMBERS, float | None), "apart": bool | None}


def compared(base: SessionData, candidate: SessionData) -> pd.DataFrame:
    """Return one row per quantity of two recordings, in seconds, with the columns of COMPARED.

    - `what` and `name`: the kind of the quantity (step, collective, kernel), and its name
    - `base_...` and `candidate_...`: median, minimum and maximum over the steps; NaN if a recording lacks the quantity
    - `ratio`: the candidate's median divided by the base's
    - `apart`: whether the ranges do not overlap, None with less than two steps
    """
    sides = [_per_step(each) for each in (base, candidate)]
    rows = []
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        found = [side.get(key, pd.Series(dtype=float)).dropna() for side in sides]
        (old, low, high), (new, least, most) = ((one.median(), one.min(), one.max()) for one in found)
        ratio = new / old if old > 0 else np.nan
        apart = bool(low > most or least > high) if min(map(len, found)) > 1 else None
        rows.append((*key, old, low, high, new, least, most, ratio, apart))
    return pd.DataFrame(rows, columns=list(COMPARED))


def _per_step(seen: SessionData) -> dict[tuple[str, str], pd.Series[float]]:
    """Return {(kind, name): seconds by step} for the quantities of `compared`, the longest first in each kind.

    Seconds are means over the ranks, but the length of a step is from its slowest rank.
    """
    steps, found = seen.once(step_table), {}
    if len(steps) and not is_whole(seen):
        found["step", "slowest rank"] = slowest_lengths(seen)
        for name, column in (("communication", COMMUNICATION), ("exposed communication", WAIT)):
            found["step", name] = steps.groupby("step")[column].mean()
    calls = _calls(seen, Phase.INSTRUMENT)
    calls = calls.assign(name=[_call_name(row) for row in records(calls)])
    for name in calls.groupby("name")["duration_s"].sum().sort_values(ascending=False, kind="stable").index:
        found["collective", str(name)] = calls[calls["name"] == name].groupby("step")["duration_s"].mean()
    if not is_whole(seen):
        kernels = pd.DataFrame(facts_of(seen).get("kernels") or [], columns=["rank", "name", "steps_s"])
        totals = {str(name): pd.DataFrame(rows["steps_s"].tolist()).mean() for name, rows in kernels.groupby("name")}
        for name in sorted(totals, key=lambda each: -totals[each].sum()):
            found["kernel", name] = totals[name]
    return found


def _call_name(call: Mapping[Any, Any]) -> str:
    """Return 'all_reduce, 4,096 bytes, float32, 2 ranks'."""
    size = f"{call['bytes']:,.0f} bytes" if format.known(call["bytes"]) else "size unknown"
    ranks = format.count(int(call["group_size"]), "rank") if format.known(call["group_size"]) else ""
    dtype = call["dtype"] if isinstance(call["dtype"], str) else ""
    return ", ".join(filter(None, (call["op"], size, dtype, ranks)))
