"""Collectives: from stored calls to time and bandwidth at each size, one number per launch before anything is compared.

Sizes, counts and bandwidths are nccl-tests' (doc/PERFORMANCE.md there): a size is the whole buffer, algbw is size by
time, and busbw is what the links carry whatever the number of ranks, so that it can be held against the hardware.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, cast

import numpy as np
import pandas as pd

from parabench.analysis.launch_number import STATISTIC, launch_number
from parabench.analysis.session import Session
from parabench.analysis.turns import compared, shared_launches, turns_told
from parabench.plan.case import UNKNOWN
from parabench.plan.collective_case import LOGGED_OPS, CollectiveCase
from parabench.plan.collective_protocol import LATENCY, dealt_out
from parabench.store import json_text
from parabench.store.record import GB, Phase, Status
from parabench.store.results import Results

QUANTILES = {"p50_s": 0.50, "p95_s": 0.95, "p99_s": 0.99}

_OF_CASE = (
    "op", "algorithm", "world_size", "nodes", "ranks_per_node", "dtype", "redop", "device", "backend", "threads",
    "source",
)  # fmt: skip
LAUNCH_COLUMNS = (
    "launch_id", "shared_launch", "case_id", "label", "block", "status", *_OF_CASE, "ran", "bytes", "count", "in_place",
    "timing", "calls", "batches", "statistic", "launch_call_s", "compared_s", *QUANTILES, "n_wrong", "piece_bytes",
)  # fmt: skip
# The number of a launch whose calls were timed back to back.
MEAN = "mean"
KEY = ["case_id", "bytes", "in_place"]


def bus_factor(op: str, world_size: int) -> float:
    """busbw / algbw: 2(n-1)/n for all_reduce, (n-1)/n for reduce_scatter, all_gather, all_to_all, gather and scatter, 1
    for broadcast, reduce, and from one rank to another; NaN for an unknown operation."""
    if op == UNKNOWN:
        return math.nan
    share = (world_size - 1) / world_size
    if op == "all_reduce":
        return 2 * share
    return share if op in ("reduce_scatter", "all_gather", "all_to_all", "gather", "scatter") else 1.0


def session_launches(results: Results, session: Session) -> pd.DataFrame:
    """The launches of a session of collectives, each with its case's label as `label`, what was `told` of its turns,
    and as `shared_launch` the first of those that took theirs in the same processes.

    Raises UsageError for another kind of session.
    """
    session.require("collectives", results.path)
    launches = results.of([session.id]).launch.rename(columns={"id": "launch_id"})
    cases = {text: CollectiveCase.from_dict(json_text.parsed(text)) for text in launches["case_json"].unique()}
    told = turns_told(launches["facts"])
    ids, in_turns = launches["launch_id"].to_numpy(), np.array([each is not None for each in told], dtype=bool)
    first = shared_launches(ids, in_turns, launches["session_id"], launches["block"].to_numpy(), told)
    labels = [cases[text].label for text in launches["case_json"]]
    return launches.assign(label=labels, told=told, shared_launch=first)


def call_times(collective: pd.DataFrame, logged: Collection[int] = ()) -> pd.DataFrame:
    """Columns `launch_id, bytes, in_place, seq, seconds, calls`: a call takes as long as its slowest rank; of a batch
    of `calls` back to back that is the time of one.

    Only those that all ranks came through. A row of the launches in `logged`, from logs, is the time of all ranks.
    """
    rows = collective[collective["phase"] == Phase.MEASURE]
    keys = ["launch_id", "bytes", "in_place", "seq"]
    calls = rows.groupby(keys, as_index=False).agg(
        seconds=("duration_s", "max"),
        calls=("calls", "first"),
        ranks=("duration_s", "count"),
        group=("group_size", "first"),
    )
    whole = (calls["ranks"] == calls["group"]) | calls["launch_id"].isin(list(logged))
    return calls[whole][[*keys, "seconds", "calls"]]


def launch_sizes(results: Results, session: Session) -> pd.DataFrame:
    """One row per launch, size and form, with LAUNCH_COLUMNS.

    `launch_call_s` is the launch's one number, seconds of a call; `statistic` says which, `timing` how calls were timed
    (`collective_protocol.in_words`). Of isolated calls it is a quantile of them, as for steps (`launch_number`); of
    calls back to back MEAN, all their time by their number, as nccl-tests has it (src/common.cu, BenchTime).
    `compared_s` is that number as cases are compared: where they took turns with each other in a `shared_launch` it
    differs by what their rounds do (`in_rounds`). p50_s, p95_s and p99_s are quantiles over the launch's calls, or over
    its `batches` of calls. `ran` is the algorithm that
    really ran, `n_wrong` counts wrong elements over all ranks, NaN when a rank came to no check; `piece_bytes` is what
    messages were cut to.
    """
    launches = session_launches(results, session)
    collective = results.of([session.id]).collective
    cases = {
        launch_id: CollectiveCase.from_dict(json_text.parsed(text))
        for launch_id, text in zip(launches["launch_id"], launches["case_json"], strict=True)
    }
    logged = [launch_id for launch_id, case in cases.items() if case.source]
    timed = call_times(collective, logged).groupby(["launch_id", "bytes", "in_place"])
    checked = collective.drop_duplicates(["launch_id", "bytes", "in_place", "rank"])
    wrong = checked.groupby(["launch_id", "bytes", "in_place"])["n_wrong"].agg(
        lambda found: float(found.sum()) if found.notna().all() else np.nan
    )
    ran = collective.groupby("launch_id")["algorithm"].first()
    turns: dict[tuple[int, int, bool], pd.Series[float]] = {}
    by_id = {row["launch_id"]: row for row in launches.to_dict("records")}
    isolated = session.timing == LATENCY
    rows: list[dict[str, Any]] = []
    for key, group in timed:
        seconds, calls = group["seconds"], group["calls"]
        launch_id, size, in_place = cast(tuple[int, int, int], key)
        launch, case = by_id[launch_id], cases[launch_id]
        turns[launch_id, int(size), bool(in_place)] = seconds
        rows.append(
            {name: getattr(case, name) for name in _OF_CASE}
            | {name: launch[name] for name in ("launch_id", "shared_launch", "case_id", "label", "block", "status")}
            # A log has means only, so quantiles are unknown.
            | {name: np.nan if case.source else float(np.quantile(seconds, q)) for name, q in QUANTILES.items()}
            | {
                "algorithm": case.line,
                "ran": case.line if case.source else ran[launch_id],
                "bytes": int(size),
                "count": np.nan if case.op == UNKNOWN else case.count(int(size)),
                "in_place": bool(in_place),
                "timing": session.timing,
                "calls": int(calls.sum()),
                "batches": len(calls),
                "statistic": STATISTIC[case.device] if isolated else MEAN,
                "launch_call_s": launch_number(seconds, case.device)
                if isolated
                else float(np.average(seconds, weights=calls)),
                "n_wrong": wrong[launch_id, size, in_place],
                "piece_bytes": json_text.parsed(launch["facts"]).get("piece_bytes", np.nan),
            }
        )
    table = pd.DataFrame(rows, columns=list(LAUNCH_COLUMNS))
    rounds = {at: row["told"]["rounds"] for at, row in by_id.items() if row["told"]}
    return table.assign(compared_s=in_rounds(table, rounds, turns))


def in_rounds(
    sizes: pd.DataFrame, rounds: Mapping[int, int], seconds: Mapping[tuple[int, int, bool], pd.Series[float]]
) -> pd.Series[float]:
    """The number of each row of `sizes`, made of the rounds of what took turns with each other in a launch: the same
    operation among as many ranks. Their mean on the log scale stays what it is.

    `rounds` has how many there were at most, by launch; `seconds` what each of its calls or batches took, by launch,
    size and form, in their order. A turn is the median of its own.
    """
    found = sizes["launch_call_s"].copy()
    shared = sizes[sizes["launch_id"].isin(list(rounds)) & (sizes["status"] == Status.OK)]
    for _, group in shared.groupby(["shared_launch", "op", "world_size", "dtype", "redop", "bytes", "in_place"]):
        keys = list(zip(group["launch_id"], group["bytes"], group["in_place"], strict=True))
        readings = [seconds[key].to_numpy() for key in keys]
        if len(readings) < 2 or len({len(each) for each in readings}) > 1:
            continue
        dealt = dealt_out(len(readings[0]), rounds[keys[0][0]])
        ends = np.cumsum(dealt)[:-1]
        turns = np.array([[np.log(np.median(turn)) for turn in np.split(each, ends)] for each in readings])
        found[group.index] = np.exp(compared(turns) + np.log(group["launch_call_s"]).mean())
    return found


def bus_table(sizes: pd.DataFrame) -> pd.DataFrame:
    """One row per case, size and form, from `launch_sizes`; by operation, ranks, algorithm and size.

    `call_s`, `p50_s`, `p95_s` and `p99_s` are means on the log scale of the launches' number and quantiles over the
    launches that succeeded, or, where none did, over those that were wrong (`good` then is 0). `low_s` and `high_s`
    are the extreme launches' numbers, `spread` = high / low - 1 (NaN for one launch). `n_wrong` is summed over all
    launches. `algbw` and `busbw` are in GB/s, 1 GB = 1e9 bytes.
    """
    rows = []
    for _, group in sizes.groupby(KEY, sort=False):
        first = group.iloc[0]
        good = group[group["status"] == Status.OK]
        counted = good if len(good) else group[group["status"] == Status.WRONG]
        call_s = _log_mean(counted["launch_call_s"])
        algbw = first["bytes"] / call_s / GB
        rows.append(
            {name: first[name] for name in ("case_id", "label", *_OF_CASE, "ran", "bytes", "count", "in_place")}
            | {name: _log_mean(counted[name]) for name in QUANTILES}
            | {
                "timing": first["timing"],
                "statistic": first["statistic"],
                "good": len(good),
                "launches": len(group),
                "calls": int(counted["calls"].sum()),
                "batches": int(counted["batches"].sum()),
                "call_s": call_s,
                "low_s": counted["launch_call_s"].min(),
                "high_s": counted["launch_call_s"].max(),
                "spread": counted["launch_call_s"].max() / counted["launch_call_s"].min() - 1
                if len(counted) > 1
                else np.nan,
                "n_wrong": group["n_wrong"].sum() if group["n_wrong"].notna().any() else np.nan,
                "algbw": algbw,
                "busbw": algbw * bus_factor(first["op"], int(first["world_size"])),
            }
        )
    columns = (
        "case_id", "label", *_OF_CASE, "ran", "bytes", "count", "in_place", "timing", "statistic", "good", "launches",
        "calls", "batches", "call_s", *QUANTILES, "low_s", "high_s", "spread", "n_wrong", "algbw", "busbw",
    )  # fmt: skip
    table = pd.DataFrame(rows, columns=list(columns))
    order = table.assign(op=[LOGGED_OPS.index(op) for op in table["op"]])
    keys = ["op", "world_size", "algorithm", "bytes", "in_place"]
    return table.loc[order.sort_values(keys, kind="stable").index].reset_index(drop=True)


def one_form(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the form that algorithms are compared in: out of place where torch has it, as users call it."""
    out_of_place = ~table["in_place"].astype(bool)
    has_both = table["op"].isin(table.loc[out_of_place, "op"].unique())
    return table[out_of_place | ~has_both]


def good_sizes(sizes: pd.DataFrame) -> pd.DataFrame:
    """The rows of `launch_sizes` that count: launches that succeeded, in the form that algorithms are compared in."""
    return one_form(sizes[sizes["status"] == Status.OK])


def logged_times(results: Results, session: Session) -> pd.DataFrame:
    """Return the times in logs, for a prediction: `source`, `op`, `world_size`, `nodes`, `dtype`, `bytes`, `seconds`.

    Operations are known, and results were not wrong. A row is a mean over calls, of one log or several.
    """
    good = good_sizes(launch_sizes(results, session))
    good = good[(good["source"] != "") & (good["op"] != UNKNOWN)]
    key = ["source", "op", "world_size", "nodes", "dtype", "bytes"]
    return good.groupby(key, sort=False, as_index=False).agg(seconds=("launch_call_s", "mean"))


def _log_mean(values: pd.Series[float]) -> float:
    return float(np.exp(np.log(values[values > 0]).mean())) if (values > 0).any() else float("nan")
