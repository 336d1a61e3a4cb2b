"""Figures of the answer: a point for each configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.session import SessionData
from parabench.report.cases import page_cases
from parabench.report.figures.figures import (
    ALL,
    ERROR_BARS,
    GREY,
    LEGEND_NAME,
    Panel,
    by_work,
    cut,
    in_rows,
    launch_bars,
    lay_out,
    listed,
    measured,
    points,
    titled,
    vertical,
)
from parabench.report.palette import strategy_style
from parabench.store.record import MIB
from parabench.store.results import records


def ranking(seen: SessionData) -> list[Panel]:
    """Return how much slower than the best each configuration is, or its step time if no interval is known."""
    return [_ranking(own) for own in by_work(measured(seen.once(page_cases)))]


def _ranking(own: pd.DataFrame) -> Panel:
    compared = bool(own["compared"].iloc[0])
    if compared:
        own = own[own["slower"].notna()].sort_values("slower", kind="stable")
    own = own.assign(row=range(len(own)))
    names = [
        f"{row['shown']} (eliminated: ≥ {format.percent(row['left_at_least'])} slower)"
        if format.known(row["left_after_repetition"])
        else row["shown"]
        for row in records(own)
    ]
    traces = []
    for name, group in own.groupby("strategy", sort=False):
        style = strategy_style(str(name))
        if compared:
            low, high = (group[end].fillna(group["slower"]) for end in ("slower_low", "slower_high"))
            ends = {"array": high - group["slower"], "arrayminus": group["slower"] - low}
            bars = ERROR_BARS | {end: listed(value, 100) for end, value in ends.items()}
            x, more = listed(group["slower"], 100), {"also": map(_slower, records(group))}
        else:
            x, bars, more = listed(group["step_time_s"], 1e3), launch_bars(group), {}
        bars["color"] = style.color
        text = cut(str(name), LEGEND_NAME)
        traces.append(points(group, x, group["row"], style, text, error_x=bars, showlegend=False, **more))
    title = "slower than the best (%)" if compared else "step time (ms)"
    shapes = [vertical(0, width=1)] if compared else []
    return in_rows(titled(own), names, title, traces, head=60, shapes=shapes)


def _slower(row: Mapping[Any, Any]) -> str:
    text = ""
    if row["slower"]:
        text = f"{format.percent(abs(row['slower']))} {'slower' if row['slower'] > 0 else 'faster'} than the best"
    if format.known(row["slower_low"]):
        text += f" (95%: {format.percent(row['slower_low'])} to {format.percent(row['slower_high'])})"
    return text


def front(seen: SessionData) -> list[Panel]:
    """Return step time against peak memory. Filled points are Pareto-optimal."""
    cases = measured(seen.once(page_cases))
    comparable = cases[cases["ranked"] & cases["mean_peak_bytes"].notna()]
    return [_front(own) for own in by_work(comparable) if own["front"].any()]


def _front(own: pd.DataFrame) -> Panel:
    best = own[own["front"]].sort_values("step_time_s")
    line = {
        "type": "scatter", "mode": "lines", "name": "beaten by none", "meta": ALL, "hoverinfo": "skip",
        "x": listed(best["step_time_s"], 1e3), "y": listed(best["mean_peak_bytes"], 1 / MIB),
        "line": {"color": GREY, "width": 1.5, "shape": "hv"},
    }  # fmt: skip
    traces = [line]
    for name, group in own.groupby("strategy", sort=False):
        also = [f"{format.mebibytes(peak)} on the rank with the highest peak" for peak in group["mean_peak_bytes"]]
        x, y = listed(group["step_time_s"], 1e3), listed(group["mean_peak_bytes"], 1 / MIB)
        # Filled here if no other configuration is better in both.
        filled, text = group.assign(ranking=group["front"]), cut(str(name), LEGEND_NAME)
        traces.append(points(filled, x, y, strategy_style(str(name)), text, legendgroup=str(name), also=also))
    figure = lay_out(traces, "step time (ms)", "peak memory of a rank (MiB)")
    return Panel(titled(own), figure, 360 + 16 * own["strategy"].nunique())
