"""The lines and the JSON that nccl-tests prints, for people and programs that read those already.

Layout: nccl-tests, src/util.cu (writeBenchmarkLinePreamble, writeBenchmarkLineBody, writeResultHeader,
writeResultFooter, writeDeviceReport, writeErrors). What is ours stands behind its columns, or under names that
it does not have.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from parabench.store.results import Results

# The version of its layout that is followed.
JSON_VERSION = 3
US = 1e6
FORMS = {"out_of_place": False, "in_place": True}
# The columns of one form.
_NUMBERS = "  {:>7}  {:>6}  {:>6}  {:>6}"
_SPREAD = "  {:>7}  {:>7}  {:>7}  {:>6}"


def table_lines(results: Results, session: Session) -> Iterator[str]:
    """Yield a block for each case: header, a line for each size, footer, and the spread of calls and launches.

    Only results start without '#'. They have nccl-tests' columns and no others, because readers count from the end.
    """
    session.require("collectives", results.path)
    table = bus_table(measured(numbers(results, session)))
    for _, rows in table.groupby("case_id", sort=False):
        first = rows.iloc[0]
        yield from _start(rows, session)
        yield f"# {first['label']}, {first['backend']} on {first['device']}"
        yield f"# timed: {in_words(first['timing'])}"
        what = "calls" if first["timing"] == LATENCY else "batches of calls"
        yield f"# time: of a call, {first['statistic']} over a launch, by its slowest rank; mean over launches"
        yield f"# p50, p95, p99, below: over a launch's {what}"
        if first["ran"] != first["algorithm"]:
            yield f"# {first['algorithm']} has no {first['op']} of its own: {first['ran']} ran"
        short = crowded(session.environment, *(int(first[name]) for name in ("world_size", "threads", "nodes")))
        if first["device"] == "cpu" and short:
            yield f"# warning: {short[0]} computing threads on {short[1]} core(s) of a node take turns"
        yield from _header()
        for _, own in rows.groupby("bytes"):
            yield _line(own)
        wrong = rows["n_wrong"].sum()
        known = rows["n_wrong"].notna().all()
        said = f"{wrong:g} {'FAILED' if wrong else 'OK'}" if known or wrong else words.UNKNOWN
        yield f"# {'Out of bounds values':<20} : {said}"
        average = _average(rows)
        yield f"# {'Avg bus bandwidth':<20} : {'N/A' if average is None else f'{average:g}'} "
        yield "#"
        yield from _spread_lines(rows)
        yield f"# Collective test concluded: {first['op']}_perf"
        yield "#"


def _start(rows: pd.DataFrame, session: Session) -> Iterator[str]:
    """Yield the lines that begin a test of nccl-tests. Iterations are the fewest timed calls of a launch."""
    protocol = session.plan.get("protocol") or {}
    sizes, timed = rows["bytes"], rows["calls"] / rows["good"].where(rows["good"] > 0, rows["launches"])
    factor = next((case.get("factor") for case in session.plan.get("cases") or []), None)
    yield f"# Collective test starting: {rows.iloc[0]['op']}_perf"
    yield (
        f"# nThread 1 nGpus 1 minBytes {sizes.min()} maxBytes {sizes.max()} step: {factor or 4}(factor) "
        f"warmup iters: {protocol.get('warmup') or 0} iters: {timed.min():.0f} agg iters: 1 validation: 1 "
        f"graph: {int(session.timing == GRAPH)}"
    )
    if session.timing == LATENCY:
        yield "# Blocking Enabled: wait for completion and barrier after each collective"


def results_json(results: Results, session: Session) -> dict[str, Any]:
    """Return nccl-tests' document: its keys with its types and units (us, GB/s), and further keys of parabench.

    Times are from the launches that succeeded, or if none did, from those with wrong results. The average bandwidth is
    only from the launches that succeeded. `failed` are all failed launches.
    """
    session.require("collectives", results.path)
    every = numbers(results, session)
    table = bus_table(measured(every))
    protocol = session.plan.get("protocol") or {}
    cases = session.plan.get("cases") or [{}]
    found = [_result(own) for _, rows in table.groupby("case_id", sort=False) for _, own in rows.groupby("bytes")]
    wrong = float(table["n_wrong"].sum())
    launches = every.drop_duplicates("launch_id")
    failed = [
        {
            "case": row["label"],
            "status": str(row["status"]),
            "error": row["error"] if isinstance(row["error"], str) else "",
        }
        for row in launches[launches["status"] != Status.OK].to_dict("records")
    ]
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
            # How often a graph of the captured calls is launched differs from size to size.
            "graph": int(session.timing == GRAPH),
            "blocking_collectives": "true" if session.timing == LATENCY else "false",
            "per_iter_timing": "false",
            "per_iter_skip": 0,
            "parallel_init": "false",
        },
        "results": found,
        "out_of_bounds": {"count": int(wrong), "okay": "true" if wrong == 0 else "false"},
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


def _header() -> Iterator[str]:
    yield "#"
    yield f"# {'':>10}  {'':>12}  {'':>8}  {'':>6}  {'':>6}           out-of-place                       in-place"
    for of_size, of_form in (
        (("size", "count", "type", "redop", "root"), ("time", "algbw", "busbw", "#wrong")),
        (("(B)", "(elements)", "", "", ""), ("(us)", "(GB/s)", "(GB/s)", "")),
    ):
        yield "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}".format(*of_size) + _NUMBERS.format(*of_form) * 2


def _line(rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    line = f"{first['bytes']:>12}  {first['count']:>12}  {TYPES[first['dtype']].name:>8}  {first['redop']:>6}  "
    line += f"{_root(first['op']):>6}"
    for row in _forms(rows).values():
        wrong = f"{row['n_wrong']:g}" if words.known(row["n_wrong"]) else "N/A"
        rates = _float(row["algbw"], 6), _float(row["busbw"], 6)
        line += _NUMBERS.format(_float(row["call_s"] * US, 7), *rates, wrong)
    return line


def _spread_lines(rows: pd.DataFrame) -> Iterator[str]:
    """Yield for each size how its calls spread in a launch, and its launches; as comments."""
    names, units = ("p50", "p95", "p99", "spread"), ("(us)", "(us)", "(us)", "(%)")
    yield f"# {'':>10}          out of place                      in place"
    yield f"# {'size':>10}{_SPREAD.format(*names) * 2}"
    yield f"# {'(B)':>10}{_SPREAD.format(*units) * 2}"
    for size, own in rows.groupby("bytes"):
        line = f"# {size:>10}"
        for row in _forms(own).values():
            spread = f"{row['spread'] * 100:.1f}" if words.known(row["spread"]) else "N/A"
            line += _SPREAD.format(*(_float(row[name] * US, 7) for name in QUANTILES), spread)
        yield line
    yield "#"


def _result(rows: pd.DataFrame) -> dict[str, Any]:
    first = rows.iloc[0]
    result: dict[str, Any] = {
        "size": int(first["bytes"]),
        "count": int(first["count"]),
        "type": TYPES[first["dtype"]].name,
        "redop": first["redop"],
        "root": f"{_root(first['op']):>6}",
    }
    ours: dict[str, Any] = {}
    for name, row in _forms(rows).items():
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
    result["actual_iterations"] = round(rows["calls"].max() / (first["good"] or first["launches"]))
    result["experiment_name"] = first["label"]
    return result | {
        "op": first["op"],
        "algorithm": first["algorithm"],
        "ran": first["ran"],
        "world_size": int(first["world_size"]),
        "nodes": int(first["nodes"]),
        "device": first["device"],
        "backend": first["backend"],
        "ranks_per_node": int(first["ranks_per_node"]) if words.known(first["ranks_per_node"]) else None,
        "case_id": first["case_id"],
        "timing": first["timing"],
        **ours,
    }


def _forms(rows: pd.DataFrame) -> dict[str, dict[Any, Any]]:
    """Return the row of each form of one size; all unknown if torch does not have the form."""
    own = rows.set_index("in_place", drop=False).astype(object).reindex(list(FORMS.values()))
    return dict(zip(FORMS, own.to_dict("records"), strict=True))


def _average(table: pd.DataFrame) -> float | None:
    """Return the mean bus bandwidth of the rows with successful launches; None if there are none."""
    return words.number_or_none(float(table.loc[table["good"] > 0, "busbw"].mean()))


def _root(op: str) -> int:
    return ROOT if op == "broadcast" else -1


def _number(value: float) -> float | None:
    return words.number_or_none(float(value))


def _float(value: float, width: int) -> str:
    """A number in `width` columns with as many decimals as fit, as nccl-tests' getFloatStr."""
    if not words.known(value):
        return f"{'N/A':>{width}}"
    power = len(str(int(value))) if value >= 1 else 0
    decimals = 2 if power < width - 2 else 1 if power < width - 1 else 0
    return f"{value:>{width}.{decimals}f}" if power < width + 1 else f"{value:>{width}.1e}"


def _time(utc: str | None) -> str | None:
    """'2026-01-31 14:05:09' of ISO 8601, as nccl-tests writes times; ours are UTC."""
    return utc[:19].replace("T", " ") if utc else None
