"""Figures of time and hardware: what a step consists of, FLOP/s, and energy."""

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
    plain,
    titled,
)
from parabench.report.palette import PART, SHARE

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
    whole = parts.sum(axis="columns")
    traces = []
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
    """Return what an instrumented step consists of.

    Overlapped communication is inside compute, so its bar ends where exposed communication starts.
    """
    cases = measured(seen.once(page_cases))
    return [_step_shares(own) for own in by_work(cases[cases["instrumented_s"].notna()])]


def _step_shares(own: pd.DataFrame) -> Panel:
    steps = own[[*SHARE]].astype(float)
    ends = steps.fillna(0).cumsum(axis="columns")
    whole, rows = own["instrumented_s"].astype(float), range(len(own))
    above = [row + _ABOVE for row in rows]
    traces = [
        case_bars(
            own, 1e3 * steps[part], name, color, _shares(name, steps[part], whole, "the step"),
            base=listed(ends[part] - steps[part].fillna(0), 1e3), y=above, width=0.5,
        )
        for part, (color, name) in SHARE.items()
    ]  # fmt: skip
    overlapped, color = own["overlapped_s"].astype(float), SHARE["exposed_s"][0]
    lower_bound, texts = own["unknown_calls"] > 0, _shares("overlapped", overlapped, whole, "the step")
    texts = [text.replace(": ", ": ≥ ") if below else text for text, below in zip(texts, lower_bound, strict=True)]
    pattern = {"shape": "/", "size": 5, "solidity": 0.45, "fgcolor": color, "bgcolor": "rgba(0,0,0,0)"}
    base = listed((ends["compute_s"] - overlapped.fillna(0)).clip(lower=0), 1e3)
    place: dict[str, Any] = {"base": base, "y": [row + _BELOW for row in rows], "width": 0.2}
    place |= {"marker": {"color": color, "line": {"width": 0}, "pattern": pattern}}
    traces.append(case_bars(own, 1e3 * overlapped, "overlapped (inside compute)", color, texts, **place))
    exposed = {
        "type": "scatter", "mode": "text", "x": listed(ends["idle_s"], 1e3), "y": above, "cliponaxis": False,
        "text": [f" {format.percent(share)}" for share in own["exposed_share"]], "textposition": "middle right",
        "customdata": own["case_id"].to_list(), "showlegend": False, "hoverinfo": "skip",
    }  # fmt: skip
    look: dict[str, Any] = {"barmode": "overlay", "legend": PARTS_LEGEND, "margin": _MARGIN, "xaxis": FROM_ZERO}
    traces.append(exposed)
    return in_rows(titled(own), own["shown"], "an instrumented step (ms)", traces, head=120, least=2, **look)


def usage(seen: SessionData) -> list[Panel]:
    """Return the share of the devices' peak FLOP/s, or the FLOP/s if no peak is known."""
    cases = measured(seen.once(page_cases))
    return [_usage(own) for own in by_work(cases[cases["flops_per_s"].notna()])]


def _usage(own: pd.DataFrame) -> Panel:
    texts = [
        f"{format.flop_rate(flops)}<br>"
        + (f"MFU {format.digits(mfu * 100, 2)}%" if format.known(mfu) else f"MFU unknown: {plain(reason or '')}")
        for flops, mfu, reason in zip(own["flops_per_s"], own["mfu"], own["mfu_reason"], strict=True)
    ]
    if own["mfu"].notna().any():
        return _one_bar(own, 100 * own["mfu"].astype(float), "#5F6CAF", texts, "model FLOPs utilization (%)")
    factor, prefix = format.scaled(own["flops_per_s"].max())
    return _one_bar(own, own["flops_per_s"] / factor, "#5F6CAF", texts, f"{prefix}FLOP/s of all ranks")


def energy(seen: SessionData) -> list[Panel]:
    """Return the joules of a step."""
    cases = measured(seen.once(page_cases))
    return [_energy(own) for own in by_work(cases[cases["joules_per_step"].notna()])]


def _energy(own: pd.DataFrame) -> Panel:
    texts = [
        f"{format.joules(step)} per step, {format.joules(token)} per {unit.removesuffix('s')}"
        for step, token, unit in zip(own["joules_per_step"], own["joules_per_token"], own["unit"], strict=True)
    ]
    return _one_bar(own, own["joules_per_step"], "#009E73", texts, "energy of a step (J)")


def _one_bar(own: pd.DataFrame, x: pd.Series, color: str, texts: list[str], title: str) -> Panel:
    bar = case_bars(own, x, "", color, texts)
    return in_rows(titled(own), own["shown"], title, [bar], head=90, least=2, bargap=0.35, showlegend=False)
