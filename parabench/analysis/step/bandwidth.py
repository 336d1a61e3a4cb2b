"""Bus bandwidth of collectives inside training, compared with the microbenchmarks in the same database.

Both are defined as in nccl-tests (`analysis.collectives.bus`). In training, the time of a call starts when its last
rank has started (`analysis.step.calls`).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from parabench.analysis.collectives.bus import bus_table, measured, one_form
from parabench.analysis.environment.nodes import nodes_of_group
from parabench.analysis.numbers import numbers
from parabench.analysis.session import SessionData, select_sessions
from parabench.analysis.step.calls import group_calls
from parabench.plan.collective_case import OPS, size_text
from parabench.plan.collective_protocol import GRAPH, LATENCY, THROUGHPUT
from parabench.store.results import Results

# Two measurements are comparable if these agree. `node` is ranks_per_node of a two-level algorithm, otherwise 0. The
# ranks are on `nodes` nodes.
QUESTION = ["op", "algorithm", "group_size", "dtype", "device", "node", "nodes"]
NOT_MEASURED = "not measured"
# The timings of microbenchmarks in the order of preference. Calls back to back show the capacity of the links.
_TIMINGS = (THROUGHPUT, GRAPH, LATENCY)


def training_bandwidth(seen: SessionData, alone: pd.DataFrame) -> pd.DataFrame:
    """Return one row per QUESTION and `bytes`, with `calls`, `case_ids`, and bandwidths in GB/s.

    - `busbw`: the median over the calls of a launch, then over launches
    - `low` and `high`: the extreme launches
    - `alone`: the microbenchmark (`alone_table`), interpolated on a logarithmic axis of sizes
    - `share`: busbw / alone
    - `why`: the reason if `alone` is unknown
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
    found = [_at(measured_alone.get(tuple(question)), size) for *question, size in table[key].itertuples(index=False)]
    table[["alone", "why"]] = pd.DataFrame(found, columns=["alone", "why"], index=table.index)
    table["share"] = table["busbw"] / table["alone"].astype(float)
    return table.sort_values("op", key=lambda ops: ops.map(OPS.index), kind="stable", ignore_index=True)


def _at(alone: pd.DataFrame | None, size: int) -> tuple[float, str]:
    """Return the bandwidth of a microbenchmark at a size; NaN, with the reason, if it is unknown."""
    if alone is None:
        return np.nan, NOT_MEASURED
    sizes = alone["bytes"].to_numpy(float)
    if not sizes.min() <= size <= sizes.max():
        return np.nan, f"measured from {size_text(int(sizes.min()))} to {size_text(int(sizes.max()))}"
    return float(np.interp(np.log(size), np.log(sizes), alone["busbw"].to_numpy(float))), ""


def alone_table(results: Results) -> pd.DataFrame:
    """Return the bandwidths of the database's sessions of collectives: QUESTION, `bytes` and `busbw`, by size.

    Each question has the rows of one session: the first one by timing in the order of _TIMINGS, then the newest one.
    """
    sessions = select_sessions(results, results.of_kind("collectives"))
    found = []
    for place, session in enumerate(sorted(sessions, key=lambda each: (_TIMINGS.index(each.timing), -each.id))):
        table = one_form(bus_table(measured(numbers(results, session))))
        table = table[table["good"] > 0]
        found.append(table.assign(chosen=2 * place + (table["redop"] != "sum")))
    if not found:
        return pd.DataFrame(columns=[*QUESTION, "bytes", "busbw"])
    alone = pd.concat(found).rename(columns={"world_size": "group_size"})
    alone = alone.assign(node=_node(alone)).sort_values(["chosen", "bytes"], kind="stable")
    best = alone["chosen"] == alone.groupby(QUESTION)["chosen"].transform("first")
    return alone.loc[best, [*QUESTION, "bytes", "busbw"]].reset_index(drop=True)


def _node(rows: pd.DataFrame) -> pd.Series[int]:
    """Return the ranks per node of two-level algorithms, and 0 for others."""
    two_level = rows["algorithm"].astype(str).str.startswith("two_level")
    return pd.to_numeric(rows["ranks_per_node"]).where(two_level).fillna(0).astype(int)
