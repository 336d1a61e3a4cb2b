"""Sections of the answer: the ranking, and step time against peak memory."""

from __future__ import annotations

from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.ranking.best import answered
from parabench.analysis.ranking.sentences import sentences
from parabench.analysis.session import SessionData
from parabench.report.cases import numbers_of, page_cases
from parabench.report.figures import (
    ALL,
    GREY,
    LEGEND_NAME,
    Panel,
    by_work,
    cut,
    error_bars,
    in_rows,
    lay_out,
    listed,
    points,
    strategy_style,
    titled,
    vertical,
)
from parabench.report.spec import Section, nothing_to_draw
from parabench.store.record import MIB
from parabench.store.results import records


def verdicts(seen: SessionData) -> list[dict[str, Any]]:
    """Return the answer of each workload for the first tab of the page.

    - `heading`: the name of the workload if there are several.
    - `verdict`: the first sentences; `leads`: the others; `decided`: whether configurations are distinguishable.
    - `numbers`: the results of the best (`cases.numbers_of`); `label` and `code`: its name, and its lines of Python.
    - `clear`: whether the best is the winner.
    """
    cases = {row["case_id"]: row for row in records(seen.once(page_cases))}
    found = []
    for work in seen.once(answered):
        workload, texts = work["workloads"][0], sentences(work)
        named = "" if workload["winner"] or not workload["decided"] else "best estimate: "
        first = next((row for row in work["candidates"] if row["place"] == "best"), None)
        found.append(
            {
                "heading": workload["workload"],
                "verdict": " ".join(texts[:2]),
                "leads": texts[2:],
                "decided": workload["decided"],
                "numbers": numbers_of(cases[first["case_id"]], named) if first else [],
                "label": first["label"] if first else "",
                "code": first["code"] if first and workload["decided"] else "",
                "clear": workload["winner"] is not None,
            }
        )
    return found


def ranking_section(seen: SessionData) -> Section:
    """Return the ranking section: slowdowns relative to the best, or step times if no interval is known."""
    caption = (
        "Slowdown of each selected configuration relative to the best, with 95% intervals; left is better. Filled "
        "marks are not statistically distinguishable from the best."
    )
    reading = (
        "Intervals hold for all comparisons with the best at once (Hsu's multiple comparisons with the best). A "
        "configuration may be the best if its interval reaches 0. Intervals exclude changes that affect all "
        "configurations of a repetition or a shared launch. An eliminated configuration was slower than the best by at "
        "least the bound next to its name. The fastest configuration is eliminated by mistake in at most 1 of 20 runs."
    )
    cases = seen.once(page_cases)
    if not cases["compared"].any():
        caption = (
            "Step time of the fastest selected configurations; lower is better. Filled marks are not statistically "
            "distinguishable from the fastest."
        )
        reading = (
            "The line spans the fastest to the slowest launch of a configuration. The axis does not start at zero."
        )
    empty = nothing_to_draw(seen) or "No selected configuration has a step time."
    panels = [_ranking(own) for own in by_work(cases.dropna(subset="step_time_s"))]
    return Section("ranking", "Ranking", caption, empty, panels=panels, reading=reading)


def _ranking(own: pd.DataFrame) -> Panel:
    """Return the ranking of a workload: slowdowns relative to the best, or step times if no interval is known."""
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
        x, low, high, factor, also = group["step_time_s"], group["low_s"], group["high_s"], 1e3, []
        if compared:
            x, low, high, factor = group["slower"], group["slower_low"], group["slower_high"], 100
            also = [*map(_slower, records(group))]
        bars = error_bars(x, low, high, factor, color=style.color)
        look = {"error_x": bars, "showlegend": False}
        text, filled = cut(str(name), LEGEND_NAME), group["ranking"] != ""
        traces.append(points(group, listed(x, factor), group["row"], style, text, filled, also, **look))
    title = "slower than the best (%)" if compared else "step time (ms)"
    shapes = [vertical(0, width=1)] if compared else []
    return in_rows(titled(own), names, title, traces, head=60, shapes=shapes)


def _slower(row: dict[Any, Any]) -> str:
    text = ""
    if row["slower"]:
        text = f"{format.percent(abs(row['slower']))} {'slower' if row['slower'] > 0 else 'faster'} than the best"
    if format.known(row["slower_low"]):
        text += f" (95%: {format.percent(row['slower_low'])} to {format.percent(row['slower_high'])})"
    return text


def front_section(seen: SessionData) -> Section | None:
    """Return the section of step time against peak memory; None if one configuration is best in both."""
    cases = seen.once(page_cases)
    if not cases["front"].any():
        return None
    comparable = cases[cases["ranked"] & cases["step_time_s"].notna() & cases["mean_peak_bytes"].notna()]
    return Section(
        "front",
        "Step time against peak memory",
        "Left and down is better. Filled marks, joined by the line, are Pareto-optimal.",
        "The selected configurations have no trade-off between step time and peak memory.",
        panels=[_front(own) for own in by_work(comparable) if own["front"].any()],
        reading="A configuration is Pareto-optimal unless another is significantly better in one of the two, and not "
        "significantly worse in the other. Filters do not change this. Points are means over launches. Memory is from "
        "the rank with the highest peak. The axes do not start at zero.",
    )


def _front(own: pd.DataFrame) -> Panel:
    best = own[own["front"]].sort_values("step_time_s")
    line = {
        "type": "scatter", "mode": "lines", "name": "Pareto-optimal", "meta": ALL, "hoverinfo": "skip",
        "x": listed(best["step_time_s"], 1e3), "y": listed(best["mean_peak_bytes"], 1 / MIB),
        "line": {"color": GREY, "width": 1.5, "shape": "hv"},
    }  # fmt: skip
    traces = [line]
    for name, group in own.groupby("strategy", sort=False):
        style, text = strategy_style(str(name)), cut(str(name), LEGEND_NAME)
        also = [f"{format.mebibytes(peak)} on the rank with the highest peak" for peak in group["mean_peak_bytes"]]
        x, y = listed(group["step_time_s"], 1e3), listed(group["mean_peak_bytes"], 1 / MIB)
        traces.append(points(group, x, y, style, text, group["front"], also, legendgroup=str(name)))
    figure = lay_out(traces, "step time (ms)", "peak memory of a rank (MiB)")
    return Panel(titled(own), figure, 360 + 16 * own["strategy"].nunique())
