"""Bus bandwidth that collectives reach inside training, against what the same store's microbenchmark reached.

Both are nccl-tests' (`analysis.collectives.bus`). In training a call's time begins when its last rank has begun
(`analysis.step.calls`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis.collectives.bus import bus_table, measured, one_form
from parabench.analysis.environment.nodes import nodes_of_group
from parabench.analysis.numbers import numbers
from parabench.analysis.session import SessionData, select_sessions
from parabench.plan.collective_case import OPS, size_text
from parabench.plan.collective_protocol import GRAPH, LATENCY, THROUGHPUT
from parabench.store.results import Results

# What makes two measurements the same question but for their size. `node`: ranks_per_node, 0 where it plays no role;
# `nodes`: on how many of them the ranks lie.
QUESTION = ["op", "algorithm", "group_size", "dtype", "device", "node", "nodes"]
COLUMNS = (*QUESTION, "bytes", "calls", "busbw", "low", "high", "alone", "share", "why", "case_ids")
NOT_MEASURED = "not measured"
# How calls alone may have been timed, what is compared with first.
TIMINGS = (THROUGHPUT, GRAPH, LATENCY)


def training_bandwidth(seen: SessionData, calls: pd.DataFrame, alone: pd.DataFrame) -> pd.DataFrame:
    """One row per operation, algorithm, ranks, dtype and size of `calls` (`calls.call_table`), in GB/s.

    `busbw` is the median over calls of a launch, then over launches, `low` and `high` the extreme launches, `calls`
    how many there were and `case_ids` whose. Column `alone` is the microbenchmark's (`alone_table`) at that size,
    interpolated on a logarithmic axis of sizes, `share` = busbw / alone; both NaN, with `why`, where it was not
    measured or the size lies outside of what was.
    Sends and receives are left out: how long they take says when the other side came.
    """
    calls = calls[calls["op"].isin(OPS) & calls["busbw"].notna()]
    if calls.empty:
        return pd.DataFrame(columns=list(COLUMNS))
    of_case = seen.cases.set_index("case_id")[["device", "ranks_per_node"]]
    calls = calls.join(of_case, on="case_id")
    calls["node"] = _node(calls)
    groups = calls[["launch_id", "ranks"]].drop_duplicates()
    spanned = [nodes_of_group(ranks, seen.facts[at]) for at, ranks in groups.itertuples(index=False)]
    calls = calls.merge(groups.assign(nodes=spanned), on=["launch_id", "ranks"])
    calls["busbw"] = pd.to_numeric(calls["busbw"]).astype(float)
    key = [*QUESTION, "bytes"]
    launches = calls.groupby([*key, "launch_id"])["busbw"].agg(["median", "size"]).reset_index()
    table = launches.groupby(key, as_index=False).agg(
        calls=("size", "sum"), busbw=("median", "median"), low=("median", "min"), high=("median", "max")
    )
    whose = calls.groupby(key)["case_id"].unique().rename("case_ids")
    table = table.merge(whose, left_on=key, right_index=True)
    found = [_at(alone, row) for row in table.to_dict("records")]
    table["alone"] = [busbw for busbw, _ in found]
    table["share"] = table["busbw"] / table["alone"]
    table["why"] = [why for _, why in found]
    order = table.assign(op=[OPS.index(op) for op in table["op"]]).sort_values(key, kind="stable")
    return table.loc[order.index, list(COLUMNS)].reset_index(drop=True)


def alone_table(results: Results) -> pd.DataFrame:
    """What the store's sessions of collectives measured: QUESTION, `bytes` and `busbw`; of several sessions, or redops,
    that asked the same the newest, and sum. Calls back to back come before isolated ones, however new: they are what
    links can carry; the two are never mixed."""
    found = []
    for session in select_sessions(results, sorted(results.of_kind("collectives"), reverse=True)):
        table = one_form(bus_table(measured(numbers(results, session))))
        table = table[table["good"] > 0]
        mode, other = TIMINGS.index(session.timing), table["redop"] != "sum"
        found.append(table.assign(mode=mode, session=-session.id, other=other))
    if not found:
        return pd.DataFrame(columns=[*QUESTION, "bytes", "busbw"])
    alone = pd.concat(found).rename(columns={"world_size": "group_size"})
    alone["node"] = _node(alone)
    chosen = ["mode", "session", "other"]
    alone = alone.sort_values([*chosen, "bytes"], kind="stable")
    first = alone.groupby(QUESTION)[chosen].transform("first")
    asked = (alone[chosen] == first).all(axis=1)
    return alone.loc[asked, [*QUESTION, "bytes", "busbw"]].reset_index(drop=True)


def _node(rows: pd.DataFrame) -> pd.Series[int]:
    """How many ranks the rows' algorithms take for a node; 0 for those that know no nodes."""
    knows = rows["algorithm"].astype(str).str.startswith("two_level")
    return pd.to_numeric(rows["ranks_per_node"]).where(knows).fillna(0).astype(int)


def _at(alone: pd.DataFrame, row: dict[Any, Any]) -> tuple[float, str]:
    """The microbenchmark's bandwidth at the row's size; NaN, and why, where it has none."""
    same = alone
    for name in QUESTION if len(alone) else ():
        same = same[same[name] == row[name]]
    if same.empty:
        return float("nan"), NOT_MEASURED
    sizes = same["bytes"].to_numpy(float)
    size = float(row["bytes"])
    if not sizes.min() <= size <= sizes.max():
        return float("nan"), f"measured from {size_text(int(sizes.min()))} to {size_text(int(sizes.max()))}"
    return float(np.interp(np.log(size), np.log(sizes), same["busbw"].to_numpy(float))), ""
