"""How fast each case was over the sessions of its suite: a section of the report, and those of a page of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from parabench.analysis.environment.diff import Difference
from parabench.analysis.history.history import of_visits, visits_of
from parabench.analysis.history.series import History, Series
from parabench.analysis.numbers import same_work
from parabench.analysis.session import Session
from parabench.analysis.stats.change_point import FEWEST_SESSIONS
from parabench.analysis.text import format
from parabench.analysis.text.history import MOST_CHANGES, NOTHING, arrow, note, sentence
from parabench.report.figures.figures import Panel
from parabench.report.figures.history import MOST_LINES, over_time
from parabench.report.page import fill
from parabench.report.spec import FORMATS, WORDED, Column, Section, Table, table_of
from parabench.store.results import Results, records

_ms = FORMATS["ms"]
# More figures than this are a wall; what changed last comes first.
MOST_PANELS = 12
# A table of more sessions than this is closed at first.
MOST_OPEN = 30
# A report tells of as many sessions beside its own: it is to cost what its session holds, however long the store is.
MOST_SESSIONS = 30
# Below two sessions there is nothing to follow.
FEWEST = 2


def history_section(results: Results, session: Session) -> Section | None:
    """The newest sessions of the suite of `session`, and itself; None where no case was measured twice."""
    kept, left = _newest(results, session)
    visits = visits_of([results.of(kept)])
    if sum(visit.session.judged for visit in visits) < FEWEST:
        return None
    history = of_visits(visits)
    if not any(_times(history, series) >= FEWEST for series in history.series):
        return None
    said = sentence(history)
    if left:
        said += f" Of this suite {format.count(left, 'older session')} of the store are left out: `parabench history`."
    return _section(history, said)


def _newest(results: Results, session: Session) -> tuple[set[int], int]:
    """(the ids of the newest sessions of the suite that trained, and the session's own; how many are left out)."""
    trained = set(results.of_kind("training"))
    listed = records(results.listed, ("started_utc", "id", "suite"))
    own = sorted((row["started_utc"], row["id"]) for row in listed if row["suite"] == session.suite)
    ids = [at for _, at in own if at in trained]
    kept = {*ids[-MOST_SESSIONS:], session.id}
    return kept, len(ids) - len(kept)


def page_sections(history: History) -> list[Section]:
    """Those of the page of a history."""
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


def _times(history: History, series: Series) -> int:
    return sum(point.step_time_s is not None and history.visits[point.visit].session.judged for point in series.points)


def _section(history: History, lead: str) -> Section:
    panels = _panels(history)
    most = max((sum(point.level_s is not None for point in series.points) for series in history.series), default=0)
    said = [
        "The interval of a mark covers the session's launches; sessions vary by more than that. The axis does not "
        "start at zero."
    ]
    if most:
        said.append("From a change point on, the step time differs by more than sessions vary anyway.")
    else:
        said.append(f"Change points are detected from {FEWEST_SESSIONS} sessions of a case on.")
    if len(panels) > MOST_PANELS:
        said.append(f"The {MOST_PANELS} figures with the newest changes are drawn.")
    if any(len(group) > MOST_LINES for group in _groups(history)):
        said.append(f"A figure has at most {MOST_LINES} cases, those with the newest changes.")
    said.append("A dotted line: the next session ran on another machine or with other software.")
    return Section(
        "history",
        "Over time",
        "A mark is a session's step time with its 95 % interval; a line is a level, a diamond a change point.",
        "No launch succeeded, so there is nothing to draw.",
        tuple(_changes(history)),
        panels=panels[:MOST_PANELS],
        lead=lead,
        reading=" ".join(said),
    )


def _groups(history: History) -> list[list[Series]]:
    """The cases with a number that share a suite, a strategy, a world size and a work; the newest changes first."""
    groups: dict[tuple[str, str, int], list[Series]] = {}
    for series in history.series:
        if series.newest is not None:
            groups.setdefault((series.suite, series.case.strategy, series.case.world_size), []).append(series)
    return list(groups.values())


def _panels(history: History) -> list[Panel]:
    several = len({series.suite for series in history.series}) > 1
    drawn = []
    for group in _groups(history):
        first = group[0]
        title = f"{first.case.strategy}, {format.count(first.case.world_size, 'rank')}"
        rows = [each.case.to_dict() | {"device": each.device, "place": i} for i, each in enumerate(group)]

        def draw(table: pd.DataFrame, group: list[Series] = group, title: str = title) -> list[Panel]:
            return [over_time(history, [group[place] for place in table["place"]], title)]

        suite = f"{first.suite}: " if several else ""
        drawn += [
            Panel(suite + panel.title, panel.figure, panel.height, panel.wide)
            for panel in _each_work(pd.DataFrame(rows), draw)
        ]
    return drawn


def _each_work(cases: pd.DataFrame, draw: Callable[[pd.DataFrame], list[Panel]]) -> list[Panel]:
    """What `draw` makes of the cases of each work, with the work in the heading where there are several."""
    works = same_work(cases)
    drawn = [(work, panel) for work, group in works for panel in draw(group)]
    if len(works) < 2:
        return [panel for _, panel in drawn]
    return [replace(panel, title=" · ".join(filter(None, (panel.title, _work_name(work))))) for work, panel in drawn]


def _work_name(work: dict[str, Any]) -> str:
    """What sets a work apart from others: model, data, batch, precision and device."""
    data = f"{work['data']} ({work['vocabulary']})" if work["vocabulary"] else work["data"]
    batch = f"{work['global_batch']} × {work['seq_len']}" if work["seq_len"] > 1 else work["global_batch"]
    return f"{work['model']}, {data}, batch {batch}, {work['precision']}, {work['device']}"


def _changes(history: History) -> list[Table]:
    """Every change point, the newest first."""
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
    """Every case: what became of it, and its newest number."""
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
    """The newest first, each with what changed on its machine since the one before of its suite."""
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
    return table_of("Sessions", columns, reversed(rows), closed=len(rows) > MOST_OPEN)


def _changed(changes: Sequence[Difference], most: int = 6) -> str:
    return format.listed(map(arrow, changes), most)


def _numbers(history: History) -> tuple[Table, ...]:
    """Of each suite a table: a case a row, a session a column."""
    made = []
    suites = dict.fromkeys(series.suite for series in history.series)
    for suite in suites:
        places = [i for i, visit in enumerate(history.visits) if visit.session.suite == suite][::-1]
        rows = [
            {"label": series.label, "numbers": {point.visit: point.step_time_s for point in series.points}}
            for series in history.series
            if series.suite == suite
        ]
        days = (Column(history.visits[at].session.day, partial(_number_at, at), "ms") for at in places)
        title = "Step time in ms, the newest session first" + (f": {suite}" if len(suites) > 1 else "")
        made.append(table_of(title, (Column("Case", "label"), *days), rows))
    return tuple(made)


def _number_at(visit: int, row: dict[str, Any]) -> float | None:
    number: float | None = row["numbers"].get(visit)
    return number


def render(history: History) -> str:
    """The page as text."""
    return fill(
        "history.html",
        page_sections(history),
        suites=", ".join(dict.fromkeys(visit.session.suite for visit in history.visits)),
        first=history.visits[0].session.day,
        last=history.visits[-1].session.day,
        sentence=sentence(history),
        stores=format.listed(dict.fromkeys(str(visit.results.path) for visit in history.visits)),
    )
