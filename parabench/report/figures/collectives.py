"""Figures of collectives: a panel for each operation and number of ranks, a line for each algorithm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.collectives.cost_model import Fit
from parabench.plan.collective_case import size_text
from parabench.report.figures.axes import bytes_axis
from parabench.report.figures.figures import (
    ERROR_BARS,
    FROM_ZERO,
    Panel,
    Trace,
    lay_out,
    listed,
    marks,
    plain,
    spread_text,
)
from parabench.report.palette import Style, algorithm_style
from parabench.store.results import records


def bus(cases: pd.DataFrame, sizes: pd.DataFrame) -> list[Panel]:
    """Return bus bandwidth against size, from rows of `bus_table` of one form."""
    # GB on the bus: over a time, a bandwidth.
    moved = sizes["busbw"] * sizes["call_s"]
    hovers = [
        f"{format.digits(row['busbw'])} GB/s in {format.digits(row['call_s'] * 1e6)} µs<br>{spread_text(row['spread'])}"
        f"<br>{row['good']} of {format.count(row['launches'], 'launch')} ok"
        for row in records(sizes)
    ]
    up, down = moved / sizes["low_s"] - sizes["busbw"], sizes["busbw"] - moved / sizes["high_s"]
    table = sizes.assign(y=sizes["busbw"], up=up, down=down, hover=hovers)
    panels = []
    for title, lines in _panels(cases, table):
        traces = []
        for name, style, rows in lines:
            bars = {"array": rows["up"].tolist(), "arrayminus": rows["down"].tolist()}
            more = {"mode": "lines+markers", "line": style.line, "error_y": ERROR_BARS | bars}
            traces.append(_points(name, style, rows, 8, **more))
        panels.append(_panel(title, traces, "bus bandwidth (GB/s)", FROM_ZERO))
    return panels


def fitted(cases: pd.DataFrame, fits: Sequence[Fit]) -> list[Panel]:
    """Return the times of launches, and lines through the times of the fitted models."""
    columns = ["case", "bytes", "call_s", "residual"]
    points = pd.concat([fit.points[columns] for fit in fits]) if fits else pd.DataFrame(columns=columns)
    fit_s = points["call_s"] * (1 + points["residual"])
    times = zip(points["call_s"], fit_s, strict=True)
    hovers = [f"{format.milliseconds(call_s)}, fitted {format.milliseconds(fit)}" for call_s, fit in times]
    points = points.rename(columns={"case": "case_id"}).assign(y=points["call_s"] * 1e3, fit=fit_s * 1e3, hover=hovers)
    panels = []
    for title, lines in _panels(cases, points):
        traces = []
        for name, style, rows in lines:
            own = rows.drop_duplicates(["case_id", "bytes"])
            traces += [
                {
                    "type": "scatter", "mode": "lines", "name": plain(name), "legendgroup": name, "showlegend": False,
                    "x": own["bytes"].tolist(), "y": listed(own["fit"]), "customdata": own["case_id"].tolist(),
                    "hoverinfo": "skip", "line": style.line | {"width": 1.5},
                },
                _points(name, style, rows, 7, legendgroup=name, opacity=0.75),
            ]  # fmt: skip
        panels.append(_panel(title, traces, "time (ms)", {"type": "log", "tickformat": "~g"}))
    return panels


def _points(name: str, style: Style, rows: pd.DataFrame, size: int, **more: Any) -> Trace:
    texts = zip(rows["bytes"], rows["hover"], strict=True)
    hovers = [f"<b>{plain(name)}</b>, {size_text(count)}<br>{text}" for count, text in texts]
    marker = {"color": style.color, "size": size, "symbol": style.symbol}
    ids = rows["case_id"].tolist()
    return marks(rows["bytes"], listed(rows["y"]), plain(name), hovers, marker, customdata=ids, **more)


def _panels(cases: pd.DataFrame, table: pd.DataFrame) -> Iterator[tuple[str, list[tuple[str, Style, pd.DataFrame]]]]:
    """Yield the title of each panel, and its lines with the rows of `table` by size, in the order of `cases`."""
    table = table.drop(columns="algorithm", errors="ignore")
    rows = cases[["case_id", "question", "line", "algorithm"]].merge(table, on="case_id")
    for title, panel in rows.groupby("question", sort=False):
        drawn: list[tuple[str, Style, pd.DataFrame]] = []
        before: set[str] = set()
        for name, own in panel.groupby("line", sort=False):
            algorithm = str(own["algorithm"].iloc[0])
            style = algorithm_style(algorithm)
            # One more line of an algorithm, with other ranks a node, is dotted.
            if algorithm in before:
                style = style._replace(dash="dot", symbol=f"{style.symbol}-open")
            before.add(algorithm)
            drawn.append((str(name), style, own.sort_values("bytes", kind="stable")))
        yield str(title), drawn


def _panel(title: str, traces: list[Trace], y: str, yaxis: dict[str, Any]) -> Panel:
    xaxis = bytes_axis(size for trace in traces for size in trace["x"])
    return Panel(title, lay_out(traces, "size of the whole buffer", y, xaxis=xaxis, yaxis=yaxis), 420)
