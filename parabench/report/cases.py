"""Tables of configurations and launches for the figures, the script and the details of a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.efficiency import efficiency
from parabench.analysis.memory import PARTS, case_states
from parabench.analysis.numbers import WORK, levels, work_text
from parabench.analysis.ranking.best import answered
from parabench.analysis.ranking.parts import NOT_COMPARED
from parabench.analysis.ranking.race import exits
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import EXPOSED_IN, case_breakdown
from parabench.analysis.step.stragglers import straggler_table
from parabench.analysis.warnings import all_findings
from parabench.analysis.warnings.launches import session_warnings
from parabench.metrics import STEP_PARTS
from parabench.plan.case import Case
from parabench.report.figures import plain
from parabench.report.page import rounded
from parabench.report.rerun import rerun_of
from parabench.report.spec import (
    CASE,
    DASH,
    ERROR,
    FORMATS,
    NOT_RANKED,
    TEXT,
    WORDED,
    Cell,
    Column,
    repetition_name,
)
from parabench.store.record import Status
from parabench.store.results import known_records, records
from parabench.strategies import Rule, entry_of

# ---- configurations

_CASE = [
    "case_id", "label", "status", "error", "statistic", "step_time_s", "low_s", "high_s", "spread", "p90_s",
    "tokens_per_s", "peak_memory_bytes", "n_ok", "n_launches", *STEP_PARTS,
]  # fmt: skip
_COMPARED = ("plus_minus_s", "slower", "slower_low", "slower_high")
# Columns that need another name, because theirs is ambiguous or not descriptive.
_RENAMED = {
    "step_s": "instrumented_s", "data_s": "instrumented_data_s", "measured": "state_bytes",
    "theory": "state_theory_bytes", "formula": "state_formula", "exact": "state_exact",
}  # fmt: skip


def page_cases(seen: SessionData) -> pd.DataFrame:
    """Return a row for each configuration, the fastest first, with the columns in docs/reference/report.md and these:

    - `work`: the index of the workload; `heading`: its name if there are several; `unit`: the unit of throughput.
    - `compared`: whether intervals of `slower` are known for the workload.
    - `front`: whether the configuration is Pareto-optimal in step time and memory.
    - `shown`: the name in figures; `hover`: the text when hovering over a point.
    """
    cases, works = seen.cases, seen.once(answered)
    ids = cases["case_id"]
    rows = {row["case_id"]: row for work in works for row in work["candidates"]}
    left = {case_id: row for work in works for case_id, row in exits(work).items()}
    ranking = {
        row["case_id"]: "fastest" if row["case_id"] == work["workloads"][0]["winner"] else "tied"
        for work in works
        for row in work["candidates"]
        if work["workloads"][0]["decided"] and row["place"] in ("best", "tied")
    }
    front = {row["case_id"] for work in works if len(work["front"]) > 1 for row in work["front"]}
    peaks = levels(seen.counted[seen.counted["peak_memory_bytes"] > 0], "peak_memory_bytes") if front else {}
    numbers = {name: [rows.get(case_id, {}).get(name) for case_id in ids] for name in _COMPARED}
    numbers["left_after_repetition"] = [left[case]["repetition"] + 1 if case in left else None for case in ids]
    numbers["left_at_least"] = [left[case]["at_least"] if case in left else None for case in ids]
    headings = {work["workloads"][0]["work"]: work["workloads"][0]["workload"] for work in works}
    found = cases[_CASE].assign(
        **case_columns(seen),
        # Not rounded, because they identify the case, also in the command that repeats it.
        **{name: cases[name].astype(object) for name in Case().to_dict()},
        **{name: pd.Series(own, cases.index, dtype=float) for name, own in numbers.items()},
        ranking=[ranking.get(case_id, "") for case_id in ids],
        mark=[_mark(row, rows.get(row["case_id"], {}).get("place")) for row in records(cases)],
        mean_peak_bytes=ids.map(peaks) if front else None,
        ranked=[entry_of(str(name)).ranked for name in cases["strategy"]],
        unit=cases["seq_len"].map(format.unit_of),
        front=ids.isin(front),
        work=cases.groupby([*WORK], sort=False, dropna=False).ngroup(),
        heading=[headings.get(work_text(fields), "") for fields in known_records(cases, WORK)],
    )
    found["compared"] = found["slower_low"].notna().groupby(found["work"]).transform("any")
    found["hover"] = pd.Series([_hover(row) for row in records(found)], found.index, dtype=object)
    found["shown"] = found["label"].where(found["ranked"], found["label"] + " (" + found["mark"] + ")")
    return found


def _mark(case: Mapping[str, Any], place: str | None) -> str:
    entry = entry_of(case["strategy"])
    if not entry.ranked:
        return NOT_RANKED
    if place == "not_compared":
        return NOT_COMPARED
    if entry.rule is not Rule.APPLIED_ONCE:
        return ""
    mean, most = case["staleness_mean"], case["staleness_max"]
    known = format.known(mean) and format.known(most)
    return "another training: stale gradients" + (f", {format.staleness(mean, most)}" if known else "")


def _hover(case: Mapping[str, Any]) -> str:
    step, spread = format.milliseconds(case["step_time_s"]), "spread unknown: one launch"
    if format.known(case["plus_minus_s"]):
        step = f"{step.removesuffix(' ms')} ± {format.margin_ms(case['plus_minus_s'], case['step_time_s'])} ms"
    if format.known(case["spread"]):
        spread = f"slowest launch over fastest: {format.signed(case['spread'])}"
    return f"<b>{plain(case['label'])}</b><br>{step} per step ({case['statistic']})<br>{spread}"


def case_columns(seen: SessionData) -> pd.DataFrame:
    """Return the columns of instrumented steps, memory, FLOP/s, energy and stragglers for `seen.cases`."""
    columns = {
        case_breakdown: [
            "step_s", "data_s", "compute_s", "exposed_s", "overlapped_s", "idle_s", "exposed_share", "unknown_calls",
            "instruments_ratio", *EXPOSED_IN.values(),
        ],
        case_states: ["measured", "theory", "formula", "exact", *PARTS],
        efficiency: ["flops_per_s", "mfu", "mfu_reason", "joules_per_step", "joules_per_token"],
        straggler_table: ["straggler", "waited_s", "waited_share"],
    }  # fmt: skip
    tables = [seen.once(make).set_index("case_id")[names] for make, names in columns.items()]
    found = pd.concat([seen.cases_by_id[["peak_reserved_bytes", "used_bytes"]], *tables], axis="columns")
    return found.rename(columns=_RENAMED).reindex(seen.cases["case_id"]).set_axis(seen.cases.index)


def numbers_of(case: Mapping[str, Any], named: str = "") -> list[tuple[str, str, str, str]]:
    """Return (name, value, ±, unit) of step time, throughput and peak memory in a row of `page_cases`.

    `named` is put in front of the first name.
    """
    step_s, margin_s, rate = case["step_time_s"], case["plus_minus_s"], case["tokens_per_s"]
    margin_ms = margin_rate = ""
    if format.known(margin_s):
        margin_ms = format.margin_ms(margin_s, step_s)
        # The relative margin of a throughput equals the relative margin of the step time.
        margin_rate = format.margin_rate(rate * margin_s / step_s, rate) if format.known(rate) else ""
    found = (
        (f"{named}step time, {case['statistic']}", "ms", step_s, margin_ms, "ms"),
        ("throughput", "rate", rate, margin_rate, f"{case['unit']}/s"),
        ("peak memory", "mib", case["peak_memory_bytes"], "", "MiB"),
    )
    return [
        (name, FORMATS[style](value), margin, unit) if format.known(value) else (name, format.UNKNOWN, "", "")
        for name, style, value, margin, unit in found
    ]


# ---- launches

_LAUNCH = [
    "repetition", "position", "status", "launch_step_s", "p90_s", "drift", "n_steps", "wall_s", "peak_memory_bytes",
]  # fmt: skip


def page_launches(seen: SessionData) -> pd.DataFrame:
    """Return the launches in run order, with the columns in docs/reference/report.md."""
    # The page's names of columns.
    every = seen.numbers.rename(columns={"case": "case_id", "step_s": "launch_step_s"})
    every = every.sort_values("launch_id")
    sizes = [seen.facts[at].get("bucket_bytes") or [] for at in every["launch_id"]]
    seconds = seen.cases_by_id["step_time_s"].astype(float).where(seen.cases_by_id["n_ok"] > 1)
    return every[["launch_id", "case_id", "label", *_LAUNCH]].assign(
        counts=every["counted"].astype(int),
        from_case=(every["launch_step_s"] / every["case_id"].map(seconds) - 1).where(every["counted"]),
        drift=every["drift"].round(4),  # a hundredth of a percent
        buckets=[f"{len(own)}, largest {format.mebibytes(max(own))}" if own else "" for own in sizes],
        bucket_bytes=[" ".join(f"{size:.0f}" for size in own) for own in sizes],
        error=every["error"],
    )


# ---- the data of the page's script

# The filters and their names, in order; the fields of a workload follow. Fields with one value are left out.
_FILTERS = {
    "strategy": "Strategy",
    "algorithm": "Algorithm",
    "bucket_mib": "Bucket, MiB",
    "world_size": "Ranks",
    "model": "Model",
    "status": "Status",
}
# Heads of columns in a file whose names on the page are different or less exact.
_CSV_HEADS = {
    "low_s": "step_fastest_launch_s", "high_s": "step_slowest_launch_s", "p90_s": "step_p90_s",
    "plus_minus_s": "step_time_plus_minus_s", "tokens_per_s": "throughput_per_s",
}  # fmt: skip


def _status(row: Mapping[Any, Any]) -> Cell:
    text = row["status"] or DASH
    return text if text == Status.OK else {"text": text, "bad": True}


def _margin(row: Mapping[Any, Any]) -> str:
    margin = row["plus_minus_s"]
    return format.margin_ms(margin, row["step_time_s"]) if format.known(margin) else DASH


def _slower(row: Mapping[Any, Any]) -> Cell:
    """Return the slowdown relative to the best, its interval, and the repetition of an elimination."""
    if not format.known(row["slower_low"]):
        return DASH
    between = f"{format.percent(row['slower_low'])} to {format.percent(row['slower_high'])}"
    after = row["left_after_repetition"]
    left = f", eliminated after repetition {after:.0f}" if format.known(after) else ""
    return {"text": format.percent(row["slower"]), "sub": between + left}


_NAME = Column("Configuration", "label", CASE)
_STATUS = Column("Status", "status", show=_status)
# The columns of the launches in the details of a configuration.
_LAUNCHES_OF_CASE = (
    Column("Repetition", "repetition", WORDED, show=lambda row: repetition_name(row["repetition"])),
    _STATUS,
    Column("Step ms", "launch_step_s", "ms"),
    Column("p90 ms", "p90_s", "ms"),
    Column("Drift", "drift", "percent"),
    Column("Wall", "wall_s", "seconds"),
)
_LAUNCHES = (
    _NAME, *_LAUNCHES_OF_CASE, Column("Buckets", "buckets"), Column("Error", "error", ERROR, ""),
)  # fmt: skip


def page_data(seen: SessionData) -> dict[str, Any]:
    """Return the data of the page's script as JSON.

    - `cases`: `page_cases` with bucket sizes.
    - `launches`: `page_launches` with `case`, the index of the launch's row in `cases`, or None.
    - `filters`: [column, name] of the fields with several values.
    - `tables`: the columns of both with their cells, and the [head, column] pairs of their files.
    """
    cases, launches = seen.once(page_cases), seen.once(page_launches)
    rows = {case: i for i, case in enumerate(cases["case_id"])}
    sizes = launches[launches["bucket_bytes"] != ""].groupby("case_id")["bucket_bytes"].first()
    table = cases.drop(columns=["work", "unit", "heading", "compared", "front", "hover", "shown"]).assign(
        bucket_bytes=cases["case_id"].map(sizes),
        throughput_unit=[f"{unit}/s" for unit in cases["unit"]],
    )
    unit = " or ".join(cases["unit"].unique()).capitalize()
    columns = [
        _NAME,
        _STATUS,
        Column("Step ms", "step_time_s", "ms"),
        *[Column("± ms", "plus_minus_s", "ms", show=_margin)] * bool(cases["plus_minus_s"].notna().any()),
        *[Column("Slower", "slower", "percent", show=_slower)] * bool(cases["compared"].any()),
        Column("Spread", "spread", "percent"),
        Column(f"{unit}/s", "tokens_per_s", "rate"),
        Column("Peak MiB", "peak_memory_bytes", "mib"),
        Column("Launches ok", "n_ok", "count", show=lambda row: f"{row['n_ok']:,.0f} of {row['n_launches']:,.0f}"),
        Column("First error", "error", ERROR, ""),
    ]
    names = _FILTERS | {name: name.replace("_", " ").capitalize() for name in WORK if name not in _FILTERS}
    return {
        "cases": packed(table),
        "launches": packed(launches.assign(case=launches["case_id"].map(rows))),
        "tables": {
            "cases": _scripted(columns, table) | {"initial": "step_time_s"},
            "launches": _scripted(_LAUNCHES, launches) | {"initial": ""},
        },
        "filters": [(name, title) for name, title in names.items() if cases[name].nunique(dropna=False) > 1],
    }


def packed(table: pd.DataFrame) -> dict[str, Any]:
    """Return {"n": rows, column: list of values} as JSON, with NaN as None and numbers rounded.

    Columns of objects are not rounded, because they name a case and occur in commands.
    """
    found: dict[str, Any] = {"n": len(table)}
    for name, column in table.items():
        items = [format.cell(each) for each in column.tolist()]
        items = [each.item() if isinstance(each, np.generic) else each for each in items]
        found[str(name)] = rounded(items) if pd.api.types.is_numeric_dtype(column) else items
    return found


def _scripted(columns: Iterable[Column], table: pd.DataFrame) -> dict[str, Any]:
    """Return the columns of a table with the cells of all rows, and [head, name] of each column of its CSV file.

    `packed(table)` has the values of both.
    """
    rows: list[dict[Any, Any]] = records(table)
    return {
        "columns": [
            {
                "name": one.value,
                "head": one.title,
                "format": one.format if one.format in (CASE, ERROR, TEXT) else "",
                "cells": [one.cell(row) for row in rows] if one.format != CASE else [],
            }
            for one in columns
        ],
        "csv": [(_CSV_HEADS.get(name, name), name) for name in map(str, table)],
    }


# ---- the details of a configuration, which the page shows when a reader opens it


def case_details(seen: SessionData) -> list[dict[str, Any]]:
    """Return the details of each configuration for the template.

    - `case`: its row of `page_cases`.
    - `numbers`: see `numbers_of`.
    - `head` and `launches`: the table of its launches, and the error of each.
    - `warnings`: (code, message, advice) about it alone.
    - `command`: the command that measures it again.
    """
    launches: dict[str, list[dict[str, Any]]] = {}
    for row in records(seen.once(page_launches).sort_values("repetition", kind="stable")):
        launches.setdefault(row["case_id"], []).append(row)
    warnings: dict[str, list[tuple[str, str, str]]] = {}
    for each in all_findings(seen.results, seen.session, seen.once(session_warnings)):
        if (case_id := each.case_id) in seen.labels:
            message = each.message.removeprefix(f"{seen.labels[case_id]}: ")
            warnings.setdefault(case_id, []).append((each.code, message, each.advice))
    command = rerun_of(seen.session)
    return [
        {
            "case": case,
            "numbers": numbers_of(case),
            "head": [each.title for each in _LAUNCHES_OF_CASE],
            "launches": [
                ([each.cell(row) for each in _LAUNCHES_OF_CASE], row["error"] or "")
                for row in launches[case["case_id"]]
            ],
            "warnings": warnings.get(case["case_id"], []),
            "command": command(seen.case(case["case_id"])),
        }
        for case in records(seen.once(page_cases))
    ]
