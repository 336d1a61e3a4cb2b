"""Each collective of the instrumented steps as one call of all its ranks, and DDP's buckets with their moments.

Bandwidths are nccl-tests' (doc/PERFORMANCE.md there): algbw is bytes by time, busbw what the links carry whatever the
number of ranks. The time is what the call takes once the last rank has begun, for what a rank waits for a late one says
nothing of the links.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from parabench.analysis.collectives.bus import bus_factor
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import COMPUTE, collectives, instrumented_steps
from parabench.store.record import GB, MESSAGES

# No rank has its outcome before the last one has come. With a root, some are done earlier.
MUTUAL = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier")

CALL = ["launch_id", "step", "ranks", "n"]
CALL_COLUMNS = (
    "launch_id", "case_id", "step", "ranks", "n", "op", "algorithm", "group_size", "dtype", "bytes", "bucket", "part",
    "seen", "slowest_rank", "duration_s", "wire_s", "late_s", "queued_s", "exposed_s", "algbw", "busbw",
)  # fmt: skip
BUCKET_SECONDS = ("ready_s", "made_s", "start_s", "end_s", "duration_s", "wire_s", "exposed_s")
BUCKET_COLUMNS = (
    "case_id", "bucket", "cap_bytes", "bytes", "n_parameters", "parameters", *BUCKET_SECONDS, "busbw", "since",
)  # fmt: skip
# The part of a step from whose begin a bucket's moments count: what holds backward.
SINCE = ("forward_backward", "backward")


def rank_calls(seen: SessionData) -> pd.DataFrame:
    """The collectives as each rank saw them, for `SessionData.once`: their rows, with `n`, which call of its group in
    the step it is on this rank; `key`, its step's in `instrumented_steps`; `part`, the part of the step in which it was
    called; `queued_s`, how long it waited to run; `exposed_s`, how long the training was blocked within its step while
    it ran."""
    steps = seen.once(instrumented_steps)
    rows = seen.once(collectives).sort_values(["launch_id", "rank", "seq"], kind="stable")
    key = steps.key(rows)
    rows, key = rows[key >= 0], key[key >= 0]
    # Messages are no calls of the whole group: the n-th send of one rank is not the n-th of the other. Each is counted
    # by its rank, so that it is one of its own.
    mutual = ~rows["op"].isin(MESSAGES)
    count = rows.groupby(["launch_id", "step", "rank", "ranks", mutual.rename("mutual")], sort=False).cumcount()
    made = rows["made_s"].to_numpy()
    part = np.full(len(rows), "data", dtype=object)
    for name in COMPUTE:
        within = steps.within[name]
        begin, end = np.full((2, len(steps)), np.nan)
        begin[within.key], end[within.key] = within.start, within.end
        part[(begin[key] <= made) & (made <= end[key])] = name
    return rows.assign(
        n=count,
        key=key,
        part=part,
        mutual=mutual,
        queued_s=rows["start_s"] - made,
        exposed_s=steps.stood.within(key, rows["start_s"], rows["end_s"]),
    )


def call_table(seen: SessionData) -> pd.DataFrame:
    """One row per call of the launches that count; a send or receive is a row of its own, by its one rank.

    `n` is which call of its group (`ranks`) in the step it is. `part` is the part of the step in which it was called,
    `seen` how many ranks told of it. `duration_s` is that of the `slowest_rank`, with its waiting for others;
    `wire_s` from when the last rank began to the last one's end, NaN unless all told. `late_s` is how long after the
    first rank the last one called, `queued_s` the longest that it waited on a rank before it ran, and `exposed_s` the
    longest that a rank's training was blocked during it (calls that run at once share that time). `algbw` and `busbw`
    are in GB/s, by `wire_s`; by `duration_s` where there is a root, which need not wait for the others.
    """
    rows = seen.once(rank_calls)
    if rows.empty:
        return pd.DataFrame(columns=list(CALL_COLUMNS))
    own = np.where(rows["mutual"], -1, rows["rank"])
    rows = rows.assign(own=own, duration=rows["duration_s"].fillna(-1))
    slowest = rows.sort_values("duration", ascending=False, kind="stable").drop_duplicates([*CALL, "own"])
    calls = rows.groupby([*CALL, "own"], sort=False).agg(
        seen=("rank", "size"),
        known=("end_s", "count"),
        ops=("op", "nunique"),
        last_start=("start_s", "max"),
        last_end=("end_s", "max"),
        first_made=("made_s", "min"),
        last_made=("made_s", "max"),
        queued_s=("queued_s", "max"),
        exposed_s=("exposed_s", "max"),
    )
    kept = ["op", "algorithm", "group_size", "dtype", "bytes", "bucket", "part", "rank", "duration_s"]
    calls = calls.join(slowest.set_index([*CALL, "own"])[kept].rename(columns={"rank": "slowest_rank"})).reset_index()
    # A message's other side is not looked for.
    size = calls["group_size"].where(calls["own"] < 0, 1)
    whole = (calls["seen"] == size) & (calls["known"] == size) & (calls["ops"] == 1)
    calls["wire_s"] = (calls["last_end"] - calls["last_start"]).where(whole)
    calls["late_s"] = (calls["last_made"] - calls["first_made"]).where(whole)
    seconds = calls["wire_s"].where(calls["op"].isin(MUTUAL), calls["duration_s"])
    calls["algbw"] = (calls["bytes"] / seconds / GB).where((seconds > 0) & (calls["bytes"] > 0))
    kinds = calls[["op", "group_size"]].drop_duplicates().to_records(index=False)
    factors = {(op, n): bus_factor(op, int(n)) for op, n in kinds}
    calls["busbw"] = calls["algbw"] * [factors[kind] for kind in zip(calls["op"], calls["group_size"], strict=True)]
    calls["case_id"] = calls["launch_id"].map(seen.counted.set_index("launch_id")["case"])
    return calls[list(CALL_COLUMNS)]


def bucket_table(seen: SessionData) -> pd.DataFrame:
    """One row per case and DDP bucket that was reduced in instrumented steps.

    `cap_bytes`, `bytes`, `n_parameters` and `parameters` (a list of names) are what DDP made; None where it does not
    tell. `ready_s`, `made_s`, `start_s` and `end_s` are seconds after the part of the step that is `since` began: when
    the bucket's last gradient was there, when its all-reduce was called, began to run and ended. `since` is backward,
    or forward_backward where they take turns (gradient accumulation): nobody notes when the last backward began.
    `wire_s` and `busbw` are those of `call_table`. All are medians over the steps of the rank whose median step is
    longest, then over launches, as in `case_anatomy`; of several reductions in a step the last counts.
    """
    steps = seen.once(instrumented_steps)
    rows = seen.once(rank_calls)
    rows = rows[rows["bucket"].notna()]
    if rows.empty:
        return pd.DataFrame(columns=list(BUCKET_COLUMNS))
    calls = seen.once(call_table)
    calls = calls.loc[~calls["op"].isin(MESSAGES), [*CALL, "wire_s", "busbw"]]
    rows = rows[rows["rank"] == rows["launch_id"].map(steps.slowest_ranks())]
    rows = rows.drop_duplicates(["launch_id", "step", "bucket"], keep="last").merge(calls, on=CALL)
    begin, since = np.full(len(steps), np.nan), np.full(len(steps), None, dtype=object)
    for name in SINCE:
        within = steps.within[name]
        begin[within.key], since[within.key] = within.start, name
    for moment in ("ready_s", "made_s", "start_s", "end_s"):
        rows[moment] = rows[moment].to_numpy() - begin[rows["key"]]
    by_launch = rows.groupby(["launch_id", "bucket"])[[*BUCKET_SECONDS, "busbw", "bytes"]].median().reset_index()
    case_of = seen.counted.set_index("launch_id")["case"]
    by_launch["case_id"] = by_launch["launch_id"].map(case_of)
    table = by_launch.groupby(["case_id", "bucket"]).median().reset_index().astype({"bucket": int})
    parts = pd.Series(since[rows["key"]], index=rows["launch_id"].map(case_of))
    table["since"] = table["case_id"].map(parts.groupby(level=0).first())
    facts = {case: seen.facts[at] for at, case in zip(case_of.index.tolist(), case_of, strict=True)}
    made = [
        (facts[case].get("buckets") or [])[bucket : bucket + 1]
        for case, bucket in zip(table["case_id"], table["bucket"], strict=True)
    ]
    table["parameters"] = pd.Series([own[0].get("parameters") if own else None for own in made], dtype=object)
    table["n_parameters"] = [np.nan if names is None else len(names) for names in table["parameters"]]
    table["cap_bytes"] = [facts[case].get("bucket_cap_bytes") for case in table["case_id"]]
    table = table.astype({"cap_bytes": float})
    return seen.cases[["case_id"]].merge(table, on="case_id")[list(BUCKET_COLUMNS)]
