"""Write the results of collectives in the layout of nccl-tests, as lines and as JSON.

The layout is from nccl-tests' src/util.cu. Additional values of parabench have names that nccl-tests does not use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from parabench.analysis import format as words
from parabench.analysis.collectives.bus import QUANTILES, bus_table, measured
from parabench.analysis.environment.nodes import crowded
from parabench.analysis.numbers import numbers
from parabench.analysis.session import Session
from parabench.plan.collective_case import ROOT, TYPES, WHY_IN_PLACE_ONLY
from parabench.plan.collective_protocol import GRAPH, LATENCY, in_words
from parabench.store.record import Status
from parabench.store.results import Results, records

# The version of nccl-tests' JSON.
JSON_VERSION = 3
US = 1e6
FORMS = {"out_of_place": False, "in_place": True}
_Row = Mapping[Any, Any]


def table_lines(results: Results, session: Session) -> Iterator[str]:
    """Yield the lines of a session: a header, a line for each size, and a footer for each case.

    All lines but results start with '#'. Results have only nccl-tests' columns, because programs count from the end.
    """
    session.require("collectives", results.path)
    protocol = session.plan.get("protocol") or {}
    factor = next((case.get("factor") for case in session.plan.get("cases") or []), None) or 4
    for _, rows in bus_table(measured(numbers(results, session))).groupby("case_id", sort=False):
        first, timed = rows.iloc[0], rows["calls"] / rows["good"].where(rows["good"] > 0, rows["launches"])
        yield f"# Collective test starting: {first['op']}_perf"
        yield (
            f"# nThread 1 nGpus 1 minBytes {rows['bytes'].min()} maxBytes {rows['bytes'].max()} step: {factor}(factor) "
            f"warmup iters: {protocol.get('warmup') or 0} iters: {timed.min():.0f} agg iters: 1 validation: 1 "
            f"graph: {int(session.timing == GRAPH)}"
        )
        if session.timing == LATENCY:
            yield "# Blocking Enabled: wait for completion and barrier after each collective"
        yield f"# {first['label']}, {first['backend']} on {first['device']}"
        yield f"# timed: {in_words(first['timing'])}"
        yield f"# time: of a call, {first['statistic']} over a launch, by its slowest rank; mean over launches"
        if first["ran"] != first["algorithm"]:
            yield f"# {first['algorithm']} has no {first['op']}: {first['ran']} ran"
        short = crowded(session.environment, *(int(first[name]) for name in ("world_size", "threads", "nodes")))
        if first["device"] == "cpu" and short:
            yield f"# warning: {short[0]} computing threads share {short[1]} core(s) of a node"
        yield "#"
        yield f"#{'':62}out-of-place{'':23}in-place"
        yield "#       size         count      type   redop    root" + 2 * "     time   algbw   busbw  #wrong"
        yield "#        (B)    (elements)                          " + 2 * "     (us)  (GB/s)  (GB/s)        "
        yield from (_line(*of_size) for of_size in _sizes(rows))
        wrong, average = rows["n_wrong"].sum(), _average(rows)
        checked = (
            f"{wrong:g} {'FAILED' if wrong else 'OK'}" if rows["n_wrong"].notna().all() or wrong else words.UNKNOWN
        )
        yield f"# {'Out of bounds values':<20} : {checked}"
        yield f"# {'Avg bus bandwidth':<20} : {'N/A' if average is None else f'{average:g}'} "
        yield "#"
        yield f"# Collective test concluded: {first['op']}_perf"
        yield "#"


def _line(first: _Row, forms: Mapping[str, _Row]) -> str:
    """Return the line of one size: `first` is any of its rows, and `forms` has the row of each form."""
    type_name, redop, root = TYPES[first["dtype"]].name, first["redop"], _root(first["op"])
    line = f"  {first['bytes']:>10}  {first['count']:>12}  {type_name:>8}  {redop:>6}  {root:>6}"
    for row in forms.values():
        time, algbw, busbw = _float(row["call_s"] * US, 7), _float(row["algbw"], 6), _float(row["busbw"], 6)
        wrong = f"{row['n_wrong']:g}" if words.known(row["n_wrong"]) else "N/A"
        line += f"  {time:>7}  {algbw:>6}  {busbw:>6}  {wrong:>6}"
    return line


def _sizes(rows: pd.DataFrame) -> Iterator[tuple[_Row, dict[str, _Row]]]:
    """Yield (first row, {form: row}) for each size of a case. If torch lacks a form, the values of its row are NaN."""
    for _, size_rows in rows.groupby("bytes"):
        forms = size_rows.set_index("in_place", drop=False).astype(object).reindex(list(FORMS.values()))
        yield size_rows.iloc[0].to_dict(), dict(zip(FORMS, records(forms), strict=True))


def results_json(results: Results, session: Session) -> dict[str, Any]:
    """Return the results of a session as nccl-tests' JSON document, with additional keys of parabench.

    Units are microseconds and GB/s. Without successful launches, times are from launches with wrong results. `failed`
    lists all launches that failed.
    """
    session.require("collectives", results.path)
    every = numbers(results, session)
    table = bus_table(measured(every))
    protocol = session.plan.get("protocol") or {}
    cases = session.plan.get("cases") or [{}]
    wrong = int(table["n_wrong"].sum())
    launches = every.drop_duplicates("launch_id")
    launches = launches.loc[launches["status"] != Status.OK, ["label", "status", "error"]]
    launches = launches.rename(columns={"label": "case"}).astype({"status": str})
    failed = records(launches.astype(object).fillna(""))
    return {
        "version": JSON_VERSION,
        "start_time": _time(session.started_utc),
        "args": session.argv,
        "env": [f"{name}={value}" for name, value in (session.environment.get("env") or {}).items()],
        # Which NCCL torch was built with is not recorded, and gloo has none.
        "nccl_version": None,
        "config": {
            "nthreads": 1,
            "ngpus": 1,
            "minimum_bytes": min((case.get("min_bytes", 0) for case in cases), default=0),
            "maximum_bytes": max((case.get("max_bytes", 0) for case in cases), default=0),
            "step_factor": cases[0].get("factor"),
            "warmup_iters": protocol.get("warmup"),
            "iterations": protocol.get("iterations"),
            "aggregated_iterations": 1,
            "validation": 1,
            # The number of launches of a graph is not the same for all sizes.
            "graph": int(session.timing == GRAPH),
            "blocking_collectives": "true" if session.timing == LATENCY else "false",
            "per_iter_timing": "false",
            "per_iter_skip": 0,
            "parallel_init": "false",
        },
        "results": [_result(*of_size) for _, rows in table.groupby("case_id", sort=False) for of_size in _sizes(rows)],
        "out_of_bounds": {"count": wrong, "okay": "true" if wrong == 0 else "false"},
        "average_bus_bandwidth": {"bandwidth": _average(table), "okay": "unchecked"},
        "errors": [f"{each['case']}: {each['status']}: {each['error']}" for each in failed],
        "end_time": _time(session.finished_utc),
        "parabench_version": session.version,
        "session": session.id,
        "label": session.label,
        "environment": session.environment,
        "skipped": [
            {"op": s["case"].get("op"), "algorithm": s["case"].get("algorithm"), "reason": s["reason"]}
            for s in session.plan.get("skipped") or []
        ],
        "failed": failed,
    }


def _result(first: _Row, forms: Mapping[str, _Row]) -> dict[str, Any]:
    """Return the JSON object of one size. It has the arguments of `_line`."""
    result: dict[str, Any] = {
        "size": int(first["bytes"]),
        "count": int(first["count"]),
        "type": TYPES[first["dtype"]].name,
        "redop": first["redop"],
        "root": f"{_root(first['op']):>6}",
    }
    ours: dict[str, Any] = {}
    for name, row in forms.items():
        if row["in_place"] != FORMS[name]:
            result[name] = None
            ours[f"{name}_reason"] = WHY_IN_PLACE_ONLY
            continue
        microseconds = {each: _number(row[each] * US) for each in ("call_s", *QUANTILES, "low_s", "high_s")}
        result[name] = {
            "time": microseconds["call_s"],
            "alg_bw": _number(row["algbw"]),
            "bus_bw": _number(row["busbw"]),
            "nwrong": _number(row["n_wrong"]),
        }
        ours[f"{name}_launches"] = {
            "statistic": row["statistic"],
            **{each.replace("_s", "_us"): microseconds[each] for each in QUANTILES},
            "min_us": microseconds["low_s"],
            "max_us": microseconds["high_s"],
            "spread": _number(row["spread"]),
            "calls": int(row["calls"]),
            "batches": int(row["batches"]),
            "launches": int(row["good"]),
        }
    calls = max(row["calls"] for row in forms.values() if words.known(row["calls"]))
    result["actual_iterations"] = round(calls / (first["good"] or first["launches"]))
    result["experiment_name"] = first["label"]
    for name in ("op", "algorithm", "ran", "world_size", "nodes", "device", "backend"):
        result[name] = first[name]
    per_node = words.number_or_none(first["ranks_per_node"])
    result["ranks_per_node"] = None if per_node is None else int(per_node)
    return result | {"case_id": first["case_id"], "timing": first["timing"], **ours}


def _average(table: pd.DataFrame) -> float | None:
    """Return the mean bus bandwidth of the rows with successful launches; None if there are none."""
    return _number(table.loc[table["good"] > 0, "busbw"].mean())


def _root(op: str) -> int:
    return ROOT if op == "broadcast" else -1


def _number(value: float) -> float | None:
    return words.number_or_none(float(value))


def _float(value: float, width: int) -> str:
    """Return a number with at most `width` characters, rounded as by nccl-tests' getFloatStr."""
    if not words.known(value):
        return "N/A"
    power = len(str(int(value))) if value >= 1 else 0
    decimals = 2 if power < width - 2 else 1 if power < width - 1 else 0
    return f"{value:.{decimals}f}" if power < width + 1 else f"{value:.1e}"


def _time(utc: str | None) -> str | None:
    """Return a time in ISO 8601 as nccl-tests writes it: '2026-01-31 14:05:09'. It is in UTC."""
    return utc[:19].replace("T", " ") if utc else None
