"""Step times over sessions: a section of the report, and the page of `parabench history`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.history import (
    MOST_CHANGES,
    NOTHING,
    History,
    Series,
    arrow,
    of_visits,
    sentence,
    visits_of,
)
from parabench.analysis.numbers import WORK, work_text
from parabench.analysis.session import Session
from parabench.analysis.stats.change_point import FEWEST_SESSIONS
from parabench.report.figures.figures import (
    ERROR_BARS,
    LEGEND_NAME,
    Panel,
    Trace,
    cut,
    lay_out,
    listed,
    marks,
    plain,
    short,
    vertical,
)
from parabench.report.page import fill
from parabench.report.palette import ALGORITHM, SYMBOLS, colour_of
from parabench.report.spec import FORMATS, Section, Table
from parabench.store.results import Results

_ms = FORMATS["ms"]
# The most figures, and the most lines of a figure, which have different symbols.
MOST_PANELS, _MOST_LINES = 12, len(SYMBOLS)
# The most sessions in a report, whose cost must not depend on the length of the database, and in an open table.
MOST_SESSIONS = 30
# Fewer sessions have no history.
FEWEST = 2
# Cases of one color have different dashes.
_DASHES = ("solid", "dash", "dot", "dashdot")
# The most dates that a phone has room for, and the most characters of a name in a tooltip.
_MOST_TICKS, _LONGEST = 4, 60


def history_section(results: Results, session: Session) -> Section | None:
    """Return the section of the newest sessions of the suite, and `session`; None if no case was measured twice."""
    trained = results.listed["id"].isin(list(results.of_kind("training"))) & (results.listed["suite"] == session.suite)
    ids = results.listed[trained].sort_values(["started_utc", "id"])["id"].tolist()
    kept = {*ids[-MOST_SESSIONS:], session.id}
    history = of_visits(visits_of([results.of(kept)]))
    judged = [at for at, visit in enumerate(history.visits) if visit.session.judged]
    if not any(series["measured"]["visit"].isin(judged).sum() >= FEWEST for series in history.series):
        return None
    left = len(ids) - len(kept)
    older = f" `parabench history` also shows {format.count(left, 'older session')} of this suite." if left else ""
    return _section(history, sentence(history) + older)


def render(history: History) -> str:
    """Return the page."""
    suites = list(dict.fromkeys(visit.session.suite for visit in history.visits))
    sections = [
        _section(history, ""),
        Section(
            "cases",
            "Every case",
            "“Sessions differ” is the standard deviation between sessions, beyond the differences of their launches. "
            "The step times follow in ms, the newest session first.",
            tables=tuple(_cases(history, suite) for suite in suites),
        ),
        Section("sessions", "Sessions", "The newest first.", tables=(_sessions(history),)),
    ]
    return fill(
        "history.html",
        sections,
        suites=", ".join(suites),
        first=history.visits[0].session.day,
        last=history.visits[-1].session.day,
        sentence=sentence(history),
        stores=format.listed(dict.fromkeys(str(visit.results.path) for visit in history.visits)),
    )


def _section(history: History, lead: str) -> Section:
    return Section(
        "history",
        "Over time",
        "A mark is a session's step time with its 95% interval; a line is the level, and a diamond a change point.",
        "No launch succeeded, so nothing is drawn.",
        (_changes(history),),
        panels=_panels(history)[:MOST_PANELS],
        lead=lead,
        reading="The interval of a mark covers the session's launches; sessions vary by more than that. The axis does "
        f"not start at zero. A change point needs {FEWEST_SESSIONS} sessions of a configuration. From there on, the "
        "step time differs by more than sessions vary anyway. After a dotted line, sessions ran on another machine or "
        f"with other software. At most {MOST_PANELS} figures of {_MOST_LINES} configurations are drawn; the newest "
        "changes come first.",
    )


# ---- figures


def _panels(history: History) -> list[Panel]:
    """Return a figure for each suite, strategy, world size and workload; the newest changes first."""
    drawn = [series for series in history.series if len(series["measured"])]
    if not drawn:
        return []
    fields = pd.DataFrame(
        [each["case"].to_dict() | {"device": each["device"], "suite": each["suite"]} for each in drawn]
    )
    differing = [name for name in ("suite", *WORK) if fields[name].nunique(dropna=False) > 1]
    panels = []
    for _, group in fields.groupby(["strategy", "world_size", *differing], sort=False, dropna=False):
        first = drawn[group.index[0]]
        ranks, work = format.count(first["case"].world_size, "rank"), work_text(fields.loc[group.index[0], differing])
        title = " · ".join(filter(None, (f"{first['case'].strategy}, {ranks}", work)))
        panels.append(_over_time(history, [drawn[at] for at in group.index[:_MOST_LINES]], title))
    return panels


def _over_time(history: History, drawn: Sequence[Series], title: str) -> Panel:
    """Return a figure of cases of one suite: a mark with an interval for each session, a line for the levels, and a
    dotted line before a session with another machine or software."""
    places = [i for i, visit in enumerate(history.visits) if visit.session.suite == drawn[0]["suite"]]
    at = {visit: x for x, visit in enumerate(places)}
    colors = [colour_of(ALGORITHM, series["case"].algorithm) for series in drawn]
    traces: list[Trace] = []
    for i, (series, color) in enumerate(zip(drawn, colors, strict=True)):
        dash = _DASHES[colors[:i].count(color) % len(_DASHES)]
        traces += _line(history, series, at, {"color": color, "dash": dash}, SYMBOLS[i])
    ticks = list(range(len(places) - 1, -1, min(-1, -len(places) // _MOST_TICKS)))
    xaxis = {
        "tickvals": ticks,
        # Two lines, so that a phone has room for several days.
        "ticktext": ["{1}<br>{0}".format(*history.visits[places[x]].session.day.split("-", 1)) for x in ticks],
        "tickangle": 0,
        "ticklabeloverflow": "allow",
        "range": [-0.6, len(places) - 0.4],
        "showgrid": False,
    }
    shapes = [
        vertical(x - 0.5, width=1, dash="dot")
        | {"label": {"text": plain(short(found[0].name, 16)) + " …" * (len(found) > 1), "textposition": "end"}}
        for visit, x in at.items()
        if (found := history.machine[visit]) and history.visits[visit].session.judged
    ]
    figure = lay_out(traces, "", "step time (ms)", xaxis=xaxis, shapes=shapes)
    return Panel(title, figure, 340 + 20 * len(drawn), wide=len(places) > 60)


def _line(history: History, series: Series, at: dict[int, int], line: dict[str, Any], symbol: str) -> Iterator[Trace]:
    """Yield the step times and the levels of a case, which the page's filters select together."""
    points, shifts = series["measured"], {shift["visit"]: shift for shift in series["shifts"]}
    visits, step_s = points["visit"].tolist(), points["step_time_s"]
    hovers = []
    for visit, time_s in zip(visits, step_s, strict=True):
        session, shift = history.visits[visit].session, shifts.get(visit)
        change = [f"{format.signed(shift['change'])} from here on"] if shift else []
        commit = f", commit {session.commit}" if session.commit else ""
        found = [short(arrow(each), _LONGEST) for each in (shift["changed"] if shift else history.machine[visit])]
        told = [f"{series['label']}: {_ms(time_s)} ms", f"{session.day}, {short(session.name, _LONGEST)}{commit}"]
        hovers.append("<br>".join(map(plain, [*told, *change, *found[:MOST_CHANGES]])))
    # Without the parts of the label that are in the heading of the figure.
    ranks = f", {format.count(series['case'].world_size, 'rank')}"
    name = cut(series["label"].removeprefix(f"{series['case'].strategy} ").replace(ranks, "", 1), LEGEND_NAME)
    group = {"legendgroup": series["case_id"], "meta": series["case_id"]}
    marker = {
        "color": line["color"],
        "symbol": ["diamond" if visit in shifts else symbol for visit in visits],
        "size": [13 if visit in shifts else 7 for visit in visits],
    }
    error = {"array": listed(points["high_s"] - step_s, 1e3), "arrayminus": listed(step_s - points["low_s"], 1e3)}
    yield marks(
        [at[visit] for visit in visits],
        listed(step_s, 1e3),
        name,
        hovers,
        marker,
        # Without levels, lines connect the marks.
        mode="lines+markers" if series["why_not"] else "markers",
        line=line | {"width": 1},
        error_y=ERROR_BARS | {"thickness": 1, "width": 0} | error,
        **group,
    )
    levels = series["points"][series["points"]["level_s"].notna()]
    yield {
        "type": "scatter",
        "mode": "lines",
        "x": levels["visit"].map(at).tolist(),
        "y": listed(levels["level_s"], 1e3),
        "name": name,
        "line": line | {"width": 2, "shape": "hvh"},
        "hoverinfo": "skip",
        "showlegend": False,
        **group,
    }


# ---- tables


def _changes(history: History) -> Table:
    """Return the table of all change points, the newest first."""
    found = [(shift, series) for series in history.series for shift in series["shifts"]]
    found.sort(key=lambda each: (-each[0]["visit"], -each[0]["change"]))
    rows: list[tuple[str, ...]] = [
        (
            series["label"],
            history.visits[shift["visit"]].session.name,
            format.listed(map(arrow, shift["changed"]), MOST_CHANGES) or NOTHING,
            history.visits[shift["visit"]].session.day,
            format.signed(shift["change"]),
            f"{format.signed(shift['low'])} to {format.signed(shift['high'])}",
            f"{_ms(shift['before_s'])} → {_ms(shift['after_s'])}",
        )
        for shift, series in found
    ]
    head = ("Case", "Session", "Changes at that time", "Since", "Change", "95%", "ms")
    return Table("Change points", head, rows, 3, closed=False, cases=tuple(series["case_id"] for _, series in found))


def _cases(history: History, suite: str) -> Table:
    """Return the table of the cases of a suite, with their step times by session, the newest first."""
    rows: list[tuple[str, ...]] = []
    places = [at for at, visit in enumerate(history.visits) if visit.session.suite == suite][::-1]
    for series in (each for each in history.series if each["suite"] == suite):
        change, whole = (series["shifts"][-1]["change"], series["whole"]) if series["shifts"] else (None, None)
        state = "; ".join(filter(None, (series["state"], series["note"])))
        step_s = series["points"].set_index("visit")["step_time_s"].reindex(places)
        changes = (*map(FORMATS["signed"], (change, whole)), FORMATS["percent"](series["session_sd"]))
        rows.append((series["label"], state, *changes, *map(_ms, step_s)))
    days = (history.visits[at].session.day for at in places)
    head = ("Case", "State", "Last change", "Whole time", "Sessions differ", *days)
    return Table(f"Cases of {suite}, in ms by session", head, rows, 2, closed=False)


def _sessions(history: History) -> Table:
    """Return the table of sessions, the newest first, with the changes of machine and software."""
    rows = [
        (
            session.name + " (side a: not followed)" * (not session.judged),
            session.suite,
            format.listed(map(arrow, changed)),
            format.when(session.started_utc),
            *map(format.or_unknown, (session.known("host"), session.known("versions", "torch"), session.commit)),
        )
        for session, changed in zip((visit.session for visit in history.visits), history.machine, strict=True)
    ]
    head = ("Session", "Suite", "Changed since the one before", "Began", "Host", "torch", "Commit")
    return Table("Sessions", head, rows[::-1], 3, closed=len(rows) > MOST_SESSIONS)
