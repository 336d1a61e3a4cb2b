"""Figures of memory: peaks against the model states by formula, and the parts of the model states."""

from __future__ import annotations

from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.session import SessionData
from parabench.report.cases import page_cases
from parabench.report.figures.figures import (
    FROM_ZERO,
    PARTS_LEGEND,
    Panel,
    Trace,
    by_work,
    case_bars,
    in_rows,
    listed,
    marks,
    measured,
    plain,
    titled,
)
from parabench.report.palette import PEAK, STATE
from parabench.store.record import MIB

# Dark with a light edge, so that it is visible on bars and pages of any color.
_THEORY = {"symbol": "diamond-tall", "size": 15, "color": "#111111", "line": {"width": 1.5, "color": "#ffffff"}}
_LOOK: dict[str, Any] = {"bargap": 0.35, "legend": PARTS_LEGEND, "xaxis": FROM_ZERO}


def peak_memory(seen: SessionData) -> list[Panel]:
    """Return the largest peaks of a rank, with its model states by formula."""
    cases = measured(seen.once(page_cases)).dropna(subset=list(PEAK), how="all")
    return [_peaks(own) for own in by_work(cases)]


def _peaks(own: pd.DataFrame) -> Panel:
    looks = {column: look for column, look in PEAK.items() if own[column].notna().any()}
    if own["device"].iloc[0] == "cpu" and "peak_memory_bytes" in looks:
        looks["peak_memory_bytes"] = (PEAK["peak_memory_bytes"][0], "resident set")
    traces = _bars(own, looks, "model states, theory")
    title = "peak memory (MiB)" if len(looks) > 1 else f"peak {next(iter(looks.values()))[1]} of a rank (MiB)"
    look = _LOOK | {"barmode": "group", "showlegend": len(traces) > 1}
    return in_rows(titled(own), own["shown"], title, traces, head=110, least=1 + len(looks), **look)


def _bars(own: pd.DataFrame, looks: dict[str, tuple[str, str]], theory: str) -> list[Trace]:
    """Return bars of the columns in `looks`, and marks at the model states by formula, if one is known."""
    traces = []
    for column, (color, name) in looks.items():
        texts = [f"{name}: {format.mebibytes(size)}" for size in own[column]]
        traces.append(case_bars(own, own[column].astype(float) / MIB, name, color, texts))
    if own["state_theory_bytes"].notna().any():
        x, ids = listed(own["state_theory_bytes"], 1 / MIB), own["case_id"].to_list()
        traces.append(marks(x, [*range(len(own))], theory, _texts(own), _THEORY, customdata=ids))
    return traces


def _texts(own: pd.DataFrame) -> list[str]:
    return [
        f"model states by theory: {format.mebibytes(theory)}<br>measured: {format.mebibytes(size)}<br>{hover}"
        for theory, size, hover in zip(own["state_theory_bytes"], own["state_bytes"], own["hover"], strict=True)
    ]


def states(seen: SessionData) -> list[Panel]:
    """Return the parts of the model states of a rank, stacked, and the state by formula."""
    cases = seen.once(page_cases)
    cases = cases[cases["state_bytes"].notna()]
    panels = []
    for model, own in cases.groupby("model", sort=False):
        alike, title = _together(own), plain(str(model)) if cases["model"].nunique() > 1 else ""
        traces = _bars(alike, STATE, "theory")
        look = _LOOK | {"barmode": "stack", "which": "that hold least", "head": 140, "least": 2}
        panels.append(in_rows(title, alike["shown"], "model states of a rank (MiB)", traces, **look))
    return panels


def _together(cases: pd.DataFrame) -> pd.DataFrame:
    """Return one row for all configurations of a strategy that hold the same, with all their ids; the least first."""
    key = ["strategy", "world_size", *STATE]
    groups = cases.groupby(key, sort=False)
    rows = cases.drop_duplicates(key).assign(
        case_id=groups["case_id"].agg("|".join).to_list(),
        hover=groups["label"].agg(lambda labels: f"<b>{plain(format.listed(labels, most=4))}</b>").to_list(),
        shown=groups["shown"].agg(lambda names: format.listed(names, most=1)).to_list(),
    )
    return rows.sort_values("state_bytes", kind="stable")
