"""What the page's script draws from: every case and every launch of a session of trainings, embedded once."""

from __future__ import annotations

from typing import Any

import pandas as pd

from parabench.analysis.numbers import WORK
from parabench.analysis.session import SessionData
from parabench.report.cases import page_cases, page_launches
from parabench.report.page import declared, packed
from parabench.report.spec import Column

# By what a reader may filter, in the order of the bar, and how it is called. Those in which cases do not differ are
# left out; the fields of a work come after these.
FILTERS = {
    "strategy": "Strategy",
    "algorithm": "Algorithm",
    "bucket_mib": "Bucket, MiB",
    "world_size": "Ranks",
    "model": "Model",
    "status": "Status",
}

# Heads of columns of a file that are called otherwise, or less exactly, inside of the page.
_CSV_HEADS = {
    "low_s": "step_fastest_launch_s", "high_s": "step_slowest_launch_s", "p90_s": "step_p90_s",
    "plus_minus_s": "step_time_plus_minus_s", "tokens_per_s": "throughput_per_s",
}  # fmt: skip
# Columns of the launches in the details of a case.
OF_CASE = ("block", "status", "launch_step_s", "p90_s", "drift", "wall_s")
LAUNCH_COLUMNS = (
    Column("Case", "label", "case"),
    Column("Block", "block", "block"),
    Column("Position", "position", "count"),
    Column("Status", "status", "status"),
    Column("Step ms", "launch_step_s", "ms"),
    Column("p90 ms", "p90_s", "ms"),
    Column("Drift", "drift", "percent"),
    Column("Wall", "wall_s", "seconds"),
    Column("Buckets", "buckets"),
    Column("Error", "error", "error"),
)


def case_columns_shown(unit: str, margins: bool) -> list[Column]:
    """Of the table of all cases, whose throughput counts `unit`; with a ± where one is known."""
    return [
        Column("Case", "label", "case"),
        Column("Status", "status", "status"),
        Column("Step ms", "step_time_s", "ms"),
        *([Column("± ms", "plus_minus_s", "margin_ms", beside=("step_time_s",))] if margins else []),
        Column("Spread", "spread", "percent"),
        Column("p90 ms", "p90_s", "ms"),
        Column(f"{unit.capitalize()}/s", "tokens_per_s", "rate"),
        Column("Peak MiB", "peak_memory_bytes", "mib"),
        Column("Launches ok", "n_ok", "of", beside=("n_launches",)),
        Column("First error", "error", "error"),
    ]


def page_data(seen: SessionData) -> dict[str, Any]:
    """Return the data of a training's page as JSON.

    - `cases`: `page_cases` with bucket sizes.
    - `launches`: `page_launches` with the row of the `case`, or None.
    - `tables` and `filters`: see the functions that return them. `details` is whether cases have details.
    """
    cases, launches = seen.once(page_cases), seen.once(page_launches)
    rows = {case: i for i, case in enumerate(cases["case_id"])}
    sizes = launches[launches["bucket_bytes"] != ""].groupby("case_id")["bucket_bytes"].first()
    table = cases.drop(columns=["work", "unit", "heading", "compared", "front", "hover", "shown"]).assign(
        bucket_bytes=cases["case_id"].map(sizes),
        throughput_unit=[f"{unit}/s" for unit in cases["unit"]],
    )
    launches = launches.assign(case=launches["case_id"].map(rows))
    units, margins = " or ".join(dict.fromkeys(cases["unit"])), bool(cases["plus_minus_s"].notna().any())
    return {
        "cases": packed(table),
        "launches": packed(launches),
        "tables": {
            "cases": declared(
                case_columns_shown(units, margins),
                table,
                map(str, table),
                lambda name: _CSV_HEADS.get(name, name),
                "step_time_s",
            ),
            "launches": declared(
                LAUNCH_COLUMNS,
                launches,
                [str(name) for name in launches if name != "case"],
                lambda name: _CSV_HEADS.get(name, name),
            ),
        },
        "filters": _filters(cases),
        "details": True,
    }


def _filters(cases: pd.DataFrame) -> list[tuple[str, str]]:
    further = {name: name.replace("_", " ").capitalize() for name in WORK if name not in FILTERS}
    return [(name, title) for name, title in (FILTERS | further).items() if cases[name].nunique(dropna=False) > 1]
