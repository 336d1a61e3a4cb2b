"""Join the ranks' records of each collective call of instrumented steps, and compute DDP's buckets and bandwidths.

Bandwidths are defined as in nccl-tests (doc/PERFORMANCE.md). The time of a call starts when its last rank has started,
because waiting for a late rank does not show the speed of the links.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from parabench.analysis.collectives.bus import bus_factor, bus_table, measured, one_form
from parabench.analysis.environment.nodes import nodes_of_group
from parabench.analysis.numbers import numbers
from parabench.analysis.session import SessionData, select_sessions
from parabench.analysis.step.breakdown import COMPUTE, collectives, instrumented_steps
from parabench.plan.collective_case import OPS, size_text
from parabench.plan.collective_protocol import GRAPH, LATENCY, THROUGHPUT
from parabench.store.record import GB, MESSAGES
from parabench.store.results import Results

# No rank can finish these before the last one has entered. If there is a root, some ranks can finish earlier.
MUTUAL = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier")

_BUCKET_SECONDS = ["ready_s", "made_s", "start_s", "end_s", "duration_s", "wire_s", "exposed_s"]
BUCKET_COLUMNS = ["case_id", "bucket", "bytes", "parameters", *_BUCKET_SECONDS, "busbw", "since"]


def rank_calls(seen: SessionData) -> pd.DataFrame:
    """Return one row per rank and collective of instrumented steps. Call it through `SessionData.once`.

    - `call`: the number of the call, the same on all its ranks. Each message is a separate call.
    - `n`: the call is the n-th of its group in the step
    - `sender`: the rank that recorded the message, or -1 for a collective
    - `step_row`: the row number of the step in `Steps.table`
    - `part`: the part of the step that made the call
    - `exposed_s`: how long training was blocked while the call ran
    - `mixed`: the ranks of the call recorded different operations
    """
    steps = seen.once(instrumented_steps)
    rows = seen.once(collectives).sort_values(["launch_id", "rank", "seq"], kind="stable")
    rows = rows.assign(step_row=steps.row_of(rows))
    rows = rows[rows["step_row"] >= 0]
    step_row, made_s = rows["step_row"].to_numpy(), rows["made_s"].to_numpy()
    part = np.full(len(rows), "data", dtype=object)
    for name in COMPUTE:
        part[(made_s >= steps.begin[name][step_row]) & (made_s <= steps.end[name][step_row])] = name
    within = steps.table.iloc[step_row]
    message = rows["op"].isin(MESSAGES)
    rows = rows.assign(
        sender=rows["rank"].where(message, -1),
        n=rows.groupby(["step_row", "ranks", message], sort=False).cumcount(),
        part=part,
        exposed_s=steps.blocked.within(
            within["key"], rows["start_s"], np.minimum(rows["end_s"], within["end_s"].to_numpy())
        ),
    )
    rows = rows.assign(call=rows.groupby(["launch_id", "step", "ranks", "n", "sender"], sort=False).ngroup())
    codes = pd.Series(pd.factorize(rows["op"])[0], rows.index).groupby(rows["call"])
    return rows.assign(mixed=codes.transform("min") != codes.transform("max"))


def group_calls(seen: SessionData) -> pd.DataFrame:
    """Return one row per collective call, or per send and receive, in order. Call it through `SessionData.once`.

    - `duration_s`: the time on the slowest rank, including its wait for others
    - `wire_s`: the time from the last rank's start to the last end; NaN if a rank did not record the call
    - `late_s`: the time from the first rank's call to the last rank's call; NaN if a rank did not record it
    - `exposed_s`: the longest time that a rank's training was blocked; calls at the same time count it repeatedly
    - `busbw`: GB/s, from `wire_s`, or from `duration_s` if the operation lets ranks finish without the others
    """
    # The slowest rank of each call is first.
    rows = seen.once(rank_calls).sort_values(["call", "duration_s"], ascending=[True, False], kind="stable")
    groups = rows.groupby("call")
    names = ["launch_id", "step", "ranks", "n", "sender", "op", "algorithm", "group_size", "dtype", "bytes", "mixed"]
    calls = rows.drop_duplicates("call").set_index("call")[[*names, "bucket", "part", "duration_s"]]
    whole = (groups["end_s"].count() == calls["group_size"].where(calls["sender"] < 0, 1)) & ~calls["mixed"]
    wire_s = (groups["end_s"].max() - groups["start_s"].max()).where(whole)
    late_s = (groups["made_s"].max() - groups["made_s"].min()).where(whole)
    seconds = wire_s.where(calls["op"].isin(MUTUAL), calls["duration_s"])
    factors = [bus_factor(op, int(n)) for op, n in zip(calls["op"], calls["group_size"], strict=True)]
    known = (seconds > 0) & (calls["bytes"] > 0)
    calls = calls.assign(
        seq=groups["seq"].min(),
        case_id=calls["launch_id"].map(seen.counted.set_index("launch_id")["case"]),
        wire_s=wire_s,
        late_s=late_s,
        exposed_s=groups["exposed_s"].max(),
        busbw=(calls["bytes"] / seconds / GB).where(known) * np.array(factors, dtype=float),
    )
    return calls.reset_index().sort_values(["launch_id", "step", "seq"], kind="stable", ignore_index=True)


def bucket_table(seen: SessionData) -> pd.DataFrame:
    """Return one row per case and DDP bucket that was reduced in instrumented steps, with BUCKET_COLUMNS.

    Numbers are medians over the steps of the rank with the longest median step, then over launches.

    - `since`: the part whose start is time 0: backward, or forward_backward with gradient accumulation
    - `ready_s`, `made_s`, `start_s`, `end_s`: when the last gradient was ready, the all-reduce was called, and it ran
    - `parameters`: the names of the bucket's parameters, `None` if DDP did not report them
    """
    steps, rows = seen.once(instrumented_steps), seen.once(rank_calls)
    lengths = (steps.table["end_s"] - steps.table["start_s"]).groupby(steps.table["key"]).median()
    slowest = lengths.groupby(steps.table.drop_duplicates("key").set_index("key")["launch_id"]).idxmax()
    rows = rows[rows["bucket"].notna() & steps.table["key"].iloc[rows["step_row"]].isin(slowest).to_numpy()]
    if rows.empty:
        return pd.DataFrame(columns=BUCKET_COLUMNS)
    rows = rows.drop_duplicates(["step_row", "bucket"], keep="last").set_index("call")
    rows = rows.join(seen.once(group_calls).set_index("call")[["case_id", "wire_s", "busbw"]])
    backward, both = (steps.begin[name][rows["step_row"]] for name in ("backward", "forward_backward"))
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


# ---- bus bandwidth, next to the microbenchmarks in the same database

# Two measurements are comparable if these agree. `node` is ranks_per_node of a two-level algorithm, otherwise 0. The
# ranks are on `nodes` nodes.
QUESTION = ["op", "algorithm", "group_size", "dtype", "device", "node", "nodes"]
# The timings of microbenchmarks in the order of preference. Calls back to back show the capacity of the links.
_TIMINGS = (THROUGHPUT, GRAPH, LATENCY)


def training_bandwidth(seen: SessionData, alone: pd.DataFrame) -> pd.DataFrame:
    """Compare the bandwidth of collectives in training with microbenchmarks: one row per QUESTION and `bytes`.

    Bandwidths are in GB/s.

    - `busbw`: the median over the calls of a launch, then over launches
    - `low` and `high`: the extreme launches
    - `alone`: the microbenchmark's bandwidth (`alone_table`), interpolated over the logarithm of the size
    - `share`: busbw / alone
    - `why`: the reason if `alone` is NaN
    - `calls` and `case_ids`: the number of calls, and their configurations
    """
    # The duration of sends and receives depends on the other rank, so they are left out.
    calls = seen.once(group_calls)
    calls = calls[calls["op"].isin(OPS) & calls["busbw"].notna()]
    cases = seen.cases_by_id[["device", "ranks_per_node"]].loc[calls["case_id"]].set_axis(calls.index)
    groups = list(zip(calls["launch_id"], calls["ranks"], strict=True))
    nodes = {group: nodes_of_group(group[1], seen.facts[group[0]]) for group in set(groups)}
    calls = calls.join(cases).assign(nodes=[nodes[group] for group in groups])
    calls = calls.assign(node=_node(calls))
    key = [*QUESTION, "bytes"]
    calls["question"] = calls.groupby(key).ngroup()
    launches = calls.groupby(["question", "launch_id"])["busbw"].agg(["median", "size"]).reset_index("launch_id")
    of_question, medians = calls.groupby("question"), launches.groupby("question")["median"]
    table = (
        of_question[key]
        .first()
        .assign(
            calls=of_question.size(),
            busbw=medians.median(),
            low=medians.min(),
            high=medians.max(),
            case_ids=of_question["case_id"].unique(),
        )
    )
    measured_alone = dict(iter(alone.groupby(QUESTION))) if len(alone) else {}
    rows = table[key].itertuples(index=False)
    found = [_bandwidth_at(measured_alone.get(tuple(question)), size) for *question, size in rows]
    table[["alone", "why"]] = pd.DataFrame(found, columns=["alone", "why"], index=table.index)
    table["share"] = table["busbw"] / table["alone"].astype(float)
    return table.sort_values("op", key=lambda ops: ops.map(OPS.index), kind="stable", ignore_index=True)


def _bandwidth_at(alone: pd.DataFrame | None, size: int) -> tuple[float, str]:
    """Return the bandwidth of a microbenchmark at a size in bytes; NaN and the reason if it is unknown."""
    if alone is None:
        return np.nan, "not measured"
    sizes = alone["bytes"].to_numpy(float)
    if not sizes.min() <= size <= sizes.max():
        return np.nan, f"measured from {size_text(int(sizes.min()))} to {size_text(int(sizes.max()))}"
    return float(np.interp(np.log(size), np.log(sizes), alone["busbw"].to_numpy(float))), ""


def alone_table(results: Results) -> pd.DataFrame:
    """Return the bandwidths from the database's sessions of collectives, with QUESTION, `bytes` and `busbw` (GB/s).

    The rows of a question are from one session: the newest one with the first timing in _TIMINGS. They are sorted by
    size.
    """
    sessions = select_sessions(results, results.of_kind("collectives"))
    found = []
    for order, session in enumerate(sorted(sessions, key=lambda each: (_TIMINGS.index(each.timing), -each.id))):
        table = one_form(bus_table(measured(numbers(results, session))))
        table = table[table["good"] > 0]
        found.append(table.assign(chosen=2 * order + (table["redop"] != "sum")))
    if not found:
        return pd.DataFrame(columns=[*QUESTION, "bytes", "busbw"])
    alone = pd.concat(found).rename(columns={"world_size": "group_size"})
    alone = alone.assign(node=_node(alone)).sort_values(["chosen", "bytes"], kind="stable")
    best = alone["chosen"] == alone.groupby(QUESTION)["chosen"].transform("first")
    return alone.loc[best, [*QUESTION, "bytes", "busbw"]].reset_index(drop=True)


def _node(rows: pd.DataFrame) -> pd.Series[int]:
    """Return the ranks per node of two-level algorithms, and 0 for other algorithms."""
    two_level = rows["algorithm"].astype(str).str.startswith("two_level")
    return pd.to_numeric(rows["ranks_per_node"]).where(two_level).fillna(0).astype(int)
