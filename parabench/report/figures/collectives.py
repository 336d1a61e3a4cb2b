"""Bus bandwidth against size: a figure for each operation and number of ranks, a line for each algorithm."""

from __future__ import annotations

import pandas as pd

from parabench.analysis import format
from parabench.plan.collective_case import size_text
from parabench.report.figures.axes import bytes_axis
from parabench.report.figures.figures import ERROR_BARS, FROM_ZERO, Panel, Trace, lay_out, listed, marks, plain
from parabench.report.palette import algorithm_style, in_native_order
from parabench.store.results import records


def bus(sizes: pd.DataFrame) -> list[Panel]:
    """Return the figures of `bus_table` rows of one form, which have a column `question`, the title."""
    panels = []
    for title, rows in sizes.groupby("question", sort=False):
        lines = {str(name): line for name, line in rows.groupby("algorithm")}
        traces = [_line(name, lines[name]) for name in in_native_order(lines)]
        xaxis = bytes_axis(size for trace in traces for size in trace["x"])
        figure = lay_out(traces, "size of the whole buffer", "bus bandwidth (GB/s)", xaxis=xaxis, yaxis=FROM_ZERO)
        panels.append(Panel(str(title), figure, 420))
    return panels


def _line(name: str, rows: pd.DataFrame) -> Trace:
    rows = rows.sort_values("bytes", kind="stable")
    low, high = (rows["busbw"] * rows["call_s"] / rows[end] for end in ("high_s", "low_s"))
    rows, style = rows.assign(low=low, high=high), algorithm_style(name)
    hovers = [
        f"<b>{plain(name)}</b>, {size_text(row['bytes'])}<br>{format.digits(row['busbw'])} GB/s "
        f"({format.digits(row['low'])} to {format.digits(row['high'])})"
        for row in records(rows)
    ]
    ends = {"array": listed(high - rows["busbw"]), "arrayminus": listed(rows["busbw"] - low)}
    marker = {"color": style.color, "size": 8, "symbol": style.symbol}
    more = {"mode": "lines+markers", "line": style.line, "error_y": ERROR_BARS | ends}
    return marks(rows["bytes"], listed(rows["busbw"]), plain(name), hovers, marker, **more)
