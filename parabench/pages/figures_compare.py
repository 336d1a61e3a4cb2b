"""What two sides give beside each other: a dot a case, with its 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go

from parabench.analysis import words
from parabench.analysis.gate import across_words, compare_words
from parabench.analysis.gate.across import Common, Ratio
from parabench.analysis.gate.compare import Comparison, Outcome, Row
from parabench.analysis.gate.geometric import Mean
from parabench.pages.figures import Panel, lay_out, name_bars, plain

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
    """The change of every case that has numbers on both sides, in %, beside what the gate tolerates and could see."""
    drawn = [row for row in of.rows if row.ratio is not None and row.outcome in _OUTCOME][:MOST_DOTS]
    if not drawn:
        return []
    figure = go.Figure()
    low, high = _range_of_changes(drawn, of.tolerance)
    for outcome, (colour, symbol) in _OUTCOME.items():
        rows = [(place, row) for place, row in enumerate(drawn) if row.outcome is outcome]
        if rows:
            figure.add_scatter(**_dots(rows), name=str(outcome), mode="markers",
                               marker={"color": colour, "symbol": symbol, "size": 9})  # fmt: skip
    seen = [(place, row) for place, row in enumerate(drawn) if row.detectable is not None]
    if seen:
        figure.add_scatter(
            x=[100 * (row.detectable or 0) for _, row in seen],
            y=[place for place, _ in seen],
            mode="markers",
            name="would have been found",
            marker={"symbol": "line-ns-open", "size": 13, "color": _GREY, "line": {"width": 2}},
            hovertemplate="a slowdown of %{x:.2~f} % would have been found<extra></extra>",
        )
    share = 100 * of.tolerance
    figure.add_shape(
        type="rect", x0=-share, x1=share, y0=0, y1=1, yref="paper", fillcolor=_SHADE, line_width=0, layer="below"
    )
    lay_out(figure, "change of the step latency (%)", "")
    _cross(figure, 0.0)
    lines = name_bars(figure, [row.label for row in drawn])
    figure.update_xaxes(range=[low, high], zeroline=False, ticksuffix="")
    return [Panel("", figure, _height(len(drawn), lines), wide=True)]


def _dots(rows: Sequence[tuple[int, Row]]) -> dict[str, Any]:
    """Positions in %, intervals, and what hovering says."""
    changes = [100 * ((row.ratio or 1) - 1) for _, row in rows]
    return {
        "x": changes,
        "y": [place for place, _ in rows],
        "error_x": _bars([(row.ratio, row.low, row.high) for _, row in rows], 100.0),
        "customdata": [
            [plain(row.label), words.signed((row.ratio or 1) - 1), plain(compare_words.interval(row) or words.UNKNOWN)]
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


def _range_of_changes(rows: Sequence[Row], tolerance: float) -> tuple[float, float]:
    """The ends of the axis, in %."""
    points = [100 * ((row.ratio or 1) - 1) for row in rows] + [100 * tolerance, -100 * tolerance]
    # The noisiest case must not press all others flat, and beyond twice as long no place says more.
    found = sorted(100 * row.detectable for row in rows if row.detectable is not None and row.detectable <= 1)
    points += found[: math.ceil(0.9 * len(found))]
    reach = [100 * (each - 1) for row in rows for each in (row.low, row.high) if each is not None]
    far = _REACH * max(map(abs, points))
    low, high = min([*points, *(max(each, -far) for each in reach)]), max([*points, *(min(e, far) for e in reach)])
    margin = 0.04 * (high - low)
    return low - margin, high + margin


def ratio_panels(cases: Sequence[Common], name: str, mean: Mean) -> list[Panel]:
    """Ratios of every case that `name` calls (latency, per_joule, per_gb), their mean below; empty without any."""
    ratios: list[tuple[str, Ratio | Mean]] = [(case.label, getattr(case, name)) for case in cases]
    known = [(label, ratio) for label, ratio in ratios if ratio.ratio is not None][:MOST_DOTS]
    return [_ratio_panel(known, mean)] if known else []


def _ratio_panel(cases: Sequence[tuple[str, Ratio | Mean]], mean: Mean) -> Panel:
    figure = go.Figure()
    many = mean.cases > 1
    rows = [*cases, *([("geometric mean", mean)] if many else [])]
    for own, at, colour, symbol, size in (
        (list(cases), 0, "#0072B2", "circle", 9),
        (rows[len(cases) :], len(cases), "#D55E00", "diamond", 12),
    ):
        if own:
            figure.add_scatter(
                x=[ratio.ratio for _, ratio in own],
                y=[at + i for i in range(len(own))],
                error_x=_bars([(ratio.ratio, ratio.low, ratio.high) for _, ratio in own], 1.0),
                mode="markers",
                marker={"color": colour, "symbol": symbol, "size": size},
                showlegend=False,
                customdata=[[plain(label), _said(ratio)] for label, ratio in own],
                hovertemplate="%{customdata[0]}: %{customdata[1]}<extra></extra>",
            )
    points = [ratio.ratio or 1 for _, ratio in rows] + [1.0]
    ends = [each for _, ratio in rows for each in (ratio.low, ratio.high) if each]
    far = _REACH * max(abs(math.log(point)) for point in points) or 0.1
    ends = [math.exp(max(-far, min(far, math.log(end)))) for end in ends]
    low, high = math.log(min(points + ends)), math.log(max(points + ends))
    margin = max(0.04 * (high - low), 0.01)
    ticks = _ticks(math.exp(low - margin), math.exp(high + margin))
    lay_out(figure, "candidate / base", "")
    _cross(figure, 1.0)
    lines = name_bars(figure, [label for label, _ in rows])
    span = [(low - margin) / math.log(10), (high + margin) / math.log(10)]
    figure.update_xaxes(
        type="log", range=span, tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks], zeroline=False
    )
    return Panel("", figure, _height(len(rows), lines), wide=True)


def _said(ratio: Ratio | Mean) -> str:
    """'0.41 times (95 %: 0.40 to 0.42)'."""
    return f"{across_words.times(ratio.ratio or 1)} times (95 %: {across_words.interval(ratio)})"


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`: 1, 2 and 5 of each power of ten, or evenly where that is too few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    round_ = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    if high / low > 100:
        round_ = round_[::3]
    inside = [tick for tick in round_ if low <= tick <= high]
    if len(inside) >= 4:
        return inside
    step = 10.0 ** math.floor(math.log10((high - low) / 3))
    step *= next(factor for factor in (5, 2, 1) if (high - low) / (step * factor) >= 3)
    first = math.ceil(low / step)
    return [round(i * step, 10) for i in range(first, math.floor(high / step) + 1)]


def _cross(figure: go.Figure, x: float) -> None:
    """The line on which nothing changed."""
    figure.add_shape(type="line", x0=x, x1=x, y0=0, y1=1, yref="paper", line={"color": _GREY, "width": 1.5})


def _height(rows: int, lines: int) -> int:
    """Pixels that so many rows need, the longest name of `lines` lines."""
    return 110 + rows * max(26, 17 * lines + 6)
