"""What two sides give beside each other: a dot a case, with its 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from parabench.analysis.compare.gate import CaseResult, Comparison
from parabench.analysis.compare.rule import Outcome
from parabench.analysis.text import compare as compare_words
from parabench.analysis.text import format
from parabench.report.figures.figures import Panel, Trace, lay_out, name_bars, plain

# More dots than this are scrolled past; the table has every case.
MOST_DOTS = 40
# Colour, symbol and order of what became of a case.
_OUTCOME: dict[Outcome, tuple[str, str]] = {
    Outcome.SLOWER: ("#D55E00", "diamond"),
    Outcome.FASTER: ("#009E73", "triangle-left"),
    Outcome.UNCLEAR: ("#E69F00", "x"),
    Outcome.SAME: ("#0072B2", "circle"),
    Outcome.NOT_JUDGED: ("#7F7F7F", "circle-open"),
}
_SHADE = "rgba(127,127,127,0.18)"
_GREY = "#7F7F7F"
# An axis reaches at most so many times as far as its points: an interval of two launches would press all else flat.
_REACH = 2.5


def change_panels(of: Comparison) -> list[Panel]:
    """The change of every case that has numbers on both sides, in %, with its upper bound and the tolerance."""
    drawn = [row for row in of.rows if row.ratio is not None and row.outcome in _OUTCOME][:MOST_DOTS]
    if not drawn:
        return []
    traces: list[Trace] = []
    low, high = _range_of_changes(drawn, of.tolerance)
    for outcome, (colour, symbol) in _OUTCOME.items():
        rows = [(place, row) for place, row in enumerate(drawn) if row.outcome is outcome]
        if rows:
            traces.append(
                _dots(rows) | {"name": str(outcome), "marker": {"color": colour, "symbol": symbol, "size": 9}}
            )
    seen = [(place, row) for place, row in enumerate(drawn) if row.upper is not None]
    if seen:
        traces.append(
            {
                "type": "scatter",
                "x": [100 * ((row.upper or 1) - 1) for _, row in seen],
                "y": [place for place, _ in seen],
                "mode": "markers",
                "name": "upper bound",
                "marker": {"symbol": "line-ns-open", "size": 13, "color": _GREY, "line": {"width": 2}},
                "hovertemplate": "slowdowns above %{x:.2~f} % are ruled out (95 %)<extra></extra>",
            }
        )
    share = 100 * of.tolerance
    over_all = {"y0": 0, "y1": 1, "yref": "paper"}
    tolerated = {
        "type": "rect", "x0": -share, "x1": share, **over_all, "fillcolor": _SHADE, "line": {"width": 0},
        "layer": "below",
    }  # fmt: skip
    unchanged = {"type": "line", "x0": 0.0, "x1": 0.0, **over_all, "line": {"color": _GREY, "width": 1.5}}
    axis, lines = name_bars([row.label for row in drawn])
    figure = lay_out(
        traces,
        "change of the step latency (%)",
        "",
        shapes=[tolerated, unchanged],
        xaxis={"range": [low, high], "zeroline": False, "ticksuffix": ""},
        yaxis=axis,
    )
    return [Panel("", figure, _height(len(drawn), lines), wide=True)]


def _dots(rows: Sequence[tuple[int, CaseResult]]) -> Trace:
    """Positions in %, intervals, and what hovering says."""
    changes = [100 * ((row.ratio or 1) - 1) for _, row in rows]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": changes,
        "y": [place for place, _ in rows],
        "error_x": _bars([(row.ratio, row.low, row.high) for _, row in rows], 100.0),
        "customdata": [
            [
                plain(row.label),
                format.signed((row.ratio or 1) - 1),
                plain(compare_words.interval(row) or format.UNKNOWN),
            ]
            for _, row in rows
        ],
        "hovertemplate": "%{customdata[0]}: %{customdata[1]} (95 %: %{customdata[2]})<extra></extra>",
    }


def _bars(ratios: Iterable[tuple[float | None, float | None, float | None]], scale: float) -> dict[str, Any]:
    """Error bars of (ratio, low, high), times `scale`; none where the interval is unknown."""
    known = [(r, lo, hi) if r and lo is not None and hi is not None else (0.0, 0.0, 0.0) for r, lo, hi in ratios]
    return {
        "type": "data",
        "symmetric": False,
        "array": [scale * (hi - r) for r, _, hi in known],
        "arrayminus": [scale * (r - lo) for r, lo, _ in known],
        "thickness": 1.5,
        "width": 4,
    }


def _range_of_changes(rows: Sequence[CaseResult], tolerance: float) -> tuple[float, float]:
    """The ends of the axis, in %."""
    points = [100 * ((row.ratio or 1) - 1) for row in rows] + [100 * tolerance, -100 * tolerance]
    # The noisiest case must not press all others flat, and beyond twice as long no place says more.
    found = sorted(100 * (row.upper - 1) for row in rows if row.upper is not None and row.upper <= 2)
    points += found[: math.ceil(0.9 * len(found))]
    reach = [100 * (each - 1) for row in rows for each in (row.low, row.high) if each is not None]
    far = _REACH * max(map(abs, points))
    low, high = min([*points, *(max(each, -far) for each in reach)]), max([*points, *(min(e, far) for e in reach)])
    margin = 0.04 * (high - low)
    return low - margin, high + margin


def _height(rows: int, lines: int) -> int:
    """Pixels that so many rows need, the longest name of `lines` lines."""
    return 110 + rows * max(26, 17 * lines + 6)
