"""Readings over time: memory, power, clocks and temperature, with the launch's phases behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from parabench.report.figures.figures import Panel, Trace, lay_out, listed, marks, plain
from parabench.store.record import MIB, Phase

# Okabe and Ito's, for lines of devices and ranks; with more of them colours come again, with other dashes.
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("solid", "dash", "dot", "dashdot")
# Seen on light and dark pages.
_SHADE = {
    Phase.WARMUP: ("rgba(128,128,128,0.10)", "warm-up"),
    Phase.MEASURE: ("rgba(0,114,178,0.13)", "timed"),
    Phase.INSTRUMENT: ("rgba(230,159,0,0.16)", "instrumented"),
    Phase.PROFILE: ("rgba(204,121,167,0.16)", "profiled"),
}
_THROTTLED = "#D55E00"
# Two points a pixel of a wide page; of each stretch the lowest and the highest stay, so that no peak is lost.
MOST_POINTS = 400
# More lines than this cannot be told apart.
MOST_LINES = 16

Phases = Mapping[str, tuple[float, float]]


def memory_panel(title: str, timeline: pd.DataFrame, phases: Phases) -> Panel:
    """A line per place: device, rank on it, or rank's process."""
    lines = timeline.rename(columns={"place": "name", "bytes": "value"}).assign(value=timeline["bytes"] / MIB)
    return _over_time(title, lines, phases, "memory in use (MiB)", "%{y:,.0f} MiB")


def device_panel(
    title: str, lines: pd.DataFrame, phases: Phases, axis: str, unit: str, throttled: pd.DataFrame | None = None
) -> Panel:
    """A line per device of `lines` (`node, device, place, t_s, value`), named by its place; `throttled` (`node, device,
    t_s, why`) are marked on them."""
    panel = _over_time(title, lines.rename(columns={"place": "name"}), phases, axis, f"%{{y:,.4~g}} {unit}")
    if throttled is not None and len(throttled):
        marked = throttled.merge(lines, on=["node", "device", "t_s"])
        marker = {"symbol": "triangle-down", "size": 9, "color": _THROTTLED}
        hover = {"hovertemplate": "%{x:.2f} s: throttled by %{customdata}<extra></extra>"}
        places = marked["t_s"], listed(marked["value"])
        panel.figure["data"].append(marks(*places, "throttled", list(marked["why"]), marker, **hover))
    return panel


def _over_time(title: str, lines: pd.DataFrame, phases: Phases, axis: str, said: str) -> Panel:
    traces: list[Trace] = []
    names = list(dict.fromkeys(lines["name"]))[:MOST_LINES]
    for number, name in enumerate(names):
        points = thinned(lines[lines["name"] == name])
        traces.append(
            {
                "type": "scatter",
                "x": [round(float(t_s), 3) for t_s in points["t_s"]],
                "y": listed(points["value"].round(3)),
                "mode": "lines",
                "name": plain(name),
                "connectgaps": False,
                "line": {
                    "color": LINES[number % len(LINES)],
                    "width": 2,
                    "dash": DASHES[number // len(LINES) % len(DASHES)],
                },
                "hovertemplate": f"%{{x:.2f}} s: {said}<extra>%{{fullData.name}}</extra>",
            }
        )
    shapes: list[dict[str, Any]] = []
    for phase, (begin_s, end_s) in phases.items():
        if phase in _SHADE:
            colour, meaning = _SHADE[Phase(phase)]
            shapes.append(
                {
                    "type": "rect", "x0": begin_s, "x1": end_s, "xref": "x", "y0": 0, "y1": 1, "yref": "y domain",
                    "fillcolor": colour, "line": {"width": 0}, "layer": "below",
                }
            )  # fmt: skip
            # A legend entry instead of a text in the figure: short phases have no room for one.
            line = {"width": 1, "color": "#888888"}
            traces.append(
                {
                    "type": "scatter", "x": [None], "y": [None], "mode": "markers", "name": meaning,
                    "marker": {"symbol": "square", "size": 13, "color": colour, "line": line}, "hoverinfo": "skip",
                }
            )  # fmt: skip
    figure = lay_out(
        traces,
        "seconds after the launch began",
        axis,
        showlegend=True,
        shapes=shapes,
        # A change shows in its true size where zero means something; nobody counts from zero degrees Celsius.
        yaxis={"rangemode": "normal" if axis.endswith("(°C)") else "tozero"},
    )
    return Panel(title, figure, 260 + 20 * (len(names) + len(phases)))


def thinned(line: pd.DataFrame) -> pd.DataFrame:
    """At most MOST_POINTS points of a line: of each stretch the lowest and the highest, in their order, and gaps."""
    if len(line) <= MOST_POINTS:
        return line
    line = line.reset_index(drop=True)
    stretch = pd.Series(range(len(line))) * (MOST_POINTS // 2) // len(line)
    known = line.dropna(subset=["value"]).groupby(stretch)["value"]
    empty = line.index[line["value"].isna()].to_series().groupby(stretch).first()
    kept = {0, len(line) - 1, *known.idxmin(), *known.idxmax(), *empty}
    return line.loc[sorted(kept)]
