"""The figures of step times over sessions: step times, levels, change points, and changes of the machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from parabench.analysis import format
from parabench.analysis.environment.diff import Difference
from parabench.analysis.history import NOTHING, History, Series, arrow
from parabench.analysis.session import SessionData
from parabench.report.figures.figures import Panel, Trace, lay_out, plain, short
from parabench.report.palette import ALGORITHM, SYMBOLS, colour_of

# More lines than symbols cannot be distinguished.
MOST_LINES = len(SYMBOLS)
# Cases of one color have different dashes.
_DASHES = ("solid", "dash", "dot", "dashdot")
# The most dates that a phone has room for, and the most changes in a tooltip.
MOST_TICKS = MOST_NAMED = 4
# A gray that is visible on white and on black.
_GREY = "#87909A"
_LONGEST = 60


def over_time(history: History, group: Sequence[Series], title: str) -> Panel:
    """Return a figure of cases of one suite: a mark with an interval for each session, a line for each level, a diamond
    for each change point, and a dotted line before a session with another machine or software."""
    places = [i for i, visit in enumerate(history.visits) if visit.session.suite == group[0].suite]
    at = {visit: x for x, visit in enumerate(places)}
    traces: list[Trace] = []
    drawn = group[:MOST_LINES]
    colours = [colour_of(ALGORITHM, series.case.algorithm) for series in drawn]
    for i, (series, colour) in enumerate(zip(drawn, colours, strict=True)):
        dash = _DASHES[colours[:i].count(colour) % len(_DASHES)]
        traces += _line(history, series, at, {"color": colour, "dash": dash}, SYMBOLS[i])
    step = max(1, -(-len(places) // MOST_TICKS))
    ticks = list(range(len(places) - 1, -1, -step))
    figure = lay_out(
        traces,
        "",
        "step time (ms)",
        xaxis={
            "tickvals": ticks,
            "ticktext": [_day(history.visits[places[x]]) for x in ticks],
            "tickangle": 0,
            "ticklabeloverflow": "allow",
            "range": [-0.6, len(places) - 0.4],
            "showgrid": False,
        },
        shapes=[
            _changed(x, history.machine[visit])
            for visit, x in at.items()
            if history.machine[visit] and history.visits[visit].session.judged
        ],
    )
    return Panel(title, figure, 340 + 20 * len(drawn), wide=len(places) > 60)


def _line(history: History, series: Series, at: dict[int, int], line: dict[str, Any], symbol: str) -> Iterator[Trace]:
    """Yield the step times, the levels and the change points of a case, with one name in the legend."""
    points = [point for point in series.points if point.step_time_s is not None]
    style = {"type": "scatter", "name": plain(_name(series)), "legendgroup": series.case.id}
    yield {
        "x": [at[point.visit] for point in points],
        "y": [(point.step_time_s or 0.0) * 1e3 for point in points],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": _beyond((point.step_time_s, point.high_s) for point in points),
            "arrayminus": _beyond((point.low_s, point.step_time_s) for point in points),
            "thickness": 1,
            "width": 0,
        },
        # Without levels, lines connect the marks.
        "mode": "lines+markers" if series.why_not is not None else "markers",
        "line": line | {"width": 1},
        "marker": {"color": line["color"], "symbol": symbol, "size": 7},
        "customdata": [_visit(history, point.visit, history.machine[point.visit]) for point in points],
        "hovertemplate": "%{y:.3~f} ms: %{customdata}<extra>%{fullData.name}</extra>",
        **style,
    }
    starts = {shift.visit for shift in series.shifts}
    x: list[float | None] = []
    y: list[float | None] = []
    for point in series.points:
        if point.level_s is not None:
            gap = [None] if point.visit in starts else []
            x += [*gap, at[point.visit]]
            y += [*gap, point.level_s * 1e3]
    unnamed = style | {"showlegend": False}
    yield {"x": x, "y": y, "mode": "lines", "line": line | {"width": 2}, "hoverinfo": "skip", **unnamed}
    if series.shifts:
        yield {
            "x": [at[shift.visit] for shift in series.shifts],
            "y": [shift.after_s * 1e3 for shift in series.shifts],
            "mode": "markers",
            "marker": {
                "color": line["color"], "symbol": "diamond", "size": 13, "line": {"width": 1.5, "color": _GREY},
            },
            "customdata": [
                f"{format.signed(shift.change)} since {_visit(history, shift.visit, shift.changed, NOTHING)}"
                for shift in series.shifts
            ],
            "hovertemplate": "%{customdata}<extra>%{fullData.name}</extra>",
            **unnamed,
        }  # fmt: skip


def _changed(x: int, found: Sequence[Difference]) -> dict[str, Any]:
    """Return a dotted line before a session, with the name of the first change."""
    name = plain(short(found[0].name, 16)) + (" …" if found[1:] else "")
    return {
        "type": "line", "yref": "paper", "y0": 0, "y1": 1, "layer": "below", "x0": x - 0.5, "x1": x - 0.5,
        "line": {"color": _GREY, "width": 1, "dash": "dot"}, "label": {"text": name, "textposition": "end"},
    }  # fmt: skip


def _beyond(pairs: Iterable[tuple[float | None, float | None]]) -> list[float | None]:
    """Return the differences of the pairs, in ms."""
    return [None if low is None or high is None else (high - low) * 1e3 for low, high in pairs]


def _day(visit: SessionData) -> str:
    """Return the day in two lines, so that a phone has room for several."""
    return f"{visit.session.day[5:]}<br>{visit.session.day[:4]}"


def _name(series: Series) -> str:
    """Return the part of the label that is not in the heading of the figure."""
    ranks = f", {format.count(series.case.world_size, 'rank')}"
    return series.label.removeprefix(f"{series.case.strategy} ").replace(ranks, "", 1)


def _visit(history: History, visit: int, changed: Sequence[Difference], otherwise: str = "") -> str:
    """Return the day, name and commit of a session, and what changed, in lines."""
    session = history.visits[visit].session
    commit = f", commit {plain(session.commit)}" if session.commit else ""
    lines = [plain(short(arrow(change), _LONGEST)) for change in changed]
    more = [f"and {len(lines) - MOST_NAMED} more"] if len(lines) > MOST_NAMED else []
    text = f"{session.day}, {plain(short(session.name, _LONGEST))}{commit}"
    return "<br>".join(filter(None, [text, *(lines[:MOST_NAMED] or [otherwise]), *more]))
