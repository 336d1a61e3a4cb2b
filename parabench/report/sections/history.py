"""Show step times over sessions, in a section of the report and on the page of `parabench history`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pandas as pd

from parabench.analysis import format
from parabench.analysis.history import (
    MOST_CHANGES,
    NOTHING,
    History,
    Series,
    answer,
    arrow,
    of_visits,
    sentence,
    visits_of,
)
from parabench.analysis.numbers import WORK
from parabench.analysis.session import Session
from parabench.analysis.stats.change_point import FEWEST_SESSIONS
from parabench.report.figures import (
    LEGEND_NAME,
    SYMBOLS,
    Panel,
    Trace,
    algorithm_style,
    cut,
    error_bars,
    lay_out,
    listed,
    marks,
    plain,
    short,
    vertical,
)
from parabench.report.spec import FORMATS, WORDED, Column, Section, table_of
from parabench.report.views.answer import AnswerView
from parabench.store.results import Results

_ms = FORMATS["ms"]
# The most figures, and the most lines of a figure, which have different symbols.
MOST_PANELS, _MOST_LINES = 12, len(SYMBOLS)
# The most sessions in a report, whose cost must not depend on the length of the database, and in an open table.
MOST_SESSIONS = 30
# Fewer sessions have no history.
FEWEST = 2
# The most dates that a phone has room for, and the most characters of a name in a tooltip.
_MOST_TICKS, _LONGEST = 4, 60


def history_section(results: Results, session: Session) -> Section | None:
    """Return the section of the newest sessions of a suite, and `session`; None if no case has two of them."""
    trained = results.listed["id"].isin(list(results.of_kind("training"))) & (results.listed["suite"] == session.suite)
    ids = results.listed[trained].sort_values(["started_utc", "id"])["id"].tolist()
    kept = {*ids[-MOST_SESSIONS:], session.id}
    history = of_visits(visits_of([results.of(kept)]))
    judged = [at for at, visit in enumerate(history.visits) if visit.session.judged]
    if not any(_measured(series)["visit"].isin(judged).sum() >= FEWEST for series in history.series):
        return None
    left = len(ids) - len(kept)
    older = f" `parabench history` also shows {format.count(left, 'older session')} of this suite." if left else ""
    return _section(history, sentence(history) + older)


def render(history: History) -> str:
    """Return the HTML of the page of `parabench history`."""
    suites = ", ".join(dict.fromkeys(visit.session.suite for visit in history.visits))
    days = dict.fromkeys((history.visits[0].session.day, history.visits[-1].session.day))
    stores = format.listed(dict.fromkeys(str(visit.results.path) for visit in history.visits))
    every = table_of("Every configuration", _CASES, history.series, closed=False)
    text = "“Between sessions” is the standard deviation between sessions, without the variation of launches."
    # The newest first.
    rows = list(zip((visit.session for visit in history.visits), history.machine, strict=True))[::-1]
    sessions = table_of("Sessions", _SESSIONS, rows, closed=len(rows) > MOST_SESSIONS)
    return AnswerView(
        "When did each configuration's step time change?",
        f"{suites} over time",
        answer(history),
        [
            _section(history, ""),
            Section("cases", "Every configuration", text, tables=(every,)),
            Section("sessions", "Sessions", "The newest first.", tables=(sessions,)),
        ],
        kicker=f"parabench · {suites} · {' to '.join(days)}",
        trust=[f"Results databases: {stores}."],
    ).html()


def _section(history: History, lead: str) -> Section:
    changes = [
        shift | {"label": series["label"], "session": history.visits[shift["visit"]].session}
        for series in history.series
        for shift in series["shifts"]
    ]
    changes.sort(key=lambda row: (-row["visit"], -row["change"]))  # the newest first
    return Section(
        "history",
        "Over time",
        "A mark is a session's step time with its 95% interval; a line is the level, and a diamond a change point.",
        "No launch succeeded, so nothing is drawn.",
        (table_of("Change points", _CHANGES, changes, closed=False),),
        panels=_panels(history)[:MOST_PANELS],
        lead=lead,
        reading="The interval of a mark covers the session's launches; sessions vary by more. The axis does not start "
        f"at zero. A change point needs {FEWEST_SESSIONS} sessions of a configuration. After a dotted line, sessions "
        f"ran on another machine or with other software. At most {MOST_PANELS} figures of {_MOST_LINES} configurations "
        "are drawn; the newest changes come first.",
    )


def _measured(series: Series) -> pd.DataFrame:
    points: pd.DataFrame = series["points"]
    return points[points["step_time_s"].notna()]


# ---- figures


def _panels(history: History) -> list[Panel]:
    """Return a figure for each suite, strategy, number of ranks and workload; the newest changes first."""
    groups: dict[tuple[str, ...], list[Series]] = {}
    for series in history.series:
        if len(_measured(series)):
            fields = series["case"].to_dict() | {"device": series["device"]}
            ranks = f"{fields['strategy']}, {format.count(fields['world_size'], 'rank')}"
            key = (ranks, series["suite"], *(f"{name}={fields[name]}" for name in WORK))
            groups.setdefault(key, []).append(series)
    differing = [len(set(values)) > 1 for values in zip(*groups, strict=True)]
    return [
        _over_time(history, drawn[:_MOST_LINES], " · ".join([key[0], *itertools.compress(key[1:], differing[1:])]))
        for key, drawn in groups.items()
    ]


def _over_time(history: History, drawn: Sequence[Series], title: str) -> Panel:
    """Return the figure of step times of cases of one suite over sessions.

    Each session has a mark with an interval. Lines show the levels. A dotted line is before a session on another
    machine or with other software.
    """
    places = [at for at, visit in enumerate(history.visits) if visit.session.suite == drawn[0]["suite"]]
    x_of = {visit: x for x, visit in enumerate(places)}
    lines = zip(drawn, SYMBOLS, strict=False)
    traces = [trace for series, symbol in lines for trace in _line(history, series, x_of, symbol)]
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
        for visit, x in x_of.items()
        if (found := history.machine[visit]) and history.visits[visit].session.judged
    ]
    figure = lay_out(traces, "", "step time (ms)", xaxis=xaxis, shapes=shapes)
    return Panel(title, figure, 340 + 20 * len(drawn), wide=len(places) > 60)


def _line(history: History, series: Series, x_of: dict[int, int], symbol: str) -> Iterator[Trace]:
    """Yield the step times and the levels of a case, which the page's filters select together."""
    points, changed = _measured(series), {shift["visit"] for shift in series["shifts"]}
    visits, step_s = points["visit"].tolist(), points["step_time_s"]
    color = algorithm_style(series["case"].algorithm).color
    hovers = []
    for visit, *times in points[["visit", "step_time_s", "low_s", "high_s"]].itertuples(index=False):
        session, (time, low, high) = history.visits[visit].session, map(_ms, times)
        texts = f"{series['label']}: {time} ms ({low} to {high})", f"{session.day}, {short(session.name, _LONGEST)}"
        hovers.append("<br>".join(map(plain, texts)))
    # Without the parts of the label that are in the heading of the figure.
    ranks = f", {format.count(series['case'].world_size, 'rank')}"
    name = cut(series["label"].removeprefix(f"{series['case'].strategy} ").replace(ranks, "", 1), LEGEND_NAME)
    group = {"legendgroup": series["case_id"], "meta": series["case_id"]}
    looks = [("diamond", 13) if visit in changed else (symbol, 7) for visit in visits]
    marker = {"color": color, "symbol": [shape for shape, _ in looks], "size": [size for _, size in looks]}
    # Without levels, lines connect the marks.
    look = {"mode": "lines+markers" if series["why_not"] else "markers", "line": {"color": color, "width": 1}}
    look["error_y"] = error_bars(step_s, points["low_s"], points["high_s"], 1e3, thickness=1, width=0)
    yield marks([x_of[visit] for visit in visits], step_s * 1e3, name, hovers, marker, **look, **group)
    levels = points[points["level_s"].notna()]
    line = {"color": color, "width": 2, "shape": "hvh"}
    yield {
        "type": "scatter", "mode": "lines", "name": name, "line": line, "hoverinfo": "skip", "showlegend": False,
        "x": levels["visit"].map(x_of).tolist(), "y": listed(levels["level_s"], 1e3), **group,
    }  # fmt: skip


# ---- tables

_CHANGES = (
    Column("Configuration", "label"),
    Column("Session", lambda row: row["session"].name),
    Column("Changes at that time", lambda row: format.listed(map(arrow, row["changed"]), MOST_CHANGES) or NOTHING),
    Column("Since", lambda row: row["session"].day, WORDED),
    Column("Change", "change", "signed"),
    Column("95%", lambda row: f"{format.signed(row['low'])} to {format.signed(row['high'])}", WORDED),
    Column("ms", lambda row: f"{_ms(row['before_s'])} → {_ms(row['after_s'])}", WORDED),
)
_CASES = (
    Column("Configuration", "label"),
    Column("State", lambda series: "; ".join(filter(None, (series["state"], series["note"])))),
    Column("Newest, ms", lambda series: next(iter(_measured(series)["step_time_s"][::-1]), None), "ms"),
    Column("Whole time", lambda series: series["whole"] if series["shifts"] else None, "signed"),
    Column("Between sessions", "session_sd", "percent"),
)
_SESSIONS = (
    Column("Session", lambda row: row[0].name + " (variant a: not followed)" * (not row[0].judged)),
    Column("Suite", lambda row: row[0].suite),
    Column("Changed since the session before", lambda row: format.listed(map(arrow, row[1])) or None),
    Column("Started", lambda row: format.when(row[0].started_utc), WORDED),
    Column("Commit", lambda row: format.or_unknown(row[0].commit), WORDED),
)
