"""The collectives of instrumented steps, each as one call of all its ranks, and DDP's buckets.

Bandwidths are defined as in nccl-tests (doc/PERFORMANCE.md). The time of a call starts when its last rank has started,
because waiting for a late rank does not show the speed of the links.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from parabench.analysis.collectives.bus import bus_factor
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import COMPUTE, collectives, instrumented_steps
from parabench.store.record import GB, MESSAGES

# No rank can finish these before the last one has entered. If there is a root, some ranks can finish earlier.
MUTUAL = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier")

# A call: the n-th of a group in a step. Messages have the rank that made them, other calls -1.
CALL = ["launch_id", "step", "ranks", "n", "sender"]
_BUCKET_SECONDS = ["ready_s", "made_s", "start_s", "end_s", "duration_s", "wire_s", "exposed_s"]
BUCKET_COLUMNS = ["case_id", "bucket", "bytes", "parameters", *_BUCKET_SECONDS, "busbw", "since"]


def rank_calls(seen: SessionData) -> pd.DataFrame:
    """Return the collectives as each rank recorded them, with `CALL`; for `SessionData.once`.

    - `place`: the row of the step in `Steps.table`
    - `part`: the part of the step that made the call
    - `queued_s`: the time from the call until it ran
    - `exposed_s`: the time while it ran and training was blocked
    """
    steps = seen.once(instrumented_steps)
    rows = seen.once(collectives).sort_values(["launch_id", "rank", "seq"], kind="stable")
    rows = rows.assign(place=steps.place(rows), sender=rows["rank"].where(rows["op"].isin(MESSAGES), -1))
    rows = rows[rows["place"] >= 0]
    place = rows["place"].to_numpy()
    within = steps.table.iloc[place]
    part = np.full(len(rows), "data", dtype=object)
    for name in COMPUTE:
        begin, end = (times[name].to_numpy()[place] for times in (steps.begin, steps.end))
        part[rows["made_s"].between(begin, end)] = name
    ends = np.minimum(rows["end_s"], within["end_s"].to_numpy())
    return rows.assign(
        n=rows.groupby(["launch_id", "step", "rank", "ranks", rows["sender"] >= 0], sort=False).cumcount(),
        part=part,
        queued_s=rows["start_s"] - rows["made_s"],
        exposed_s=steps.blocked.within(within["key"], rows["start_s"], ends),
    )


def group_calls(seen: SessionData) -> pd.DataFrame:
    """Return one row per call of all its ranks, or per send and receive, in the order of the calls; for
    `SessionData.once`.

    - `duration_s`: the time on the slowest rank, including its wait for others
    - `wire_s`: from the last start to the last end, NaN if a rank did not record the call
    - `late_s`: from the first rank's call to the last rank's call, NaN like `wire_s`
    - `exposed_s`: the longest time that training was blocked on a rank; simultaneous calls share it
    - `busbw`: GB/s, by `wire_s`, or by `duration_s` if the ranks need not wait for each other
    """
    rows = seen.once(rank_calls).sort_values("duration_s", ascending=False, kind="stable")
    firsts = ("op", "algorithm", "group_size", "dtype", "bytes", "bucket", "part", "duration_s")
    calls = rows.groupby(CALL, sort=False).agg(
        **{name: (name, "first") for name in firsts},
        ops=("op", "nunique"),
        ended=("end_s", "count"),
        last_start=("start_s", "max"),
        last_end=("end_s", "max"),
        first_made=("made_s", "min"),
        last_made=("made_s", "max"),
        exposed_s=("exposed_s", "max"),
        seq=("seq", "min"),
    )
    calls = calls.reset_index().sort_values(["launch_id", "step", "seq"], kind="stable", ignore_index=True)
    whole = (calls["ended"] == calls["group_size"].where(calls["sender"] < 0, 1)) & (calls["ops"] == 1)
    wire_s = (calls["last_end"] - calls["last_start"]).where(whole)
    seconds = wire_s.where(calls["op"].isin(MUTUAL), calls["duration_s"])
    factors = [bus_factor(op, int(n)) for op, n in zip(calls["op"], calls["group_size"], strict=True)]
    known = (seconds > 0) & (calls["bytes"] > 0)
    return calls.assign(
        case_id=calls["launch_id"].map(seen.counted.set_index("launch_id")["case"]),
        wire_s=wire_s,
        late_s=(calls["last_made"] - calls["first_made"]).where(whole),
        busbw=(calls["bytes"] / seconds / GB).where(known) * np.array(factors, dtype=float),
    )


def bucket_table(seen: SessionData) -> pd.DataFrame:
    """Return one row per case and DDP bucket that was reduced in instrumented steps, with BUCKET_COLUMNS.

    Numbers are medians over the steps of the rank with the longest median step, then over launches.

    - `ready_s`: the last gradient was there, in seconds after `since`, as `start_s` and `end_s`
    - `made_s`: the all-reduce was called
    - `since`: the start of backward, or of forward_backward with gradient accumulation
    - `parameters`: names, `None` if DDP did not report them
    """
    steps, rows = seen.once(instrumented_steps), seen.once(rank_calls)
    lengths = (steps.table["end_s"] - steps.table["start_s"]).groupby([steps.table["launch_id"], steps.table["rank"]])
    slowest = lengths.median().groupby("launch_id").idxmax()
    on_slowest = pd.MultiIndex.from_frame(rows[["launch_id", "rank"]]).isin(slowest)
    rows = rows[rows["bucket"].notna() & on_slowest]
    if rows.empty:
        return pd.DataFrame(columns=BUCKET_COLUMNS)
    rows = rows.drop_duplicates(["launch_id", "step", "bucket"], keep="last")
    rows = rows.merge(seen.once(group_calls)[[*CALL, "case_id", "wire_s", "busbw"]], on=CALL)
    begin = steps.begin.iloc[rows["place"]].reset_index(drop=True)
    rows["since"] = np.where(begin["backward"].notna(), "backward", "forward_backward")
    for name in ("ready_s", "made_s", "start_s", "end_s"):
        rows[name] -= begin["backward"].fillna(begin["forward_backward"])
    numbers = [*_BUCKET_SECONDS, "busbw", "bytes"]
    by_launch = rows.groupby(["case_id", "launch_id", "bucket"])[numbers].median()
    table = by_launch.groupby(["case_id", "bucket"]).median().reset_index().astype({"bucket": int})
    table["since"] = table["case_id"].map(rows.groupby("case_id")["since"].first())
    launch_of = dict(zip(rows["case_id"], rows["launch_id"], strict=True))
    made = {case_id: dict(enumerate(seen.facts[at].get("buckets") or [])) for case_id, at in launch_of.items()}
    names = [
        made[case_id].get(bucket, {}).get("parameters")
        for case_id, bucket in zip(table["case_id"], table["bucket"], strict=True)
    ]
    table["parameters"] = pd.Series(names, dtype=object)
    return seen.cases[["case_id"]].merge(table, on="case_id")[BUCKET_COLUMNS]
