"""Compute time and bandwidth of collectives at each size, and fit latency and bandwidth to the times.

Terms are from nccl-tests (doc/PERFORMANCE.md). A size is the whole buffer, algbw is size / time, and busbw is the
traffic of a link.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from parabench import json_text
from parabench.analysis.launch_number import MEAN, QUANTILE, STATISTIC, in_rounds, shares_launch, turns_of
from parabench.analysis.session import Session
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.quantiles import t_quantile
from parabench.plan.case import UNKNOWN
from parabench.plan.collective_case import LOGGED_OPS, CollectiveCase
from parabench.plan.collective_protocol import LATENCY, dealt_out
from parabench.store.record import GB, Phase, Status
from parabench.store.results import Results, records

QUANTILES = {"p50_s": 0.50, "p95_s": 0.95, "p99_s": 0.99}

_OF_CASE = (
    "op", "algorithm", "world_size", "nodes", "ranks_per_node", "dtype", "redop", "device", "backend", "threads",
    "source",
)  # fmt: skip
# The columns of `numbers` for sessions of collectives that training sessions do not have.
CALL_COLUMNS = {
    "op": "the operation",
    "algorithm": "the algorithm, with its number of ranks per node",
    "world_size": "number of ranks",
    "nodes": "number of nodes",
    "ranks_per_node": "ranks that the algorithm groups as a node",
    "dtype": "type of the elements",
    "redop": "how elements are reduced",
    "device": "`cpu` or `cuda`",
    "backend": "`gloo` or `nccl`",
    "threads": "threads per rank",
    "source": "the log that the time is from, empty if parabench measured it",
    "ran": "the algorithm that really ran",
    "bytes": "size of the whole buffer, as in nccl-tests; unknown if no call was completed",
    "count": "number of elements, as in nccl-tests",
    "in_place": "whether the result overwrites the input",
    "timing": "how calls were timed: `throughput`, `throughput, CUDA graph` or `latency`",
    "calls": "number of calls",
    "batches": "number of batches of calls that were timed together",
    "call_s": "time of a call on the slowest rank: a quantile of isolated calls, as for steps, or the mean of calls "
    "back to back, as in nccl-tests (src/common.cu, BenchTime)",
    "compared_s": "`call_s` as compared round by round, if configurations were interleaved",
    **{name: f"{int(100 * q)}th percentile of the calls or batches" for name, q in QUANTILES.items()},
    "n_wrong": "number of wrong elements on all ranks; unknown if a rank did not check",
    "piece_bytes": "largest message that the algorithm sends at once",
}
_SHARED = (
    "launch_id", "session", "variant", "case", "label", "case_json", "repetition", "position", "shared_launch",
    "in_turns", "turns", "status", "error", "failed_rank", "failed_signal", "traceback", "started_utc", "wall_s",
    "facts", "counted", "statistic",
)  # fmt: skip
_SIZE = ["launch_id", "bytes", "in_place"]
# The columns that identify a time. Launches repeat it.
KEY = ["case", "bytes", "in_place"]
# The columns of `bus_table`.
_BUS = (
    "case_id", "label", *_OF_CASE, "ran", "bytes", "count", "in_place", "timing", "statistic", "good", "launches",
    "calls", "batches", "call_s", *QUANTILES, "low_s", "high_s", "spread", "n_wrong", "algbw", "busbw",
)  # fmt: skip


def bus_factor(op: str, world_size: int) -> float:
    """Return busbw / algbw; NaN for an unknown operation.

    It is 2(n-1)/n for all_reduce, (n-1)/n for reduce_scatter, all_gather, all_to_all, gather and scatter, and 1 for
    broadcast, reduce and sendrecv (nccl-tests, doc/PERFORMANCE.md).
    """
    if op == UNKNOWN:
        return math.nan
    share = (world_size - 1) / world_size
    if op == "all_reduce":
        return 2 * share
    return share if op in ("reduce_scatter", "all_gather", "all_to_all", "gather", "scatter") else 1.0


def call_times(collective: pd.DataFrame, logged: Collection[int] = ()) -> pd.DataFrame:
    """Return one row per measured call: `launch_id, bytes, in_place, seq, seconds, calls`.

    A row can be a batch of `calls` that ran back to back. The seconds are of one call, on its slowest rank. Calls that
    a rank did not complete are left out. Launches in `logged` are from logs, whose rows are for all ranks.
    """
    keys = [*_SIZE, "seq"]
    calls = (
        collective[collective["phase"] == Phase.MEASURE]
        .groupby(keys, as_index=False)
        .agg(
            seconds=("duration_s", "max"),
            calls=("calls", "first"),
            ranks=("duration_s", "count"),
            group=("group_size", "first"),
        )
    )
    complete = (calls["ranks"] == calls["group"]) | calls["launch_id"].isin(list(logged))
    return calls[complete][[*keys, "seconds", "calls"]]


def call_numbers(launches: pd.DataFrame, results: Results, session: Session) -> pd.DataFrame:
    """Return `numbers.numbers` for a session of collectives: one row per launch, configuration, size and form.

    The `launches` have the columns that are stored. A launch without a completed call has one row of unknown size.
    """
    cases = {text: CollectiveCase.from_dict(json_text.parsed(text)) for text in launches["case_json"].unique()}
    fields = {text: case.to_dict() | {"label": case.label, "algorithm": case.contender} for text, case in cases.items()}
    collective, facts = results.collective, launches["facts"]
    ran = launches["launch_id"].map(collective.groupby("launch_id")["algorithm"].first())
    launches = launches.join(
        pd.DataFrame([fields[text] for text in launches["case_json"]], launches.index, columns=[*_OF_CASE, "label"])
    )
    interleaving = turns_of(facts)
    group = [
        (at, *each["cases"]) if each else None for at, each in zip(launches["repetition"], interleaving, strict=True)
    ]
    first = launches["launch_id"].groupby(pd.Series(group, launches.index, dtype=object)).transform("first")
    launches = launches.assign(
        variant="",
        interleaving=interleaving,
        in_turns=shares_launch(interleaving, launches["repetition"]),
        turns=[each["rounds"] if each else 1.0 for each in interleaving],
        shared_launch=first.fillna(launches["launch_id"]).astype(int),
        ran=ran.mask(launches["source"] != "", launches["algorithm"]),
        timing=session.timing,
        piece_bytes=[json_text.parsed(text).get("piece_bytes", np.nan) for text in facts],
        statistic=launches["device"].map(STATISTIC) if session.timing == LATENCY else MEAN,
    )
    calls = call_times(collective, launches.loc[launches["source"] != "", "launch_id"])
    table = launches.merge(_of_sizes(calls, collective, launches, session), on="launch_id", how="left")
    # A log has means only, so quantiles are unknown.
    table[list(QUANTILES)] = table[list(QUANTILES)].mask(table["source"] != "")
    sizes = zip(table["case_json"], table["op"], table["bytes"], strict=True)
    table = table.assign(
        count=[np.nan if op == UNKNOWN or size != size else cases[text].count(int(size)) for text, op, size in sizes],
        counted=(table["status"] == Status.OK) & table["call_s"].notna(),
    )
    return table.assign(compared_s=_compared(table, calls))[[*_SHARED, *CALL_COLUMNS]]


def _of_sizes(calls: pd.DataFrame, collective: pd.DataFrame, launches: pd.DataFrame, session: Session) -> pd.DataFrame:
    """Return one row per launch, size and form: calls, batches, quantiles, `call_s`, and wrong elements."""
    groups = calls.groupby(_SIZE)
    if session.timing == LATENCY:
        quantiles = calls["launch_id"].map(launches.set_index("launch_id")["device"]).map(QUANTILE)
        parts = [some_calls.groupby(_SIZE)["seconds"].quantile(q) for q, some_calls in calls.groupby(quantiles)]
        call_s = pd.concat(parts) if parts else pd.Series(dtype=float)
    else:
        total_s = (calls["seconds"] * calls["calls"]).groupby([calls[name] for name in _SIZE]).sum()
        call_s = total_s / groups["calls"].sum()
    checked = collective.drop_duplicates([*_SIZE, "rank"]).groupby(_SIZE)["n_wrong"]
    table = pd.DataFrame(
        {
            "calls": groups["calls"].sum(),
            "batches": groups.size(),
            **{name: groups["seconds"].quantile(q) for name, q in QUANTILES.items()},
        }
    )
    wrong = checked.sum().where(checked.count() == checked.size())
    return table.assign(call_s=call_s, n_wrong=wrong).reset_index()


def _compared(table: pd.DataFrame, calls: pd.DataFrame) -> pd.Series[float]:
    """Return `call_s` as compared round by round, for configurations that were interleaved; `call_s` for others.

    Configurations are compared if operation, number of ranks, type, size and form agree. The number of a round is the
    median of its calls or batches.
    """
    shared = table[table["in_turns"] & table["counted"]]
    if shared.empty:
        return table["call_s"]
    seconds = {key: times.to_numpy() for key, times in calls.groupby(_SIZE)["seconds"]}
    rounds: dict[Any, Any] = {}
    for at, row in shared.iterrows():
        times = seconds[row["launch_id"], row["bytes"], row["in_place"]]
        ends = np.cumsum(dealt_out(len(times), row["interleaving"]["rounds"]))[:-1]
        rounds[at] = np.log([np.median(part) for part in np.split(times, ends)])
    alike = ["shared_launch", "op", "world_size", "dtype", "redop", "bytes", "in_place"]
    keys = pd.Series(list(table[alike].itertuples(index=False, name=None)), table.index, dtype=object)
    return in_rounds(table["call_s"], keys, rounds)


def measured(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `numbers` that have a time. Sizes and counts are converted to integers."""
    found = table[table["call_s"].notna()]
    return found.astype({"bytes": int, "calls": int, "batches": int, "in_place": bool})


def bus_table(sizes: pd.DataFrame) -> pd.DataFrame:
    """Return one row per case, size and form, from `measured` numbers, sorted by operation, ranks, algorithm, size.

    - `good`: the number of successful launches; without any, launches with wrong results count below
    - `call_s`, `p50_s`, `p95_s` and `p99_s`: geometric means over launches
    - `low_s` and `high_s`: the fastest and the slowest launch
    - `spread`: high / low - 1, NaN for one launch
    - `n_wrong`: the sum over all launches
    - `algbw` and `busbw`: GB/s, 1 GB = 1e9 bytes
    """
    good = sizes["status"] == Status.OK
    succeeded = good.groupby([sizes[name] for name in KEY]).transform("any")
    counted = sizes[good | (~succeeded & (sizes["status"] == Status.WRONG))]
    every, groups = sizes.groupby(KEY, sort=False), counted.groupby(KEY, sort=False)
    seconds = counted[["call_s", *QUANTILES]].astype(float)
    logs = seconds.where(seconds > 0).transform(np.log).groupby([counted[name] for name in KEY]).mean()
    low_s, high_s = groups["call_s"].min(), groups["call_s"].max()
    table = sizes.drop_duplicates(KEY).set_index(KEY)[["label", *_OF_CASE, "ran", "count", "timing", "statistic"]]
    table = table.assign(
        good=good.groupby([sizes[name] for name in KEY]).sum(),
        launches=every.size(),
        **groups[["calls", "batches"]].sum().astype(int).reindex(table.index, fill_value=0),
        **logs.transform(np.exp),
        low_s=low_s,
        high_s=high_s,
        spread=(high_s / low_s - 1).where(groups.size() > 1),
        n_wrong=every["n_wrong"].sum(min_count=1),
    ).reset_index()
    algbw = table["bytes"] / table["call_s"] / GB
    factors = [bus_factor(op, n) for op, n in zip(table["op"], table["world_size"], strict=True)]
    table = table.assign(algbw=algbw, busbw=algbw * factors, op_order=table["op"].map(LOGGED_OPS.index))
    table = table.sort_values(["op_order", "world_size", "algorithm", "bytes", "in_place"], kind="stable")
    return table.rename(columns={"case": "case_id"})[list(_BUS)].reset_index(drop=True)


def one_form(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that algorithms are compared by: out of place, or in place if that is the only form."""
    out_of_place = ~table["in_place"].astype(bool)
    has_both = table["op"].isin(table.loc[out_of_place, "op"].unique())
    return table[out_of_place | ~has_both]


def good_sizes(sizes: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of successful launches in the form that algorithms are compared by (`one_form`)."""
    return one_form(sizes[sizes["counted"]])


# ---- the fit: a call with S bytes takes a + S b seconds; a is the latency, and 1 / b is the bandwidth of large sizes

# Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2", 1994.
# Reweighting ends when both constants move by less than this, relatively, or after the most iterations.
_STEADY, _MOST_ITERATIONS = 1e-10, 100
_FIT = ["latency_s", "latency_s_low", "latency_s_high", "busbw", "busbw_low", "busbw_high", "error"]


def fitted(good: pd.DataFrame) -> pd.DataFrame:
    """Fit latency and bandwidth to `good_sizes`. Return one row per configuration with two sizes or more.

    Unknown numbers are NaN.

    - `latency_s`: the time of an empty buffer
    - `busbw`: the bus bandwidth of large buffers, GB/s
    - `..._low` and `..._high`: their 95% confidence intervals over launches
    - `error`: the root mean square of (fitted - measured) / measured
    """
    rows = []
    for case, group in good.groupby("case", sort=False):
        if group["bytes"].nunique() > 1:
            row = records(group.iloc[:1])[0]
            numbers = _fit_numbers(group, bus_factor(row["op"], int(row["world_size"])))
            rows.append({"case_id": case, "label": row["label"]} | dict(zip(_FIT, numbers, strict=True)))
    return pd.DataFrame(rows, columns=["case_id", "label", *_FIT])


def _fit_numbers(group: pd.DataFrame, factor: float) -> list[float]:
    """Return the numbers of _FIT for the rows of one configuration. `factor` is busbw / algbw."""
    sizes, seconds = group["bytes"].to_numpy(dtype=float), group["call_s"].to_numpy(dtype=float)
    latency, per_byte = line = _line(sizes, seconds)
    error = math.sqrt(np.mean(((latency + per_byte * sizes) / seconds - 1) ** 2))
    bandwidth = factor / per_byte / GB if per_byte > 0 else math.nan
    launches = group["launch_id"].to_numpy()
    others = [launches != each for each in np.unique(launches)]
    unknown = any(len(np.unique(sizes[kept])) < 2 for kept in others)
    if len(others) < 2 or unknown or per_byte <= 0:
        return [latency, math.nan, math.nan, bandwidth, math.nan, math.nan, error]
    # A jackknife over launches, because a disturbed launch shifts all of its sizes (MacKinnon, Nielsen and Webb, "Fast
    # and reliable jackknife and bootstrap methods for cluster-robust inference", 2023: CV3).
    moved = np.array([_line(sizes[kept], seconds[kept]) for kept in others]) - line
    n = len(others)
    half = t_quantile((1 + CONFIDENCE) / 2, n - 1) * np.sqrt((1 - 1 / n) * np.square(moved).sum(axis=0))
    ends, factor_off = (max(0.0, latency - half[0]), latency + half[0]), math.exp(half[1] / per_byte)
    return [latency, *ends, bandwidth, bandwidth / factor_off, bandwidth * factor_off, error]


def _line(sizes: NDArray[Any], seconds: NDArray[Any]) -> NDArray[Any]:
    """Return a and b, not below 0, with the least squares of the errors relative to the fitted times.

    Errors relative to the measured times would make a and b too small.
    """
    from scipy import optimize  # takes a third of a second to import, which most commands do not need

    design, weights, line = np.stack([np.ones_like(sizes), sizes], axis=1), 1 / seconds, np.zeros(2)
    for _ in range(_MOST_ITERATIONS):
        before, weighted = line, design * weights[:, None]
        scale = np.linalg.norm(weighted, axis=0)
        line = optimize.nnls(weighted / scale, seconds * weights)[0] / scale
        if np.allclose(line, before, rtol=_STEADY, atol=0):
            break
        weights = 1 / (design @ line)
    return line
