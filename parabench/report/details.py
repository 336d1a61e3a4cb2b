"""The details of a configuration, which the page shows when a reader opens it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.session import SessionData
from parabench.analysis.warnings.codes import all_findings
from parabench.analysis.warnings.launches import session_warnings
from parabench.report.cases import page_cases, page_launches
from parabench.report.figures.figures import Figure, lay_out, listed
from parabench.report.rerun import rerun_of
from parabench.report.spec import FORMATS, Cell, Column
from parabench.store.results import records

_COLOR = "#0072B2"
_MARGIN = (
    "± is the half-width of a 95% confidence interval (Student's t); its variance is pooled over all cases of the "
    "workload."
)


def case_details(seen: SessionData, columns: tuple[Column, ...]) -> list[dict[str, Any]]:
    """Return the content of `details.html` for each configuration.

    - `case`: its row of `page_cases`.
    - `numbers`: (name, number, ±, unit) of its results; `caption` explains them.
    - `head` and `launches`: the table of its launches, with `columns`; `figure`: whether it has a figure of them.
    - `warnings`: (code, message, advice) about it alone.
    - `command`: the command that measures it again.
    """
    launches = dict(iter(seen.once(page_launches).groupby("case_id", sort=False)))
    warnings: dict[str, list[tuple[str, str, str]]] = {}
    for each in all_findings(seen.results, seen.session, seen.once(session_warnings)):
        if (case_id := each.case_id) in seen.labels:
            message = each.message.removeprefix(f"{seen.labels[case_id]}: ")
            warnings.setdefault(case_id, []).append((each.code, message, each.advice))
    command = rerun_of(seen.session)
    return [
        {
            "case": case,
            "numbers": _numbers(case),
            "caption": _caption(case),
            "head": [each.title for each in columns],
            "launches": _launches(launches[case["case_id"]], columns),
            "figure": bool(launches[case["case_id"]]["counts"].any()),
            "warnings": warnings.get(case["case_id"], []),
            "command": command(seen.case(case["case_id"])),
        }
        for case in records(seen.once(page_cases))
    ]


def launch_figures(seen: SessionData) -> dict[str, Figure]:
    """Return a figure of the launches of each configuration, repetition by repetition, by the configuration's id."""
    launches = seen.once(page_launches)
    own = launches[launches["counts"] == 1].sort_values("block", kind="stable")
    return {str(case): _launch_figure(group) for case, group in own.groupby("case_id", sort=False)}


def _launch_figure(own: pd.DataFrame) -> Figure:
    blocks = own["block"].to_list()
    trace = {
        "type": "scatter", "mode": "lines+markers" if len(own) > 1 else "markers", "x": blocks,
        "y": listed(own["launch_step_s"], 1e3), "line": {"color": _COLOR, "width": 1, "dash": "dot"},
        "marker": {"color": _COLOR, "size": 9}, "hovertemplate": "block %{x}: %{y:.4~g} ms<extra></extra>",
    }  # fmt: skip
    ticks = sorted(set(blocks))
    return lay_out([trace], "block", "step time (ms)", xaxis={"tickvals": ticks} if len(ticks) <= 12 else {})


def _numbers(case: Mapping[Any, Any]) -> list[tuple[str, str, str, str]]:
    step_s, margin_s, rate = case["step_time_s"], case["plus_minus_s"], case["tokens_per_s"]
    sure = format.known(margin_s)
    margin_ms = format.margin_ms(margin_s, step_s) if sure else ""
    # The relative margin of a throughput equals the relative margin of the step time.
    margin_rate = format.margin_rate(rate * margin_s / step_s, rate) if sure and format.known(rate) else ""
    return [
        (f"step time, {case['statistic']}", *_number("ms", step_s, "ms", margin_ms)),
        ("90th percentile of steps", *_number("ms", case["p90_s"], "ms")),
        ("throughput", *_number("rate", rate, f"{case['unit']}/s", margin_rate)),
        ("peak memory", *_number("mib", case["peak_memory_bytes"], "MiB")),
    ]


def _number(style: str, value: Any, unit: str, margin: str = "") -> tuple[str, str, str]:
    return (FORMATS[style](value), margin, unit) if format.known(value) else (format.UNKNOWN, "", "")


def _caption(case: Mapping[Any, Any]) -> str:
    if not format.known(case["step_time_s"]):
        return ""
    spread = (
        f"The slowest launch is {format.percent(case['spread'])} over the fastest."
        if format.known(case["spread"])
        else "The spread is unknown: one launch."
    )
    margin = _MARGIN if format.known(case["plus_minus_s"]) else "± is unknown."
    return (
        f"Each launch gives one number, and both times are geometric means over launches. {margin} {spread} Memory is "
        "the largest of all launches."
    )


def _launches(own: pd.DataFrame, columns: tuple[Column, ...]) -> list[tuple[list[Cell], str]]:
    """Return the cells and the error of each launch."""
    rows = records(own.sort_values("block", kind="stable"))
    return [([each.cell(row) for each in columns], row["error"] or "") for row in rows]
