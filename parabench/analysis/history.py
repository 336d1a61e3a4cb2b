"""The step times of each configuration over sessions of one or more results databases, and their change points.

`history` reads the sessions (`visits`), and makes a `Series` of each case of each suite: a `SessionPoint` per session
and a `Shift` per change point (`stats.change_point`). docs/site/keys.toml describes every field. The second half of the
module puts them into words and an answer.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.special import ndtri, stdtrit

from parabench.analysis import format
from parabench.analysis.answer import Answer, columns, keyed, tables
from parabench.analysis.environment.diff import Difference, changes
from parabench.analysis.numbers import case_of, numbers, status_counts, unique_labels
from parabench.analysis.session import SessionData, data_of, select_sessions
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.block_model import moderated
from parabench.analysis.stats.change_point import FEWEST_SESSIONS, Level, launch_noise, levels_of
from parabench.analysis.stats.contrasts import FEWEST_LAUNCHES, Numbers
from parabench.errors import UsageError, did_you_mean, needs_package
from parabench.plan.case import Case
from parabench.store.record import FIRST_BLOCK
from parabench.store.results import Results

# Series.why_not if the package that finds change points is missing.
NO_RUPTURES = f"finding a change point {needs_package('ruptures')}"
# The weight of the variance of all sessions of a series, in launches of the session itself.
SERIES_WEIGHT = 1.0
# More simultaneous changes than this are cut.
MOST_CHANGES = 4
NOTHING = "nothing else that is recorded changed then"

_OF_LAUNCH = ["case", "case_json", "device", "launch_id", "status", "step_s", "timed"]


@dataclass(frozen=True)
class SessionPoint:
    """A case in the session at index `visit` of the history."""

    visit: int
    step_time_s: float | None
    low_s: float | None
    high_s: float | None
    launches: tuple[int, ...]
    status: str
    level_s: float | None
    outlier: bool


@dataclass(frozen=True)
class Shift:
    """A change point: session `visit` is the first with the new level."""

    visit: int
    before_s: float
    after_s: float
    change: float
    low: float
    high: float
    changed: tuple[Difference, ...]


@dataclass(frozen=True)
class Series:
    """A case of a suite over sessions. `why_not` is the reason if change points cannot be found."""

    suite: str
    case: Case
    device: str
    label: str
    points: tuple[SessionPoint, ...]
    shifts: tuple[Shift, ...]
    session_sd: float | None
    launch_sd: float | None
    why_not: str | None

    @property
    def newest(self) -> SessionPoint | None:
        return next((point for point in reversed(self.points) if point.step_time_s is not None), None)

    @property
    def levels(self) -> list[float]:
        """The level of each session in which change points are sought."""
        return [point.level_s for point in self.points if point.level_s is not None]

    @property
    def whole(self) -> float | None:
        """The change from the first level to the last, as a fraction."""
        return self.levels[-1] / self.levels[0] - 1 if self.levels else None

    @property
    def away(self) -> float | None:
        """The difference of the newest session from its level, as a fraction, if it is an outlier: one session is not a
        change, but may be the start of one."""
        last = self.points[-1]
        if not last.outlier or last.step_time_s is None or last.level_s is None:
            return None
        return last.step_time_s / last.level_s - 1

    @property
    def state(self) -> str:
        """The state of the case in a word or two."""
        if self.newest is None:
            return "no number"
        if self.why_not is not None:
            return "unknown" if self.why_not == NO_RUPTURES else "too few"
        if not self.shifts:
            return "unchanged"
        return "slower" if self.shifts[-1].change > 0 else "faster"

    def urgency(self) -> tuple[int, int, float, str]:
        """Return the sort key: the most recent change first, then the largest slowdown, then outliers."""
        if self.shifts:
            return 0, -self.shifts[-1].visit, -self.shifts[-1].change, self.label
        return (2, 0, 0.0, self.label) if self.away is None else (1, 0, -self.away, self.label)


@dataclass(frozen=True)
class History:
    """All cases, by urgency; `visits` are the sessions, the oldest first."""

    visits: tuple[SessionData, ...]
    series: tuple[Series, ...]

    @cached_property
    def machine(self) -> tuple[tuple[Difference, ...], ...]:
        """For each session, the differences of machine and software from the previous judged session of its suite,
        without the commit, which nearly always changes."""
        previous: dict[str, SessionData] = {}
        found = []
        for visit in self.visits:
            suite = visit.session.suite
            devices = {series.device for series in self.series if series.suite == suite}
            different = changes(previous[suite], visit, devices) if suite in previous else ()
            found.append(tuple(change for change in different if change.name != "commit"))
            if visit.session.judged:
                previous[suite] = visit
        return tuple(found)

    @property
    def changed(self) -> list[Series]:
        return [series for series in self.series if series.shifts]


def history(
    stores: Sequence[Results], *, case: str | None = None, suite: str | None = None, since: str | None = None
) -> History:
    """Return the history of training runs.

    Args:
        case: only cases whose label contains this text, or whose id starts with it.
        suite: only sessions of this suite.
        since: only sessions that started then or later (ISO 8601, UTC).

    Raises:
        UsageError: there is no such session or case.
    """
    paths = format.listed(str(results.path) for results in stores)
    found = visits_of(stores)
    if not found:
        raise UsageError(f"no session that trained is in {paths}; give the results.db of `parabench run`")
    visits = [visit for visit in found if suite is None or visit.session.suite == suite]
    if not visits:
        there = list(dict.fromkeys(visit.session.suite for visit in found))
        hint = did_you_mean(str(suite), there)
        raise UsageError(f"no session of suite {suite!r} is in {paths}; {hint}there are sessions of {', '.join(there)}")
    recent = [visit for visit in visits if since is None or visit.session.started_utc >= since]
    if not recent:
        raise UsageError(f"no session started since {since}; the newest began {visits[-1].session.started_utc}")
    return of_visits(recent, case)


def of_visits(visits: Sequence[SessionData], case: str | None = None) -> History:
    """Return the history of these sessions. Raises UsageError, with similar names, if there is no such case."""
    table = numbers_of(visits)
    if case is not None:
        meant = table["label"].str.contains(case, case=False, regex=False) | table["case"].str.startswith(case)
        if not meant.any():
            labels = list(dict.fromkeys(table["label"]))
            hint = did_you_mean(case, [*labels, *" ".join(labels).replace(",", "").split()])
            raise UsageError(
                f"--case {case!r} is in no case's label and begins no id; {hint}there are {format.listed(labels, 3)}"
            )
        table = table[meant]
    series = [_series(visits, group) for _, group in table.groupby(["suite", "case"], sort=False)]
    return History(tuple(visits), tuple(sorted(series, key=Series.urgency)))


def visits_of(stores: Sequence[Results]) -> list[SessionData]:
    """Return all sessions of training runs, the oldest first. Of copies in several databases, the one with the most
    launches counts."""
    once: dict[tuple[str, ...], tuple[int, SessionData]] = {}
    for results in stores:
        launches = Counter(results.launch["session_id"].tolist())
        for session in select_sessions(results, results.of_kind("training")):
            if session.identity not in once or once[session.identity][0] < launches[session.id]:
                once[session.identity] = launches[session.id], data_of(results, session)
    visits = [visit for _, visit in once.values()]
    return sorted(visits, key=lambda visit: (visit.session.started_utc, visit.session.interleaved.get("side", "")))


def numbers_of(visits: Sequence[SessionData]) -> pd.DataFrame:
    """Return the repetitions of all visits, with the columns of `numbers.numbers`; each database is read once.

    `visit` is the index of the session in `visits`, `suite` is its suite, and `label` is unique among all cases.
    """
    tables = []
    for store in {id(whole): whole for whole in (visit.results.whole_store for visit in visits)}.values():
        own = {visit.session.id: place for place, visit in enumerate(visits) if visit.results.whole_store is store}
        table = numbers(store, *(visits[place].session for place in own.values()))
        table = table[table["repetition"] >= FIRST_BLOCK]
        # Columns that are unknown in one database would lose their type next to another database.
        tables.append(table[_OF_LAUNCH].assign(visit=table["session"].map(own)))
    table = pd.concat(tables, ignore_index=True)
    stored = table.drop_duplicates("case")
    cases = {str(case): case_of(text) for case, text in zip(stored["case"], stored["case_json"], strict=True)}
    return table.assign(
        suite=[visits[place].session.suite for place in table["visit"]],
        label=table["case"].map(unique_labels(cases)).astype(object),
    )


def _series(visits: Sequence[SessionData], table: pd.DataFrame) -> Series:
    """Return the series of one case of one suite; `table` is its part of `numbers_of`."""
    places: list[int] = table["visit"].drop_duplicates().sort_values().tolist()
    every = {visit: table[table["visit"] == visit] for visit in places}
    good = {visit: own for visit, group in every.items() if len(own := group[group["timed"]])}
    logs = {visit: np.log(group["step_s"].to_numpy(dtype=float)) for visit, group in good.items()}
    judged = [visit for visit in logs if visits[visit].session.judged]
    levels: tuple[Level, ...] = ()
    session_sd = why_not = None
    if len(judged) < FEWEST_SESSIONS:
        there = format.count(len(judged), "session")
        why_not = f"{there} with a number so far, and a change point needs {FEWEST_SESSIONS}"
    elif find_spec("ruptures") is None:
        why_not = NO_RUPTURES
    else:
        levels, noise = levels_of([logs[visit] for visit in judged])
        session_sd = math.expm1(noise.session)
    level_of = {judged[i]: math.exp(level.mean) for level in levels for i in range(level.start, level.end)}
    outliers = {judged[i] for level in levels for i in level.outliers}
    launch_sd = launch_noise(list(logs.values()))
    points = []
    for visit, group in every.items():
        launches = tuple(good[visit]["launch_id"].tolist()) if visit in good else ()
        status, interval = status_counts(group["status"]), _interval(logs.get(visit), launch_sd)
        points.append(SessionPoint(visit, *interval, launches, status, level_of.get(visit), visit in outliers))
    newest = every[places[-1]].iloc[0]
    devices = set(table["device"])
    return Series(
        suite=str(newest["suite"]),
        case=case_of(newest["case_json"]),
        device=str(newest["device"]),
        label=str(newest["label"]),
        points=tuple(points),
        shifts=tuple(_shift(*pair, visits, judged, devices) for pair in itertools.pairwise(levels)),
        session_sd=session_sd,
        launch_sd=None if launch_sd is None else math.expm1(launch_sd),
        why_not=why_not,
    )


def _shift(before: Level, after: Level, visits: Sequence[SessionData], judged: list[int], devices: set[str]) -> Shift:
    difference = after.mean - before.mean
    half = float(ndtri((1 + CONFIDENCE) / 2)) * math.hypot(before.error, after.error)
    visit, last = judged[after.start], judged[after.start - 1]
    return Shift(
        visit=visit,
        before_s=math.exp(before.mean),
        after_s=math.exp(after.mean),
        change=math.expm1(difference),
        low=math.expm1(difference - half),
        high=math.expm1(difference + half),
        changed=changes(visits[last], visits[visit], devices),
    )


def _interval(logs: Numbers | None, launch_sd: float | None) -> tuple[float | None, float | None, float | None]:
    """Return the (mean, low, high) of a session in seconds, with a t interval.

    The variance of few launches is moderated by the variance in the series.
    """
    if logs is None:
        return None, None, None
    mean, n = float(logs.mean()), len(logs)
    if n < FEWEST_LAUNCHES or launch_sd is None:
        return math.exp(mean), None, None
    variance = moderated((n - 1) * float(logs.var(ddof=1)), n - 1, launch_sd, SERIES_WEIGHT)
    half = float(stdtrit(n - 1 + SERIES_WEIGHT, (1 + CONFIDENCE) / 2)) * math.sqrt(variance / n)
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


# ---- text and answer


def sentence(of: History) -> str:
    """Return the answer in one sentence."""
    suites = ", ".join(dict.fromkeys(visit.session.suite for visit in of.visits))
    first, last = of.visits[0].session.day, of.visits[-1].session.day
    days = f"on {first}" if first == last else f"from {first} to {last}"
    start = f"{format.count(len(of.visits), 'session')} of {suites}, {days}: "
    unsure = [series.why_not for series in of.series if series.why_not is not None]
    steady = len(of.series) - len(unsure) - len(of.changed)
    text = f"{start}{len(of.changed)} of {format.count(len(of.series), 'case')} changed, {steady} did not"
    if unsure:
        text += f"; nothing can be said yet of {format.count(len(unsure), 'case')} ({unsure[0]})"
    if away := sum(series.away is not None for series in of.series):
        text += f"; in {away} the newest session alone is away from its level"
    return f"{text}."


def lines(of: History, every: bool = False) -> list[str]:
    """Return the answer as lines of text: cases that changed, or whose newest session is away; or all."""
    shown = [series for series in of.series if every or series.shifts or series.away is not None]
    return [sentence(of), *(line(series, of.visits) for series in shown)]


def line(of: Series, visits: Sequence[SessionData]) -> str:
    """Return the state of a case, its newest step time, its last change and the whole change."""
    start, parts, sessions = f"{of.state}: {of.label}", [], format.count(len(of.levels), "session")
    if of.newest is not None:
        start += f": {format.milliseconds(of.newest.step_time_s)}"
    if of.shifts:
        last = of.shifts[-1]
        session = visits[last.visit].session
        sure = f"95%: {format.signed(last.low)} to {format.signed(last.high)}"
        start += f", {format.signed(last.change)} since {session.day} ({session.name}; {sure})"
        changed = (f"{each.name} changed from {each.base} to {each.candidate}" for each in last.changed)
        parts.append(format.listed(changed, most=MOST_CHANGES) or NOTHING)
    if len(of.shifts) > 1:
        many = format.count(len(of.shifts), "change")
        parts.append(f"over the whole time {format.signed(of.whole or 0.0)} in {many} ({sessions})")
    elif not of.shifts and of.session_sd is not None:
        parts.append(f"{sessions}, which differ by {format.percent(of.session_sd)}")
    return "; ".join(filter(None, (start, *parts, note(of, visits))))


def note(of: Series, visits: Sequence[SessionData]) -> str:
    """Return remarks on a short series, and on the newest session."""
    last = of.points[-1]
    if last.visit < max(i for i, visit in enumerate(visits) if visit.session.suite == of.suite):
        ended = f"last measured {visits[last.visit].session.day}"
    elif last.step_time_s is None:
        ended = f"the newest session: {last.status}"
    elif of.away is not None:
        ended = f"the newest session alone is {format.signed(of.away)} off: one more will tell"
    else:
        ended = ""
    return "; ".join(filter(None, (of.why_not, ended)))


def arrow(change: Difference) -> str:
    """Return a change in few words: 'torch 2.12 → 2.13'."""
    return f"{change.name} {change.base} → {change.candidate}"


_SESSION = {
    "store": str, "id": int, "label": str | None, "suite": str, "started_utc": str, "finished": bool,
    "commit": str | None, "torch": str | None, "host": str | None, "side": Literal["a", "b"] | None, "judged": bool,
}  # fmt: skip
_KEY = {"suite": str, "case_id": str}
# The tables of the answer. `visit` is the row of a session in `sessions`, from 0.
TABLES = {
    "sessions": {"visit": int, **_SESSION},
    "session_differences": columns(Difference, visit=int),
    "series": columns(Series, **_KEY, state=str, whole=float | None, away=float | None, sentence=str),
    "points": columns(SessionPoint, **_KEY),
    "shifts": columns(Shift, **_KEY),
    "shift_differences": columns(Difference, **_KEY, visit=int),
}


def answer(of: History) -> Answer:
    """Return the answer of `history`."""
    rows: dict[str, list[Any]] = {name: [] for name in TABLES}
    for at, (visit, changed) in enumerate(zip(of.visits, of.machine, strict=True)):
        session = visit.session
        known = {
            "visit": at,
            "store": str(visit.results.path),
            "finished": session.finished_utc is not None,
            "commit": session.known("git", "commit"),
            "torch": session.known("versions", "torch"),
            "host": session.known("host"),
            "side": session.interleaved.get("side"),
        }
        rows["sessions"].append((session, known))
        rows["session_differences"] += keyed(changed, visit=at)
    for series in of.series:
        key = {"suite": series.suite, "case_id": series.case.id}
        rows["series"].append((series, key | {"sentence": line(series, of.visits)}))
        rows["points"] += keyed(series.points, **key)
        rows["shifts"] += keyed(series.shifts, **key)
        for shift in series.shifts:
            rows["shift_differences"] += keyed(shift.changed, visit=shift.visit, **key)
    return Answer((sentence(of),), tables(TABLES, rows))
