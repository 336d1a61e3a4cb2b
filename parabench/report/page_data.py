"""The data of the page's script: all configurations and launches of a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parabench.analysis import format
from parabench.analysis.numbers import WORK
from parabench.analysis.session import SessionData
from parabench.report.cases import page_cases, page_launches
from parabench.report.page import declared, packed
from parabench.report.spec import DASH, ERROR, NAME, REPETITION, STATUS, Cell, Column, out_of

# The filters and their names, in order; the fields of a workload follow. Fields with one value are left out.
FILTERS = {
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
# Columns of the launches in the details of a case.
OF_CASE = ("repetition", "status", "launch_step_s", "p90_s", "drift", "wall_s")
LAUNCH_COLUMNS = (
    NAME,
    REPETITION,
    Column("Position", "position", "count"),
    STATUS,
    Column("Step ms", "launch_step_s", "ms"),
    Column("p90 ms", "p90_s", "ms"),
    Column("Drift", "drift", "percent"),
    Column("Wall", "wall_s", "seconds"),
    Column("Buckets", "buckets"),
    Column("Error", "error", ERROR, ""),
)


def case_columns_shown(unit: str, margins: bool, compared: bool) -> list[Column]:
    """Return the columns of the page's table of configurations.

    Args:
        unit: The unit of throughput: tokens or samples.
        margins: Include the ± of the step time.
        compared: Include the percentage by which a configuration is slower than the best.
    """
    return [
        NAME,
        STATUS,
        Column("Step ms", "step_time_s", "ms"),
        *([Column("± ms", "plus_minus_s", "ms", show=_margin)] if margins else []),
        *([Column("Slower", "slower", "percent", show=_slower)] if compared else []),
        Column("Spread", "spread", "percent"),
        Column(f"{unit.capitalize()}/s", "tokens_per_s", "rate"),
        Column("Peak MiB", "peak_memory_bytes", "mib"),
        Column("Launches ok", "n_ok", "count", show=out_of("n_ok", "n_launches")),
        Column("First error", "error", ERROR, ""),
    ]


def _margin(row: Mapping[Any, Any]) -> str:
    margin = row["plus_minus_s"]
    return format.margin_ms(margin, row["step_time_s"]) if format.known(margin) else DASH


def _slower(row: Mapping[Any, Any]) -> Cell:
    """Return the ratio to the best, its interval, and whether the configuration was eliminated."""
    if not format.known(row["slower_low"]):
        return DASH
    between = f"{format.percent(row['slower_low'])} to {format.percent(row['slower_high'])}"
    after = row["left_after_repetition"]
    left = f", eliminated after repetition {after:.0f}" if format.known(after) else ""
    return {"text": format.percent(row["slower"]), "sub": between + left}


def page_data(seen: SessionData) -> dict[str, Any]:
    """Return the data of the page as JSON.

    - `cases`: `page_cases` with bucket sizes; `details`: whether the page has details of each.
    - `launches`: `page_launches` with the row of the `case`, or None.
    - `filters`: [column, name] of the fields with several values.
    - `tables`: see `declared`.
    """
    cases, launches = seen.once(page_cases), seen.once(page_launches)
    rows = {case: i for i, case in enumerate(cases["case_id"])}
    sizes = launches[launches["bucket_bytes"] != ""].groupby("case_id")["bucket_bytes"].first()
    table = cases.drop(columns=["work", "unit", "heading", "compared", "front", "hover", "shown"]).assign(
        bucket_bytes=cases["case_id"].map(sizes),
        throughput_unit=[f"{unit}/s" for unit in cases["unit"]],
    )
    launches = launches.assign(case=launches["case_id"].map(rows))
    known = (bool(cases[name].notna().any()) for name in ("plus_minus_s", "slower_low"))
    shown = case_columns_shown(" or ".join(cases["unit"].unique()), *known)
    names = FILTERS | {name: name.replace("_", " ").capitalize() for name in WORK if name not in FILTERS}
    return {
        "cases": packed(table),
        "launches": packed(launches),
        "tables": {
            "cases": declared(shown, table, map(str, table), _head, "step_time_s"),
            "launches": declared(LAUNCH_COLUMNS, launches, map(str, launches.drop(columns="case")), _head),
        },
        "filters": [(name, title) for name, title in names.items() if cases[name].nunique(dropna=False) > 1],
        "details": True,
    }


def _head(name: str) -> str:
    return _CSV_HEADS.get(name, name)
