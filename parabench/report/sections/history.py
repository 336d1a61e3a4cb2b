"""Step times over sessions: a section of the report, and the page of `parabench history`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from parabench.report.figures.figures import Panel
from parabench.report.figures.history import MOST_LINES, over_time
from parabench.report.page import fill
from parabench.report.spec import FORMATS, WORDED, Column, Section, Table, table_of
from parabench.store.results import Results, records

_ms = FORMATS["ms"]
# The most figures.
MOST_PANELS = 12
# The most sessions in a report, whose cost must not depend on the length of the database, and in an open table.
MOST_SESSIONS = 30
# Fewer sessions have no history.
FEWEST = 2


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
        (_cases(history),) if history.series else (),
    )
    return [_section(history, ""), cases, numbers, visits]


def _section(history: History, lead: str) -> Section:
    return Section(
        "history",
        "Over time",
        "A mark is a session's step time with its 95 % interval; a line is a level, a diamond a change point.",
        "No launch succeeded, so there is nothing to draw.",
        tuple(_changes(history)),
        panels=_panels(history)[:MOST_PANELS],
        lead=lead,
        reading="The interval of a mark covers the session's launches; sessions vary by more than that. The axis does "
        f"not start at zero. Change points are detected from {FEWEST_SESSIONS} sessions of a case on: from a change "
        "point on, the step time differs by more than sessions vary anyway. A dotted line: the next session ran on "
        f"another machine or with other software. At most {MOST_PANELS} figures of {MOST_LINES} cases are drawn, those "
        "with the newest changes.",
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
    return [over_time(history, group, "".join(key)) for key, group in groups.items()]


def _work_name(work: dict[str, Any]) -> str:
    """Return the model, data, batch, precision and device of a workload."""
    data = f"{work['data']} ({work['vocabulary']})" if work["vocabulary"] else work["data"]
    batch = f"{work['global_batch']} × {work['seq_len']}" if work["seq_len"] > 1 else work["global_batch"]
    return f"{work['model']}, {data}, batch {batch}, {work['precision']}, {work['device']}"


def _changes(history: History) -> list[Table]:
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
        Column("95 %", lambda row: f"{format.signed(row['shift'].low)} to {format.signed(row['shift'].high)}", WORDED),
        Column("ms", lambda row: f"{_ms(row['shift'].before_s)} → {_ms(row['shift'].after_s)}", WORDED),
    )
    return [table_of("Change points", columns, rows, closed=False)] if rows else []


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
            {"label": series.label, "numbers": {point.visit: point.step_time_s for point in series.points}}
            for series in history.series
            if series.suite == suite
        ]
        days = (Column(history.visits[at].session.day, _number_at(at), "ms") for at in places)
        title = "Step time in ms, the newest session first" + (f": {suite}" if len(suites) > 1 else "")
        made.append(table_of(title, (Column("Case", "label"), *days), rows))
    return tuple(made)


def _number_at(visit: int) -> Callable[[dict[str, Any]], float | None]:
    return lambda row: row["numbers"].get(visit)


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
