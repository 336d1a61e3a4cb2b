"""Each case over sessions: its numbers, its levels, and what changed on the machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from parabench.analysis.environment.diff import Difference
from parabench.analysis.history import History, Series, arrow
from parabench.analysis.session import SessionData
from parabench.analysis.text import format
from parabench.report.figures.figures import Panel, Trace, lay_out, plain, short
from parabench.report.palette import ALGORITHM, SYMBOLS, colour_of

# More lines than symbols cannot be told apart.
MOST_LINES = len(SYMBOLS)
# Of cases of one colour, these tell the levels apart.
_DASHES = ("solid", "dash", "dot", "dashdot")
# More words than this above a figure run into one another, and so do those on one height.
MOST_NAMED, HEIGHTS = 4, 3
# The part of a figure that is left to those words.
_HEADROOM = 0.17
# A phone has room for so many dates.
MOST_TICKS = 4
# A grey that is seen on white and on black.
_GREY = "#87909A"
_LONGEST = 60


def over_time(history: History, group: Sequence[Series], title: str) -> Panel:
    """One figure of cases of one suite, strategy and world size: a mark for each session's number with its interval, a
    line for each level. A diamond is a change point, a dotted line a session before which the machine changed."""
    places = [i for i, visit in enumerate(history.visits) if visit.session.suite == group[0].suite]
    at = {visit: x for x, visit in enumerate(places)}
    traces: list[Trace] = []
    drawn = group[:MOST_LINES]
    colours = [colour_of(ALGORITHM, series.case.algorithm) for series in drawn]
    for i, (series, colour) in enumerate(zip(drawn, colours, strict=True)):
        dash = _DASHES[colours[:i].count(colour) % len(_DASHES)]
        traces += _line(history, series, at, {"color": colour, "dash": dash}, SYMBOLS[i])
    marks, of_machine = _machine(history, places)
    step = max(1, -(-len(places) // MOST_TICKS))
    ticks = list(range(len(places) - 1, -1, -step))
    figure = lay_out(
        [*traces, *marks],
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
        yaxis={"range": _range(drawn)},
        **of_machine,
    )
    return Panel(title, figure, 340 + 20 * min(len(group), MOST_LINES), wide=len(places) > 60)


def _range(group: Sequence[Series]) -> list[float]:
    """The y axis in ms: every number and its interval, and room above for words."""
    points = [point for series in group for point in series.points]
    ends = [end * 1e3 for point in points for end in (point.low_s, point.step_time_s, point.high_s) if end is not None]
    low, high = min(ends), max(ends)
    room = (high - low or high) * 0.05
    return [low - room, high + room + (high - low + 2 * room) * _HEADROOM]


def _line(history: History, series: Series, at: dict[int, int], line: dict[str, Any], symbol: str) -> Iterator[Trace]:
    """The numbers, the levels and the change points of a case, under one name in the legend."""
    points = [point for point in series.points if point.step_time_s is not None]
    colour = line["color"]
    style = {"type": "scatter", "name": plain(_name(series)), "legendgroup": series.case.id}
    marker = {"color": colour, "symbol": symbol, "size": 7}
    numbers = [(point.step_time_s or 0.0) * 1e3 for point in points]
    yield {
        "x": [at[point.visit] for point in points],
        "y": numbers,
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": _beyond((point.step_time_s, point.high_s) for point in points),
            "arrayminus": _beyond((point.low_s, point.step_time_s) for point in points),
            "thickness": 1,
            "width": 0,
        },
        # Without levels nothing else would lead the eye.
        "mode": "lines+markers" if series.why_not is not None else "markers",
        "line": line | {"width": 1},
        "marker": marker,
        "customdata": [_visit(history.visits[point.visit]) for point in points],
        "hovertemplate": "%{customdata}: %{y:.3~f} ms<extra>%{fullData.name}</extra>",
        **style,
    }
    starts = {shift.visit for shift in series.shifts}
    x: list[float | None] = []
    y: list[float | None] = []
    for point in series.points:
        if point.level_s is None:
            continue
        if point.visit in starts:
            x.append(None)
            y.append(None)
        x.append(at[point.visit])
        y.append(point.level_s * 1e3)
    unnamed = style | {"showlegend": False}
    yield {"x": x, "y": y, "mode": "lines", "line": line | {"width": 2}, "hoverinfo": "skip", **unnamed}
    if series.shifts:
        yield {
            "x": [at[shift.visit] for shift in series.shifts],
            "y": [shift.after_s * 1e3 for shift in series.shifts],
            "mode": "markers",
            "marker": {"color": colour, "symbol": "diamond", "size": 13, "line": {"width": 1.5, "color": _GREY}},
            "customdata": [
                f"{format.signed(shift.change)} since {_visit(history.visits[shift.visit])}<br>{_said(shift.changed)}"
                for shift in series.shifts
            ],
            "hovertemplate": "%{customdata}<extra>%{fullData.name}</extra>",
            **unnamed,
        }


def _machine(history: History, places: Sequence[int]) -> tuple[list[Trace], dict[str, Any]]:
    """A dotted line before each session that ran on something else than the one before, the commit apart: marks and
    what the layout has for them."""
    visits = [history.visits[place] for place in places]
    changed = [
        history.machine[place] if visit.session.judged else () for place, visit in zip(places, visits, strict=True)
    ]
    found = [(x, different) for x, different in enumerate(changed) if different]
    if not found:
        return [], {}
    dotted = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    dotted["line"] = {"color": _GREY, "width": 1, "dash": "dot"}
    marks = {
        "type": "scatter",
        "x": [x - 0.5 for x, _ in found],
        "y": [0.965 - 0.055 * (i % HEIGHTS) for i in range(len(found))],
        "yaxis": "y2",
        "mode": "markers+text" if len(found) <= MOST_NAMED else "markers",
        "text": [plain(short(different[0].name, 16)) + (" …" if different[1:] else "") for _, different in found],
        "textposition": ["middle left" if x > len(visits) / 2 else "middle right" for x, _ in found],
        "textfont": {"size": 12},
        "marker": {"color": _GREY, "symbol": "triangle-down", "size": 9},
        "customdata": [f"{_visit(visits[x])}<br>{_said(different)}" for x, different in found],
        "hovertemplate": "%{customdata}<extra></extra>",
        "showlegend": False,
    }
    return [marks], {
        "shapes": [dotted | {"x0": x - 0.5, "x1": x - 0.5} for x, _ in found],
        # On an axis of its own, so that the marks stay on top however the numbers lie.
        "yaxis2": {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
    }


def _beyond(pairs: Iterable[tuple[float | None, float | None]]) -> list[float | None]:
    """How far the second is beyond the first, in ms."""
    return [None if low is None or high is None else (high - low) * 1e3 for low, high in pairs]


def _day(visit: SessionData) -> str:
    """In two lines, so that a phone has room for several."""
    return f"{visit.session.day[5:]}<br>{visit.session.day[:4]}"


def _name(series: Series) -> str:
    """What the heading of the figure does not say already."""
    ranks = f", {format.count(series.case.world_size, 'rank')}"
    return series.label.removeprefix(f"{series.case.strategy} ").replace(ranks, "", 1)


def _visit(visit: SessionData) -> str:
    commit = f", commit {plain(visit.session.commit)}" if visit.session.commit else ""
    return f"{visit.session.day}, {plain(short(visit.session.name, _LONGEST))}{commit}"


def _said(found: Iterable[Difference]) -> str:
    lines = [plain(short(arrow(change), _LONGEST)) for change in found]
    if not lines:
        return "nothing else that is recorded changed"
    more = [f"and {len(lines) - MOST_NAMED} more"] if len(lines) > MOST_NAMED else []
    return "<br>".join([*lines[:MOST_NAMED], *more])
