"""The collectives of instrumented steps, each as one call of all its ranks, and DDP's buckets.

Bandwidths are defined as in nccl-tests (doc/PERFORMANCE.md). The time of a call starts when its last rank has started.
Waiting for a late rank does not show the speed of the links.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from parabench.analysis.collectives.bus import bus_factor
from parabench.analysis.session import SessionData
from parabench.analysis.stats.intervals import Flags, Floats, Keys
from parabench.analysis.step.breakdown import COMPUTE, collectives, instrumented_steps
from parabench.store.record import GB, MESSAGES

# No rank can finish these before the last one has entered. If there is a root, some ranks can finish earlier.
MUTUAL = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier")

_BUCKET_SECONDS = ["ready_s", "made_s", "start_s", "end_s", "duration_s", "wire_s", "exposed_s"]
BUCKET_COLUMNS = ["case_id", "bucket", "bytes", "parameters", *_BUCKET_SECONDS, "busbw", "since"]


def rank_calls(seen: SessionData) -> pd.DataFrame:
    """Return the collectives as each rank recorded them; for `SessionData.once`.

    - `call`: the number of the call of all its ranks: the n-th of a group in a step. Each message is a call.
    - `n`: this n; `sender`: the rank of a message, otherwise -1
    - `place`: the row of the step in `Steps.table`
    - `part`: the part of the step that made the call
    - `exposed_s`: the time while it ran and training was blocked
    """
    steps = seen.once(instrumented_steps)
    rows = seen.once(collectives).sort_values(["launch_id", "rank", "seq"], kind="stable")
    rows = rows.assign(place=steps.place(rows))
    rows = rows[rows["place"] >= 0]
    place, made_s = rows["place"].to_numpy(), rows["made_s"].to_numpy()
    part = np.full(len(rows), "data", dtype=object)
    for name in COMPUTE:
        part[(made_s >= steps.begin[name][place]) & (made_s <= steps.end[name][place])] = name
    within = steps.table.iloc[place]
    message = rows["op"].isin(MESSAGES)
    rows = rows.assign(
        sender=rows["rank"].where(message, -1),
        n=rows.groupby(["place", "ranks", message], sort=False).cumcount(),
        part=part,
        exposed_s=steps.blocked.within(
            within["key"], rows["start_s"], np.minimum(rows["end_s"], within["end_s"].to_numpy())
        ),
    )
    return rows.assign(call=rows.groupby(["launch_id", "step", "ranks", "n", "sender"], sort=False).ngroup())


def group_calls(seen: SessionData) -> pd.DataFrame:
    """Return one row per call of all its ranks, or per send and receive, in the order of the calls; for
    `SessionData.once`.

    - `duration_s`: the time on the slowest rank, including its wait for others
    - `wire_s`: from the last start to the last end, NaN if a rank did not record the call
    - `late_s`: from the first rank's call to the last rank's call, NaN like `wire_s`
    - `exposed_s`: the longest time that training was blocked on a rank; simultaneous calls share it
    - `busbw`: GB/s, by `wire_s`, or by `duration_s` if the ranks need not wait for each other
    """
    # The slowest rank of each call is first.
    rows = seen.once(rank_calls).sort_values(["call", "duration_s"], ascending=[True, False], kind="stable")
    first = np.flatnonzero(rows["call"].diff() != 0)

    def each(reduce: np.ufunc, name: str) -> Floats:
        found: Floats = reduce.reduceat(rows[name].to_numpy(float), first)
        return found

    names = ["call", "launch_id", "step", "ranks", "n", "sender", "op", "algorithm", "group_size", "dtype", "bytes"]
    calls = rows.iloc[first][[*names, "bucket", "part", "duration_s"]].reset_index(drop=True)
    ended = np.add.reduceat(rows["end_s"].notna().to_numpy(int), first)
    whole = (ended == calls["group_size"].where(calls["sender"] < 0, 1)) & ~mixed(rows, first)
    wire_s = pd.Series(each(np.fmax, "end_s") - each(np.fmax, "start_s")).where(whole)
    late_s = pd.Series(each(np.fmax, "made_s") - each(np.fmin, "made_s")).where(whole)
    seconds = wire_s.where(calls["op"].isin(MUTUAL), calls["duration_s"])
    factors = [bus_factor(op, int(n)) for op, n in zip(calls["op"], calls["group_size"], strict=True)]
    known = (seconds > 0) & (calls["bytes"] > 0)
    calls = calls.assign(
        seq=each(np.fmin, "seq").astype(int),
        case_id=calls["launch_id"].map(seen.counted.set_index("launch_id")["case"]),
        wire_s=wire_s,
        late_s=late_s,
        exposed_s=each(np.fmax, "exposed_s"),
        busbw=(calls["bytes"] / seconds / GB).where(known) * np.array(factors, dtype=float),
    )
    return calls.sort_values(["launch_id", "step", "seq"], kind="stable", ignore_index=True)


def mixed(rows: pd.DataFrame, first: Keys) -> Flags:
    """Return for each call whether its ranks recorded different operations; `rows` of calls begin at `first`."""
    codes = pd.factorize(rows["op"])[0]
    differ: Flags = np.minimum.reduceat(codes, first) != np.maximum.reduceat(codes, first)
    return differ


def bucket_table(seen: SessionData) -> pd.DataFrame:
    """Return one row per case and DDP bucket that was reduced in instrumented steps, with BUCKET_COLUMNS.

    Numbers are medians over the steps of the rank with the longest median step, then over launches.

    - `ready_s`: the last gradient was there, in seconds after `since`, as `start_s` and `end_s`
    - `made_s`: the all-reduce was called
    - `since`: the start of backward, or of forward_backward with gradient accumulation
    - `parameters`: names, `None` if DDP did not report them
    """
    steps, rows = seen.once(instrumented_steps), seen.once(rank_calls)
    lengths = (steps.table["end_s"] - steps.table["start_s"]).groupby(steps.table["key"]).median()
    slowest = lengths.groupby(steps.table.drop_duplicates("key").set_index("key")["launch_id"]).idxmax()
    rows = rows[rows["bucket"].notna() & steps.table["key"].iloc[rows["place"]].isin(slowest).to_numpy()]
    if rows.empty:
        return pd.DataFrame(columns=BUCKET_COLUMNS)
    rows = rows.drop_duplicates(["place", "bucket"], keep="last").set_index("call")
    rows = rows.join(seen.once(group_calls).set_index("call")[["case_id", "wire_s", "busbw"]])
    backward, both = (steps.begin[name][rows["place"]] for name in ("backward", "forward_backward"))
    rows["since"] = np.where(np.isnan(backward), "forward_backward", "backward")
    for name in ("ready_s", "made_s", "start_s", "end_s"):
        rows[name] -= np.where(np.isnan(backward), both, backward)
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
