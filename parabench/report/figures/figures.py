"""Plotly figures from analysed tables. Only positions on the page are computed here.

A figure is plotly's JSON, {"data": traces, "layout": ...}, as dictionaries. Plotly's objects would take half of a
report's time; tests validate with them. The page sets the colors of text, grid and background for light, dark and
print.

The page's filters select points by `customdata`, or a whole trace by its `meta`:

- the id of a configuration
- "a|b" if it is shown while any of several configurations is selected
- "all" if it is hidden while a filter is active

With `rows` in the figure's `meta`, each name of the y axis is a row. The page shows the first of the selected rows
(`in_rows`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.report.palette import Style
from parabench.strategies import entry_of

Trace = dict[str, Any]
Figure = dict[str, Any]
# The mark of a strategy without communication.
NOT_RANKED = "baseline, not ranked"
# A gray that is visible on white and on black.
GREY = "#87909A"


@dataclass(frozen=True)
class Panel:
    """One figure, its heading within the section, and its height in pixels. If `wide`, it has the width of the page.
    `case` is the id of its case, if it shows only one."""

    title: str
    figure: Figure
    height: int = 380
    wide: bool = False
    case: str = ""


def measured(cases: pd.DataFrame) -> pd.DataFrame:
    """Return the cases with a step time, in their order, fastest first."""
    return cases[cases["step_time_s"].notna()]


def lay_out(traces: list[Trace], x: str, y: str, **more: Any) -> Figure:
    """Return a figure with titles of its axes; `more` are further layout settings. When it is drawn, `themed` of
    `reports/script/charts/layout.js` adds the style that all figures share."""
    axes = {name: {"title": {"text": title}} | more.pop(name, {}) for name, title in (("xaxis", x), ("yaxis", y))}
    return {"data": traces, "layout": more | axes}


def marked(label: str, strategy: str) -> str:
    """Return `label`, with a note if the strategy is not ranked."""
    return label if entry_of(strategy).ranked else f"{label} ({NOT_RANKED})"


def unranked(strategies: Iterable[str], *, dashed: bool = False) -> str:
    """Return the sentence about strategies in a figure that are not ranked, if there are any. They are marked, or
    `dashed` lines."""
    found = [name for name in dict.fromkeys(strategies) if not entry_of(name).ranked]
    mark = " (dashed)" if dashed else ""
    return f" {', '.join(found)}{mark}: no-communication baseline, not ranked." if found else ""


def bars(y: Any, begin_s: Any, length_s: Any, name: str, hovers: list[str], **more: Any) -> Trace:
    """Return horizontal bars on a time axis in ms, from their starts and lengths in seconds."""
    x, base = listed(length_s, 1e3), listed(begin_s, 1e3)
    return {"type": "bar", "orientation": "h", "y": y, "x": x, "base": base, "name": name, **_hovers(hovers), **more}


def marks(x: Any, y: Any, name: str, hovers: list[Any], marker: dict[str, Any], **more: Any) -> Trace:
    """Return marks at places of both axes."""
    own = {"type": "scatter", "mode": "markers", "x": listed(x), "y": y, "name": name, "marker": marker}
    return own | _hovers(hovers) | more


def _hovers(texts: list[Any]) -> Trace:
    return {"hovertext": texts, "hovertemplate": "%{hovertext}<extra></extra>"}


# Derived from all configurations, so hidden while a filter is active.
ALL = "all"
# Rows of a figure that are shown at once.
MOST_ROWS = 16
# Characters of a name in a legend.
LEGEND_NAME = 24
ERROR_BARS = {"type": "data", "symmetric": False, "thickness": 1.2, "width": 4}
# Values within it are alike.
BAND = {"type": "rect", "layer": "below", "line": {"width": 0}, "fillcolor": "rgba(107, 127, 147, 0.18)"}
FROM_ZERO = {"rangemode": "tozero"}
# A legend of parts, in the order of drawing.
PARTS_LEGEND = {"traceorder": "normal"}


def vertical(x: float, **line: Any) -> dict[str, Any]:
    """Return a vertical line over the whole height, behind the marks."""
    style = {"color": GREY, "width": 1.5} | line
    return {"type": "line", "layer": "below", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": style}


def points(cases: pd.DataFrame, x: Any, y: Any, style: Style, name: str, **more: Any) -> Trace:
    """Return a point for each of the `cases` (`page_cases`), filled if it may be the fastest of its workload. A list
    `also` has more text for hovering over each."""
    hovers = cases["hover"].to_list()
    if "also" in more:
        hovers = ["<br>".join(filter(None, pair)) for pair in zip(hovers, more.pop("also"), strict=True)]
    symbols = [style.symbol + ("" if ranking else "-open") for ranking in cases["ranking"]]
    marker = {"color": style.color, "size": 9, "symbol": symbols}
    return marks(x, listed(y), name, hovers, marker, customdata=cases["case_id"].to_list(), **more)


def case_bars(cases: pd.DataFrame, x: Any, name: str, color: str, texts: Iterable[str], **more: Any) -> Trace:
    """Return a horizontal bar for each of the `cases` (`page_cases`), in their order. `texts` are for hovering, before
    what is shown of each case everywhere."""
    hovers = ["<br>".join(filter(None, pair)) for pair in zip(texts, cases["hover"], strict=True)]
    marker = {"color": color, "line": {"width": 0}}
    own = {"type": "bar", "orientation": "h", "y": [*range(len(cases))], "x": listed(x), "name": name, "marker": marker}
    return own | {"customdata": cases["case_id"].to_list()} | _hovers(hovers) | more


def launch_bars(cases: pd.DataFrame, scale: Any = 1e3) -> dict[str, Any]:
    """Return error bars from the fastest to the slowest launch of each case, in seconds times `scale`."""
    low, step, high = (cases[name].to_numpy(dtype=float) for name in ("low_s", "step_time_s", "high_s"))
    # A step time is a mean of logarithms, so one launch can differ from it by rounding.
    parts = {"array": (high / step - 1).round(9), "arrayminus": (1 - low / step).round(9)}
    ends = {name: np.maximum(part, 0) * step * scale for name, part in parts.items()}
    return ERROR_BARS | {name: listed(value) for name, value in ends.items()}


def in_rows(
    title: str,
    names: Iterable[str],
    x: str,
    traces: list[Trace],
    *,
    head: int,
    least: int = 1,
    which: str = "fastest",
    most: int = MOST_ROWS,
    order: list[int] | None = None,
    wide: bool = True,
    **more: Any,
) -> Panel:
    """Return a figure with a row for each name.

    Args:
        x: The title of the axis.
        head: The height of axis and legend in pixels.
        least: The number of text lines in a row.
        most: The number of rows that the page shows: the first ones, or those with the lowest `order`.
        which: A description of these rows: "the 16 fastest of 20 configurations".
        more: Layout settings.
    """
    axis = name_bars(names)
    rows = {"most": most, "which": which, "head": head, "least": least} | ({"order": order} if order else {})
    figure = lay_out(traces, x, "", yaxis=axis, meta={"rows": rows}, **more)
    return Panel(title, figure, head + max(60, (12 + 16 * least) * min(most, len(axis["ticktext"]))), wide)


def by_work(cases: pd.DataFrame) -> Iterable[pd.DataFrame]:
    """Return the cases of each workload."""
    return [own for _, own in cases.groupby("work", sort=False)]


def titled(cases: pd.DataFrame, *parts: str) -> str:
    """Return a title from the name of the workload and `parts`."""
    return " · ".join(filter(None, (cases["heading"].iloc[0], *parts)))


def name_bars(names: Iterable[str]) -> dict[str, Any]:
    """Return a y axis with the names, the first on top. `themed` of `reports/script/charts/layout.js` breaks them into
    lines."""
    shown = [plain(name) for name in names]
    return {
        "tickvals": list(range(len(shown))), "ticktext": shown, "showgrid": False, "range": [len(shown) - 0.5, -0.5],
    }  # fmt: skip


def name_case(traces: Iterable[Trace], label: str) -> None:
    """Show the name of the case when hovering over a mark of the traces."""
    said = plain(label).replace("%", "&#37;")  # in a template "%{" begins a name
    for trace in traces:
        if "hovertemplate" in trace:
            trace["hovertemplate"] = f"<b>{said}</b><br>{trace['hovertemplate']}"


def short(text: str, most: int) -> str:
    """Return `text` without its middle, with at most `most` characters. Names of custom extensions often have the same
    module and differ at their ends."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-((most - 1) // 2) :]}"


def cut(name: str, most: int) -> str:
    """Return the name of a trace, cut to `most` characters."""
    return plain(short(name, most))


def plain(text: str) -> str:
    """Return a text without HTML tags for Plotly."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def spread_text(spread: float) -> str:
    """Return how far the slowest launch is from the fastest one."""
    known = format.known(spread)
    return f"slowest launch over fastest: {format.signed(spread)}" if known else "spread unknown: one launch"


def listed(values: Any, factor: float = 1.0) -> Any:
    """Return values times a factor as nested lists, with None for NaN, which JSON cannot hold, and for None."""
    items = np.asarray(values, dtype=float).tolist() if isinstance(values, (pd.Series, np.ndarray)) else list(values)
    if items and isinstance(items[0], list):
        return [listed(row, factor) for row in items]
    return [None if v is None else format.number_or_none(factor * v) for v in items]
