"""Figures of the parts of a step."""

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
    by_work,
    case_bars,
    in_rows,
    listed,
    measured,
    titled,
)
from parabench.report.palette import OVERLAP_HATCH, PART, SHARE

# Rows have bars of steps above, and thinner ones of overlapped communication below.
_ABOVE, _BELOW = -0.08, 0.3
# Texts at the end of the longest bar are in the right margin.
_MARGIN = {"l": 8, "r": 60, "t": 8, "b": 8}


def step_parts(seen: SessionData) -> list[Panel]:
    """Return the parts of a measured step, one after the other."""
    cases = measured(seen.once(page_cases)).dropna(subset=list(PART), how="all")
    return [_step_parts(own) for own in by_work(cases)]


def _step_parts(own: pd.DataFrame) -> Panel:
    parts = own[[*PART]].astype(float).dropna(axis="columns", how="all")
    whole, traces = parts.sum(axis="columns"), []
    for part, seconds in parts.items():
        color, name = PART[str(part)]
        traces.append(case_bars(own, 1e3 * seconds, name, color, _shares(name, seconds, whole, "its parts")))
    look: dict[str, Any] = {"barmode": "stack", "bargap": 0.35, "legend": PARTS_LEGEND}
    return in_rows(titled(own), own["shown"], "median time of a step (ms)", traces, head=110, least=2, **look)


def _shares(name: str, seconds: pd.Series, whole: pd.Series, of: str) -> list[str]:
    return [
        f"{name}: {format.milliseconds(second)}, {format.percent(share)} of {of}"
        for second, share in zip(seconds, seconds / whole, strict=True)
    ]


def shares(seen: SessionData) -> list[Panel]:
    """Return the parts of an instrumented step.

    Overlapped communication is inside compute, so its bar ends where exposed communication starts.
    """
    cases = measured(seen.once(page_cases)).dropna(subset="instrumented_s")
    return [_step_shares(own) for own in by_work(cases)]


def _step_shares(own: pd.DataFrame) -> Panel:
    steps = own[[*SHARE]].astype(float)
    ends = steps.fillna(0).cumsum(axis="columns")
    whole, overlapped = own["instrumented_s"].astype(float), own["overlapped_s"].astype(float)
    above, below = ([row + at for row in range(len(own))] for at in (_ABOVE, _BELOW))
    traces = []
    for part, (color, name) in SHARE.items():
        place = {"base": listed(ends[part] - steps[part].fillna(0), 1e3), "y": above, "width": 0.5}
        traces.append(
            case_bars(own, 1e3 * steps[part], name, color, _shares(name, steps[part], whole, "the step"), **place)
        )
    texts = [
        text.replace(": ", ": ≥ ") if unknown > 0 else text
        for text, unknown in zip(
            _shares("overlapped", overlapped, whole, "the step"), own["unknown_calls"], strict=True
        )
    ]
    color = SHARE["exposed_s"][0]
    look: dict[str, Any] = {
        "marker": {"color": color, "line": {"width": 0}, "pattern": OVERLAP_HATCH},
        "y": below,
        "width": 0.2,
    }
    look["base"] = listed((ends["compute_s"] - overlapped.fillna(0)).clip(lower=0), 1e3)
    traces.append(case_bars(own, 1e3 * overlapped, "overlapped (inside compute)", color, texts, **look))
    traces.append({
        "type": "scatter", "mode": "text", "x": listed(ends["idle_s"], 1e3), "y": above, "cliponaxis": False,
        "text": [f" {format.percent(share)}" for share in own["exposed_share"]], "textposition": "middle right",
        "customdata": own["case_id"].to_list(), "showlegend": False, "hoverinfo": "skip",
    })  # fmt: skip
    more: dict[str, Any] = {"barmode": "overlay", "legend": PARTS_LEGEND, "margin": _MARGIN, "xaxis": FROM_ZERO}
    return in_rows(titled(own), own["shown"], "an instrumented step (ms)", traces, head=120, least=2, **more)
