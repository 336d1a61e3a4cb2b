"""Step times over sessions: a section of the report, and the page of `parabench history`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.environment.diff import Difference
from parabench.analysis.history import (
    MOST_CHANGES,
    NOTHING,
    History,
    Series,
    arrow,
    note,
    of_visits,
    sentence,
    visits_of,
)
from parabench.analysis.numbers import same_work
from parabench.analysis.session import Session
from parabench.analysis.stats.change_point import FEWEST_SESSIONS
from parabench.report.figures.figures import GREY, Panel, Trace, lay_out, plain, short
from parabench.report.page import fill
from parabench.report.palette import ALGORITHM, SYMBOLS, colour_of
from parabench.report.spec import FORMATS, WORDED, Column, Section, Table, table_of
from parabench.store.results import Results, records

_ms = FORMATS["ms"]
# The most figures, and the most lines of a figure, which have different symbols.
MOST_PANELS, _MOST_LINES = 12, len(SYMBOLS)
# The most sessions in a report, whose cost must not depend on the length of the database, and in an open table.
MOST_SESSIONS = 30
# Fewer sessions have no history.
FEWEST = 2
# Cases of one color have different dashes.
_DASHES = ("solid", "dash", "dot", "dashdot")
# The most dates that a phone has room for, the most changes in a tooltip, and the most characters of one.
_MOST_TICKS = _MOST_NAMED = 4
_LONGEST = 60


def history_section(results: Results, session: Session) -> Section | None:
    """Return the section of the newest sessions of the suite, and `session`; None if no case was measured twice."""
    trained = set(results.of_kind("training"))
    listed = records(results.listed, ("started_utc", "id", "suite"))
    own = sorted((row["started_utc"], row["id"]) for row in listed if row["suite"] == session.suite)
    ids = [at for _, at in own if at in trained]
    kept = {*ids[-MOST_SESSIONS:], session.id}
    visits = visits_of([results.of(kept)])
    judged = {at for at, visit in enumerate(visits) if visit.session.judged}
    if len(judged) < FEWEST:
        return None
    history = of_visits(visits)
    timed = ([each for each in series.points if each.step_time_s is not None] for series in history.series)
    if all(sum(point.visit in judged for point in points) < FEWEST for points in timed):
        return None
    lead = sentence(history)
    if left := len(ids) - len(kept):
        lead += f" Of this suite {format.count(left, 'older session')} of the store are left out: `parabench history`."
    return _section(history, lead)


def page_sections(history: History) -> list[Section]:
    """Return the sections of the page."""
    numbers = Section("numbers", "Step time by session", "", "No launch was recorded.", _numbers(history))
    visits = Section("sessions", "Sessions", "The newest first.", "", (_sessions(history),))
    cases = Section(
        "cases",
        "Every case",
        "“Sessions differ” is the standard deviation between sessions, beyond that of their launches.",
        "No launch was recorded.",
        (_cases(history),),
    )
    return [_section(history, ""), cases, numbers, visits]


def _section(history: History, lead: str) -> Section:
    return Section(
        "history",
        "Over time",
        "A mark is a session's step time with its 95% interval; a line is a level, a diamond a change point.",
        "No launch succeeded, so there is nothing to draw.",
        (_changes(history),),
        panels=_panels(history)[:MOST_PANELS],
        lead=lead,
        reading="The interval of a mark covers the session's launches; sessions vary by more than that. The axis does "
        f"not start at zero. Change points are detected from {FEWEST_SESSIONS} sessions of a case on: from a change "
        "point on, the step time differs by more than sessions vary anyway. A dotted line: the next session ran on "
        f"another machine or with other software. At most {MOST_PANELS} figures of {_MOST_LINES} cases are drawn, "
        "those with the newest changes.",
    )


def _panels(history: History) -> list[Panel]:
    """Return a figure for each suite, strategy, world size and workload; the newest changes first."""
    drawn = [series for series in history.series if series.newest is not None]
    if not drawn:
        return []
    rows = [series.case.to_dict() | {"device": series.device, "suite": series.suite} for series in drawn]
    works = same_work(pd.DataFrame(rows))
    suites = {series.suite for series in history.series}
    groups: dict[tuple[str, ...], list[Series]] = {}
    work_of = {at: _work_name(work) for work, own in works for at in own.index}
    for at, series in enumerate(drawn):
        suite = f"{series.suite}: " if len(suites) > 1 else ""
        work = f" · {work_of[at]}" if len(works) > 1 else ""
        ranks = format.count(series.case.world_size, "rank")
        key = suite, f"{series.case.strategy}, {ranks}", work
        groups.setdefault(key, []).append(series)
    return [_over_time(history, group, "".join(key)) for key, group in groups.items()]


def _over_time(history: History, group: Sequence[Series], title: str) -> Panel:
    """Return a figure of cases of one suite: a mark with an interval for each session, a line for each level, a diamond
    for each change point, and a dotted line before a session with another machine or software."""
    places = [i for i, visit in enumerate(history.visits) if visit.session.suite == group[0].suite]
    at = {visit: x for x, visit in enumerate(places)}
    traces: list[Trace] = []
    drawn = group[:_MOST_LINES]
    colours = [colour_of(ALGORITHM, series.case.algorithm) for series in drawn]
    for i, (series, colour) in enumerate(zip(drawn, colours, strict=True)):
        dash = _DASHES[colours[:i].count(colour) % len(_DASHES)]
        traces += _line(history, series, at, {"color": colour, "dash": dash}, SYMBOLS[i])
    step = max(1, -(-len(places) // _MOST_TICKS))
    ticks = list(range(len(places) - 1, -1, -step))
    figure = lay_out(
        traces,
        "",
        "step time (ms)",
        xaxis={
            "tickvals": ticks,
            # Two lines, so that a phone has room for several days.
            "ticktext": ["{1}<br>{0}".format(*history.visits[places[x]].session.day.split("-", 1)) for x in ticks],
            "tickangle": 0,
            "ticklabeloverflow": "allow",
            "range": [-0.6, len(places) - 0.4],
            "showgrid": False,
        },
        shapes=[
            _change_line(x, history.machine[visit])
            for visit, x in at.items()
            if history.machine[visit] and history.visits[visit].session.judged
        ],
    )
    return Panel(title, figure, 340 + 20 * len(drawn), wide=len(places) > 60)


def _line(history: History, series: Series, at: dict[int, int], line: dict[str, Any], symbol: str) -> Iterator[Trace]:
    """Yield the step times, the levels and the change points of a case, with one name in the legend."""
    points = [point for point in series.points if point.step_time_s is not None]
    style: dict[str, Any] = {"type": "scatter", "name": plain(_line_name(series)), "legendgroup": series.case.id}
    yield style | {
        "x": [at[point.visit] for point in points],
        "y": [(point.step_time_s or 0.0) * 1e3 for point in points],
        "error_y": {
            "type": "data", "symmetric": False, "thickness": 1, "width": 0,
            "array": [_milliseconds(point.step_time_s, point.high_s) for point in points],
            "arrayminus": [_milliseconds(point.low_s, point.step_time_s) for point in points],
        },
        # Without levels, lines connect the marks.
        "mode": "lines+markers" if series.why_not is not None else "markers",
        "line": line | {"width": 1},
        "marker": {"color": line["color"], "symbol": symbol, "size": 7},
        "hovertext": [_visit(history, point.visit, history.machine[point.visit]) for point in points],
        "hovertemplate": "%{y:.3~f} ms: %{hovertext}<extra>%{fullData.name}</extra>",
    }  # fmt: skip
    style |= {"showlegend": False}
    starts = {shift.visit for shift in series.shifts}
    level: list[tuple[float | None, float | None]] = []
    for point in series.points:
        if point.level_s is not None:
            level += [(None, None)] * (point.visit in starts) + [(at[point.visit], point.level_s * 1e3)]
    x, y = [x for x, _ in level], [y for _, y in level]
    yield style | {"x": x, "y": y, "mode": "lines", "line": line | {"width": 2}, "hoverinfo": "skip"}
    if series.shifts:
        edge = {"width": 1.5, "color": GREY}
        yield style | {
            "x": [at[shift.visit] for shift in series.shifts],
            "y": [shift.after_s * 1e3 for shift in series.shifts],
            "mode": "markers",
            "marker": {"color": line["color"], "symbol": "diamond", "size": 13, "line": edge},
            "hovertext": [
                f"{format.signed(shift.change)} since {_visit(history, shift.visit, shift.changed, NOTHING)}"
                for shift in series.shifts
            ],
            "hovertemplate": "%{hovertext}<extra>%{fullData.name}</extra>",
        }


def _change_line(x: int, found: Sequence[Difference]) -> dict[str, Any]:
    """Return a dotted line before a session, with the name of the first change."""
    name = plain(short(found[0].name, 16)) + (" …" if found[1:] else "")
    return {
        "type": "line", "yref": "paper", "y0": 0, "y1": 1, "layer": "below", "x0": x - 0.5, "x1": x - 0.5,
        "line": {"color": GREY, "width": 1, "dash": "dot"}, "label": {"text": name, "textposition": "end"},
    }  # fmt: skip


def _milliseconds(begin_s: float | None, end_s: float | None) -> float | None:
    return None if begin_s is None or end_s is None else (end_s - begin_s) * 1e3


def _line_name(series: Series) -> str:
    """Return the part of the label that is not in the heading of the figure."""
    ranks = f", {format.count(series.case.world_size, 'rank')}"
    return series.label.removeprefix(f"{series.case.strategy} ").replace(ranks, "", 1)


def _visit(history: History, visit: int, changed: Sequence[Difference], otherwise: str = "") -> str:
    """Return the day, name and commit of a session, and what changed, in lines."""
    session = history.visits[visit].session
    commit = f", commit {plain(session.commit)}" if session.commit else ""
    lines = [plain(short(arrow(change), _LONGEST)) for change in changed]
    more = [f"and {len(lines) - _MOST_NAMED} more"] if len(lines) > _MOST_NAMED else []
    text = f"{session.day}, {plain(short(session.name, _LONGEST))}{commit}"
    return "<br>".join(filter(None, [text, *(lines[:_MOST_NAMED] or [otherwise]), *more]))


def _work_name(work: dict[str, Any]) -> str:
    """Return the model, data, batch, precision and device of a workload."""
    data = f"{work['data']} ({work['vocabulary']})" if work["vocabulary"] else work["data"]
    batch = f"{work['global_batch']} × {work['seq_len']}" if work["seq_len"] > 1 else work["global_batch"]
    return f"{work['model']}, {data}, batch {batch}, {work['precision']}, {work['device']}"


def _changes(history: History) -> Table:
    """Return the table of all change points, the newest first."""
    found = [(shift, series) for series in history.changed for shift in series.shifts]
    rows = [
        {"series": series, "shift": shift, "session": history.visits[shift.visit].session}
        for shift, series in sorted(found, key=lambda each: (-each[0].visit, -each[0].change))
    ]
    columns = (
        Column("Case", "series.label"),
        Column("Session", "session.name"),
        Column("What changed then", lambda row: _changed(row["shift"].changed, MOST_CHANGES) or NOTHING),
        Column("Since", "session.day", WORDED),
        Column("Change", "shift.change", "signed"),
        Column("95%", lambda row: f"{format.signed(row['shift'].low)} to {format.signed(row['shift'].high)}", WORDED),
        Column("ms", lambda row: f"{_ms(row['shift'].before_s)} → {_ms(row['shift'].after_s)}", WORDED),
    )
    return table_of("Change points", columns, rows, closed=False)


def _cases(history: History) -> Table:
    """Return the table of all cases, with their states and newest step times."""
    columns = (
        Column("Case", "label"),
        Column("State", lambda series: "; ".join(filter(None, (series.state, note(series, history.visits))))),
        Column("Newest, ms", lambda series: series.newest and series.newest.step_time_s, "ms"),
        Column("Last change", lambda series: series.shifts[-1].change if series.shifts else None, "signed"),
        Column("Whole time", lambda series: series.whole if series.shifts else None, "signed"),
        Column("Sessions differ", "session_sd", "percent"),
        Column("Sessions", lambda series: sum(point.step_time_s is not None for point in series.points), "count"),
    )
    return table_of("Every case", columns, history.series, closed=False)


def _sessions(history: History) -> Table:
    """Return the table of sessions, the newest first, with the changes of machine and software."""
    rows = [
        {"session": visit.session, "changed": changed}
        for visit, changed in zip(history.visits, history.machine, strict=True)
    ]
    several = len({visit.session.suite for visit in history.visits}) > 1

    def known(*names: str) -> Callable[[dict[str, Any]], str]:
        return lambda row: row["session"].known(*names) or format.UNKNOWN

    columns = (
        Column("Session", lambda row: row["session"].name + " (side a: not followed)" * (not row["session"].judged)),
        *((Column("Suite", "session.suite"),) if several else ()),
        Column("Changed since the one before", lambda row: _changed(row["changed"])),
        Column("Began", lambda row: format.when(row["session"].started_utc), WORDED),
        Column("Host", known("host"), WORDED),
        Column("torch", known("versions", "torch"), WORDED),
        Column("Commit", lambda row: row["session"].commit or format.UNKNOWN, WORDED),
    )
    return table_of("Sessions", columns, reversed(rows), closed=len(rows) > MOST_SESSIONS)


def _changed(changes: Sequence[Difference], most: int = 6) -> str:
    return format.listed(map(arrow, changes), most)


def _numbers(history: History) -> tuple[Table, ...]:
    """Return a table for each suite, with a row per case and a column per session."""
    made = []
    suites = dict.fromkeys(series.suite for series in history.series)
    for suite in suites:
        places = [i for i, visit in enumerate(history.visits) if visit.session.suite == suite][::-1]
        rows = [
            {"label": series.label} | dict.fromkeys(map(str, places))
            | {str(point.visit): point.step_time_s for point in series.points}
            for series in history.series
            if series.suite == suite
        ]  # fmt: skip
        days = (Column(history.visits[at].session.day, str(at), "ms") for at in places)
        title = "Step time in ms, the newest session first" + (f": {suite}" if len(suites) > 1 else "")
        made.append(table_of(title, (Column("Case", "label"), *days), rows))
    return tuple(made)


def render(history: History) -> str:
    """Return the page."""
    return fill(
        "history.html",
        page_sections(history),
        suites=", ".join(dict.fromkeys(visit.session.suite for visit in history.visits)),
        first=history.visits[0].session.day,
        last=history.visits[-1].session.day,
        sentence=sentence(history),
        stores=format.listed(dict.fromkeys(str(visit.results.path) for visit in history.visits)),
    )
