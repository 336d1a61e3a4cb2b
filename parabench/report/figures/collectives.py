"""Figures of collectives: a panel for each operation and number of ranks, a line for each algorithm."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.collectives.cost_model import Fit
from parabench.plan.collective_case import size_text
from parabench.report.figures.figures import (
    ERROR_BARS,
    FROM_ZERO,
    Panel,
    Trace,
    lay_out,
    listed,
    marks,
    plain,
    round_numbers,
)
from parabench.report.palette import Style, algorithm_style

# Ticks of an axis of sizes.
_MOST_TICKS = 8
Row = Mapping[Any, Any]


def bus(cases: pd.DataFrame, sizes: pd.DataFrame) -> list[Panel]:
    """Return bus bandwidth against size, from rows of `bus_table` of one form."""
    panels = []
    for title, lines in _panels(cases, sizes):
        traces = [_bandwidth(name, style, rows) for name, style, rows in lines]
        panels.append(_panel(title, traces, "bus bandwidth (GB/s)", FROM_ZERO))
    return panels


def _bandwidth(name: str, style: Style, rows: Sequence[Row]) -> Trace:
    # GB on the bus: over a time, a bandwidth.
    moved = [row["busbw"] * row["call_s"] for row in rows]
    busbw = [row["busbw"] for row in rows]
    bars = {
        "array": [gb / row["low_s"] - row["busbw"] for gb, row in zip(moved, rows, strict=True)],
        "arrayminus": [row["busbw"] - gb / row["high_s"] for gb, row in zip(moved, rows, strict=True)],
    }
    hovers = [
        f"<b>{plain(name)}</b>, {size_text(row['bytes'])}<br>"
        f"{format.digits(row['busbw'])} GB/s in {format.digits(row['call_s'] * 1e6)} µs<br>{_spread(row['spread'])}<br>"
        f"{row['good']} of {format.count(row['launches'], 'launch')} ok"
        for row in rows
    ]
    more = {"mode": "lines+markers", "line": style.line, "error_y": ERROR_BARS | bars}
    return _points(name, style, rows, busbw, hovers, 8, **more)


def _spread(spread: float) -> str:
    known = format.known(spread)
    return f"slowest launch over fastest: {format.signed(spread)}" if known else "spread unknown: one launch"


def fitted(cases: pd.DataFrame, fits: Sequence[Fit]) -> list[Panel]:
    """Return the times of launches, `call_s`, and lines through the times of the fitted models, `fitted_s`."""
    columns = ["case", "bytes", "call_s", "residual"]
    points = pd.concat([fit.points[columns] for fit in fits]) if fits else pd.DataFrame(columns=columns)
    points = points.rename(columns={"case": "case_id"}).assign(fitted_s=points["call_s"] * (1 + points["residual"]))
    panels = []
    for title, lines in _panels(cases, points):
        traces = [
            trace for name, style, rows in lines for trace in (_line(name, style, rows), _times(name, style, rows))
        ]
        ms = [y for trace in traces for y in trace["y"] if y > 0]
        ticks = round_numbers(min(ms, default=1) / 10, max(ms, default=1) * 10)
        axis = {"type": "log", "tickvals": ticks, "ticktext": [format.digits(tick, 1) for tick in ticks]}
        panels.append(_panel(title, traces, "time (ms)", axis))
    return panels


def _line(name: str, style: Style, rows: Sequence[Row]) -> Trace:
    own = list({(row["case_id"], row["bytes"]): row for row in rows}.values())
    return {
        "type": "scatter", "mode": "lines", "name": plain(name), "legendgroup": name, "showlegend": False,
        "x": [math.log2(row["bytes"]) for row in own], "y": listed((row["fitted_s"] for row in own), 1e3),
        "customdata": [row["case_id"] for row in own], "hoverinfo": "skip", "line": style.line | {"width": 1.5},
    }  # fmt: skip


def _times(name: str, style: Style, rows: Sequence[Row]) -> Trace:
    hovers = [
        f"<b>{plain(name)}</b>, {size_text(row['bytes'])}<br>"
        f"{format.milliseconds(row['call_s'])}, fitted {format.milliseconds(row['fitted_s'])}"
        for row in rows
    ]
    measured = listed((row["call_s"] for row in rows), 1e3)
    return _points(name, style, rows, measured, hovers, 7, legendgroup=name, opacity=0.75)


def _points(
    name: str, style: Style, rows: Sequence[Row], y: list[float], hovers: list[str], size: int, **more: Any
) -> Trace:
    x = [math.log2(row["bytes"]) for row in rows]
    marker = {"color": style.color, "size": size, "symbol": style.symbol}
    return marks(x, y, plain(name), hovers, marker, customdata=[row["case_id"] for row in rows], **more)


def _panels(cases: pd.DataFrame, table: pd.DataFrame) -> Iterator[tuple[str, list[tuple[str, Style, list[Row]]]]]:
    """Yield the title of each panel, and its lines with the rows of `table` by size, in the order of `cases`."""
    algorithms = dict(zip(cases["line"], cases["algorithm"], strict=True))
    # In the order of the cases.
    rows = cases[["case_id", "question", "line"]].merge(table, on="case_id")
    for title, panel in rows.groupby("question", sort=False):
        drawn: list[tuple[str, Style, list[Row]]] = []
        before: set[str] = set()
        for name, own in panel.groupby("line", sort=False):
            algorithm = algorithms[name]
            style = algorithm_style(algorithm)
            # One more line of an algorithm, with other ranks a node, is dotted.
            if algorithm in before:
                style = style._replace(dash="dot", symbol=f"{style.symbol}-open")
            before.add(algorithm)
            records: list[Row] = [*own.sort_values("bytes", kind="stable").to_dict("records")]
            drawn.append((str(name), style, records))
        yield str(title), drawn


def _panel(title: str, traces: list[Trace], y: str, yaxis: dict[str, Any]) -> Panel:
    sizes = sorted({round(2**x) for trace in traces for x in trace["x"]})
    shown = sizes[:: math.ceil(len(sizes) / _MOST_TICKS)]
    xaxis = {"tickvals": [math.log2(size) for size in shown], "ticktext": [size_text(size) for size in shown]}
    return Panel(title, lay_out(traces, "size of the whole buffer", y, xaxis=xaxis, yaxis=yaxis), 420)
