"""Make Plotly figures from tables of the analysis, with the same colors and markers on all pages.

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

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.collectives import ALGORITHMS, LEVELS
from parabench.metrics import STEP_PARTS
from parabench.strategies import STRATEGIES, entry_of

Trace = dict[str, Any]
# The `meta` of a trace that is computed from all configurations, so that a filter hides it.
ALL = "all"
# A gray that is visible on white and on black.
GREY = "#87909A"
# Rows of a figure that are shown at once.
MOST_ROWS = 16
# Characters of a name in a legend.
LEGEND_NAME = 24
FROM_ZERO = {"rangemode": "tozero"}
# A legend of parts, in the order of drawing.
PARTS_LEGEND = {"traceorder": "normal"}


@dataclass(frozen=True)
class Panel:
    """A figure of a section, with its heading and its height in pixels.

    A `wide` figure has the width of the page. `case` is the id of its case, if it shows only one.
    """

    title: str
    figure: dict[str, Any]
    height: int = 380
    wide: bool = False
    case: str = ""


def lay_out(traces: list[Trace], x: str, y: str, **more: Any) -> dict[str, Any]:
    """Return a figure with titled axes; `more` are further layout settings.

    `themed` in `reports/script/charts/layout.js` adds the style that all figures share.
    """
    axes = {name: {"title": {"text": title}} | more.pop(name, {}) for name, title in (("xaxis", x), ("yaxis", y))}
    return {"data": traces, "layout": more | axes}


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
        which: The word for these rows, such as "fastest" in "the 16 fastest of 20 configurations".
        more: Layout settings.
    """
    axis = name_bars(names)
    rows = {"most": most, "which": which, "head": head, "least": least} | ({"order": order} if order else {})
    figure = lay_out(traces, x, "", yaxis=axis, meta={"rows": rows}, **more)
    return Panel(title, figure, head + max(60, (12 + 16 * least) * min(most, len(axis["ticktext"]))), wide)


def by_work(cases: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the cases of each workload."""
    return [own for _, own in cases.groupby("work", sort=False)]


def titled(cases: pd.DataFrame, *parts: str) -> str:
    """Return the title of a figure: the name of the workload, if there are several, and `parts`."""
    return " · ".join(filter(None, (cases["heading"].iloc[0], *parts)))


# ---- traces


def bars(y: Any, begin_s: Any, length_s: Any, name: str, hovers: list[str], **more: Any) -> Trace:
    """Return horizontal bars on a time axis in ms, from their starts and lengths in seconds."""
    x, base = listed(length_s, 1e3), listed(begin_s, 1e3)
    return {"type": "bar", "orientation": "h", "y": y, "x": x, "base": base, "name": name, **_hovers(hovers), **more}


def case_bars(cases: pd.DataFrame, x: Any, name: str, color: str, texts: Iterable[str], **more: Any) -> Trace:
    """Return a horizontal bar for each row of `page_cases`.

    `texts` are shown when hovering, before the text that all figures show for a case.
    """
    marker = {"color": color, "line": {"width": 0}}
    own = {"type": "bar", "orientation": "h", "y": [*range(len(cases))], "x": listed(x), "name": name, "marker": marker}
    return own | {"customdata": cases["case_id"].to_list()} | _hovers(_joined(texts, cases["hover"])) | more


def marks(x: Any, y: Any, name: str, hovers: list[Any], marker: dict[str, Any], **more: Any) -> Trace:
    """Return a scatter trace of marks."""
    own = {"type": "scatter", "mode": "markers", "x": listed(x), "y": listed(y), "name": name, "marker": marker}
    return own | _hovers(hovers) | more


def points(
    cases: pd.DataFrame, x: Any, y: Any, style: Style, name: str, filled: Any, also: Iterable[str] = (), **more: Any
) -> Trace:
    """Return a scatter trace with a mark for each row of `page_cases`.

    `filled` is True, or a column of booleans. `also` is more hover text for each mark.
    """
    hovers = cases["hover"].to_list()
    symbols = [style.symbol + ("" if fill else "-open") for fill in pd.Series(filled, cases.index)]
    marker = {"color": style.color, "size": 9, "symbol": symbols}
    more["customdata"] = cases["case_id"].to_list()
    return marks(x, y, name, _joined(hovers, also) if also else hovers, marker, **more)


def _joined(first: Iterable[str], second: Iterable[str]) -> list[str]:
    return ["<br>".join(filter(None, pair)) for pair in zip(first, second, strict=True)]


def _hovers(texts: list[Any]) -> Trace:
    return {"hovertext": texts, "hovertemplate": "%{hovertext}<extra></extra>"}


def error_bars(value: Any, low: Any, high: Any, factor: float = 1.0, **more: Any) -> dict[str, Any]:
    """Return error bars from `low` to `high`, which are columns like `value`. An unknown end has no bar."""
    value, low, high = (column.astype(float) for column in (value, low, high))
    # A step time is a mean of logarithms, so it can differ from its only launch by rounding.
    up, down = (gap.where(gap > 1e-9 * value.abs(), 0.0) for gap in (high - value, value - low))
    look = {"type": "data", "symmetric": False, "thickness": 1.2, "width": 4}
    return look | {"array": listed(up, factor), "arrayminus": listed(down, factor)} | more


# ---- parts of a layout


def vertical(x: float, **line: Any) -> dict[str, Any]:
    """Return a layout shape: a vertical line over the whole height, behind the marks."""
    style = {"color": GREY, "width": 1.5} | line
    return {"type": "line", "layer": "below", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": style}


def band(low: float, high: float, color: str = "rgba(107, 127, 147, 0.18)") -> dict[str, Any]:
    """Return a layout shape: a shaded range over the whole height, behind the marks."""
    return vertical(low, width=0) | {"type": "rect", "x1": high, "fillcolor": color}


def name_bars(names: Iterable[str]) -> dict[str, Any]:
    """Return a y axis with the names, the first on top. `reports/script/charts/layout.js` breaks them into lines."""
    shown = [plain(name) for name in names]
    return {
        "tickvals": list(range(len(shown))), "ticktext": shown, "showgrid": False, "range": [len(shown) - 0.5, -0.5],
    }  # fmt: skip


def name_case(traces: Iterable[Trace], label: str) -> None:
    """Show the name of the case when hovering over a mark of the traces."""
    text = plain(label).replace("%", "&#37;")  # in a template "%{" begins a name
    for trace in traces:
        trace["hovertemplate"] = f"<b>{text}</b><br>{trace['hovertemplate']}"


# ---- texts and numbers


def short(text: str, most: int) -> str:
    """Return `text` without its middle, with at most `most` characters.

    Names of custom extensions often have the same module and differ at their ends.
    """
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-((most - 1) // 2) :]}"


def cut(name: str, most: int) -> str:
    """Return the name of a trace, without HTML tags and without its middle beyond `most` characters."""
    return plain(short(name, most))


def plain(text: str) -> str:
    """Return a text with escaped HTML, because Plotly reads some tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def listed(values: Any, factor: float = 1.0) -> list[Any]:
    """Return a list of the values times a factor, with None for NaN, which JSON cannot hold."""
    items = np.asarray(values, dtype=float).tolist() if isinstance(values, (pd.Series, np.ndarray)) else list(values)
    return [None if v is None else format.number_or_none(factor * v) for v in items]


# ---- colors, dashes and markers, which are the same on all pages

# Okabe and Ito's palette, for any color vision. A name has the same color on every page.
_PALETTE = ("#8C6D31", "#7F7F7F", "#B8860B", "#5F6CAF")
_ALGORITHM = {name: entry.color for name, entry in ALGORITHMS.items() if entry.color}
# NCCL's algorithms have dashes, and the color of a similar algorithm of parabench.
_NCCL = {
    "ring": "#D55E00", "tree": "#009E73", "collnetdirect": "#8C6D31", "collnetchain": "#7F7F7F", "nvls": "#0072B2",
    "nvlstree": "#E69F00", "pat": "#56B4E9",
}  # fmt: skip
_ALGORITHM |= {f"nccl:{name}": color for name, color in _NCCL.items()}
# two_level(inner,outer): a purple by the inner level, a dash by the outer.
_INNER = dict(zip(LEVELS, ("#CC79A7", "#7B3294", "#E7298A", "#54278F", "#C994C7", "#980043"), strict=False))
_OUTER = dict(zip(LEVELS, ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot"), strict=False))
_DASH = {f"nccl:{name}": "dash" for name in _NCCL}
for (_inner, _of_inner), (_outer, _of_outer) in itertools.product(_INNER.items(), _OUTER.items()):
    _ALGORITHM[f"two_level({_inner},{_outer})"], _DASH[f"two_level({_inner},{_outer})"] = _of_inner, _of_outer
_STRATEGY = {name: entry.color for name, entry in STRATEGIES.items() if entry.color}
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "pentagon", "cross")


def color_of(colors: dict[str, str], name: str) -> str:
    """Return the color of a name. A custom name has the same color in every report."""
    return colors.get(name) or _PALETTE[sum(name.encode()) % len(_PALETTE)]


class Style(NamedTuple):
    """The color, dash and marker of a curve."""

    color: str
    dash: str
    symbol: str

    @property
    def line(self) -> dict[str, str]:
        """Plotly's settings of a line."""
        return {"color": self.color, "dash": self.dash}


def _style(colors: dict[str, str], name: str, dash: str) -> Style:
    place = list(colors).index(name) if name in colors else sum(name.encode())
    return Style(color_of(colors, name), dash, SYMBOLS[place % len(SYMBOLS)])


def strategy_style(strategy: str) -> Style:
    """Return the style of a strategy, dashed if it is not ranked."""
    return _style(_STRATEGY, strategy, "solid" if entry_of(strategy).ranked else "dash")


def algorithm_style(algorithm: str) -> Style:
    """Return the style of an algorithm."""
    return _style(_ALGORITHM, algorithm, _DASH.get(algorithm, "solid"))


# Colors that are distinguishable on light and dark backgrounds.
_SIDES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#7F7F7F")


def side_style(at: int) -> Style:
    """Return the style of line or session number `at`. If there are more than colors, their symbols differ."""
    n = len(_SIDES)
    return Style(_SIDES[at % n], "solid", SYMBOLS[(at + at // n) % len(SYMBOLS)])


def native_first(algorithm: str) -> tuple[int, str]:
    """Return a sort key: native first, then other built-in algorithms, then custom ones by name."""
    known = list(_ALGORITHM)
    return (known.index(algorithm) if algorithm in known else len(known), algorithm)


# The parts of a measured step, by column of `page_cases`: their color and name.
_PART = ("#56B4E9", "#0072B2", "#D55E00", "#CC79A7", "#009E73", "#999999")
PART = {part: (color, name) for color, (part, name) in zip(_PART, STEP_PARTS.items(), strict=True)}
# The parts of an instrumented step. Communication has one color, exposed or overlapped.
SHARE = {
    "instrumented_data_s": ("#56B4E9", "data"),
    "compute_s": ("#5F6CAF", "compute"),
    "exposed_s": ("#E69F00", "exposed communication"),
    "idle_s": ("#999999", "idle"),
}
# Overlapped communication, which is drawn inside compute.
_EXPOSED = SHARE["exposed_s"][0]
OVERLAP_HATCH = {"shape": "/", "size": 5, "solidity": 0.45, "fgcolor": _EXPOSED, "bgcolor": "rgba(0,0,0,0)"}
