"""Follow the step times of each configuration over the sessions of results databases, and find change points.

`History.series` has a row for each case of each suite, with its sessions (`points`) and its change points (`shifts`).
docs/site/keys.toml describes every field.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
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
from parabench.analysis.stats.change_point import FEWEST_SESSIONS, Level, launch_noise, levels_of
from parabench.analysis.stats.contrasts import FEWEST_LAUNCHES, moderated
from parabench.errors import UsageError, did_you_mean
from parabench.store.record import FIRST_REPETITION
from parabench.store.results import Results, records

# The weight of the variance of all sessions of a series, in launches of the session itself.
SERIES_WEIGHT = 1.0
# A sentence lists at most this many changes of the environment.
MOST_CHANGES = 4
NOTHING = "nothing else that is recorded changed then"

_KEY = {"suite": str, "case_id": str}
# The tables of the answer. `visit` is the row of a session in `sessions`, from 0.
TABLES = {
    "sessions": {
        "visit": int, "store": str, "id": int, "label": str | None, "suite": str, "started_utc": str, "finished": bool,
        "commit": str | None, "torch": str | None, "host": str | None, "side": Literal["a", "b"] | None, "judged": bool,
    },
    "session_differences": columns(Difference, visit=int),
    "series": {
        **_KEY, "state": str, "whole": float | None, "away": float | None, "sentence": str, "device": str, "label": str,
        "session_sd": float | None, "launch_sd": float | None, "why_not": str | None,
    },
    "points": {
        **_KEY, "visit": int, "step_time_s": float | None, "low_s": float | None, "high_s": float | None,
        "launches": tuple[int, ...], "status": str, "level_s": float | None, "outlier": bool,
    },
    "shifts": {
        **_KEY, "visit": int, "before_s": float, "after_s": float, "change": float, "low": float, "high": float,
    },
    "shift_differences": columns(Difference, **_KEY, visit=int),
}  # fmt: skip

_OF_LAUNCH = ["case", "case_json", "device", "launch_id", "status", "step_s", "timed"]
# A row of the table `series` with `case`, `points` and `shifts`. Each shift also has `changed`, the differences of the
# environment at that time.
Series = dict[str, Any]


@dataclass(frozen=True)
class History:
    """The history of all cases, the most urgent first. `visits` are the sessions, the oldest first.

    `machine` has the differences of machine and software of each session from the previous judged session of its suite,
    without the commit, which nearly always changes.
    """

    visits: tuple[SessionData, ...]
    machine: tuple[tuple[Difference, ...], ...]
    series: tuple[Series, ...]


def history(
    stores: Sequence[Results], *, case: str | None = None, suite: str | None = None, since: str | None = None
) -> History:
    """Return the history of training runs.

    Args:
        case: Part of a label, or the start of an id.
        suite: Only sessions of this suite.
        since: Only sessions since this time (ISO 8601, UTC).

    Raises:
        UsageError: If no session or case is left.
    """
    found = visits_of(stores)
    visits = [
        visit for visit in found if visit.session.started_utc >= (since or "") and suite in (None, visit.session.suite)
    ]
    if visits:
        return of_visits(visits, case)
    paths = format.listed(str(results.path) for results in stores)
    asked, remedy = " of training runs", "give the results.db of `parabench run`"
    if found:
        asked = f" of suite {suite!r}" * (suite is not None) + f" since {since}" * (since is not None)
        there = ", ".join(dict.fromkeys(visit.session.suite for visit in found))
        remedy = f"there are sessions of {there}, the newest from {found[-1].session.started_utc}"
    raise UsageError(f"no session{asked} is in {paths}; {remedy}")


def visits_of(stores: Sequence[Results]) -> list[SessionData]:
    """Return all sessions of training runs, the oldest first. For copies of a session, the one with most launches."""
    found = [
        (int((results.launch["session_id"] == session.id).sum()), data_of(results, session))
        for results in stores
        for session in select_sessions(results, results.of_kind("training"))
    ]
    fullest = {visit.session.identity: visit for _, visit in sorted(found, key=lambda each: each[0])}
    return sorted(
        fullest.values(), key=lambda visit: (visit.session.started_utc, visit.session.interleaved.get("side", ""))
    )


def of_visits(visits: Sequence[SessionData], case: str | None = None) -> History:
    """Return the history of these sessions. Raises UsageError, with similar names, if there is no such case."""
    table = _launches(visits)
    if case is not None:
        chosen = table["label"].str.contains(case, case=False, regex=False) | table["case"].str.startswith(case)
        if not chosen.any():
            labels = list(dict.fromkeys(table["label"]))
            hint = did_you_mean(case, [*labels, *" ".join(labels).replace(",", "").split()])
            raise UsageError(
                f"--case {case!r} is in no label and begins no id; {hint}there are {format.listed(labels, 3)}"
            )
        table = table[chosen]
    devices = {str(suite): set(own) for suite, own in table.groupby("suite")["device"]}
    previous: dict[str, SessionData] = {}
    machine = []
    for visit in visits:
        suite = visit.session.suite
        found = changes(previous[suite], visit, devices[suite]) if suite in previous else ()
        machine.append(tuple(change for change in found if change.name != "commit"))
        if visit.session.judged:
            previous[suite] = visit
    series = [_series(visits, group) for _, group in table.groupby(["suite", "case"], sort=False)]
    return History(tuple(visits), tuple(machine), tuple(sorted(series, key=_urgency)))


def _launches(visits: Sequence[SessionData]) -> pd.DataFrame:
    """Return the launches of all visits, except references, with columns of `numbers.numbers`.

    `visit` is the index of the session in `visits`, `suite` is its suite, and `label` is unique among all cases.
    """
    tables = []
    for store in {id(whole): whole for whole in (visit.results.whole_store for visit in visits)}.values():
        places = {visit.session.id: at for at, visit in enumerate(visits) if visit.results.whole_store is store}
        table = numbers(store, *(visits[at].session for at in places.values()))
        table = table[table["repetition"] >= FIRST_REPETITION]
        # Columns that are unknown in one database would lose their type next to another database.
        tables.append(table[_OF_LAUNCH].assign(visit=table["session"].map(places)))
    table = pd.concat(tables, ignore_index=True)
    stored = table.drop_duplicates("case")
    cases = {str(case): case_of(text) for case, text in zip(stored["case"], stored["case_json"], strict=True)}
    return table.assign(
        suite=[visits[at].session.suite for at in table["visit"]],
        label=table["case"].map(unique_labels(cases)).astype(object),
    )


def _series(visits: Sequence[SessionData], table: pd.DataFrame) -> Series:
    """Return the row of one case of one suite; `table` is its part of `_launches`."""
    timed = table[table["timed"]]
    logs = {
        visit: np.log(timed.loc[timed["visit"] == visit, "step_s"].to_numpy(dtype=float))
        for visit in sorted(map(int, timed["visit"].unique()))
    }
    judged = [visit for visit in logs if visits[visit].session.judged]
    levels: tuple[Level, ...] = ()
    session_sd = why_not = None
    if len(judged) >= FEWEST_SESSIONS:
        levels, session_sd = levels_of([logs[visit] for visit in judged])
    else:
        there = format.count(len(judged), "session")
        why_not = f"{there} with a number so far, and a change point needs {FEWEST_SESSIONS}"
    launch_sd = launch_noise(list(logs.values()))
    newest, devices = table.sort_values("visit").iloc[-1], set(table["device"])
    key = {"suite": newest["suite"], "case_id": newest["case"]}
    level_of = {judged[i]: math.exp(level.mean) for level in levels for i in range(level.start, level.end)}
    points = _points(table, launch_sd).assign(**key)
    points = points.assign(
        level_s=points["visit"].map(level_of).astype(float),
        outlier=points["visit"].isin([judged[i] for level in levels for i in level.outliers]),
    )
    shifts = [key | _shift(*pair, visits, judged, devices) for pair in itertools.pairwise(levels)]
    last, state = points.iloc[-1], "unchanged"
    if not logs:
        state = "no number"
    elif why_not is not None:
        state = "too few"
    elif shifts:
        state = "slower" if shifts[-1]["change"] > 0 else "faster"
    row = key | {
        "label": newest["label"],
        "device": newest["device"],
        "case": case_of(newest["case_json"]),
        "state": state,
        "whole": math.expm1(levels[-1].mean - levels[0].mean) if levels else None,
        # One session is not a change, but may be the start of one.
        "away": float(last["step_time_s"] / last["level_s"] - 1) if last["outlier"] else None,
        "session_sd": None if session_sd is None else math.expm1(session_sd),
        "launch_sd": None if launch_sd is None else math.expm1(launch_sd),
        "why_not": why_not,
        "points": points,
        "shifts": shifts,
    }
    return row | _texts(row, visits)


def _points(table: pd.DataFrame, launch_sd: float | None) -> pd.DataFrame:
    """Return a row for each session with the mean of its launches and a t interval.

    The variance of few launches is moderated by the variance in the series.
    """
    timed = table[table["timed"]]
    logs = timed["step_s"].astype(float).transform(np.log).groupby(timed["visit"])
    mean, n = logs.mean(), logs.size()
    variance = moderated((n - 1) * logs.var(ddof=1), n - 1, math.nan if launch_sd is None else launch_sd, SERIES_WEIGHT)
    half = stdtrit(n - 1 + SERIES_WEIGHT, (1 + CONFIDENCE) / 2) * np.sqrt(variance / n).where(n >= FEWEST_LAUNCHES)
    points = pd.DataFrame(
        {
            "status": table.groupby("visit")["status"].agg(status_counts),
            "step_time_s": np.exp(mean),
            "low_s": np.exp(mean - half),
            "high_s": np.exp(mean + half),
        }
    )
    launches: list[Any] = [tuple(timed.loc[timed["visit"] == visit, "launch_id"].tolist()) for visit in points.index]
    return points.assign(launches=launches).reset_index()


def _shift(
    before: Level, after: Level, visits: Sequence[SessionData], judged: list[int], devices: set[str]
) -> dict[str, Any]:
    """Return the row of `shifts` for a change from one level to the next, with the environment that `changed`."""
    difference = after.mean - before.mean
    half = float(ndtri((1 + CONFIDENCE) / 2)) * math.hypot(before.error, after.error)
    visit, last = judged[after.start], judged[after.start - 1]
    return {
        "visit": visit,
        "before_s": math.exp(before.mean),
        "after_s": math.exp(after.mean),
        "change": math.expm1(difference),
        "low": math.expm1(difference - half),
        "high": math.expm1(difference + half),
        "changed": changes(visits[last], visits[visit], devices),
    }


def _urgency(series: Series) -> tuple[int, int, float, str]:
    """Return the sort key: the most recent change first, then the largest slowdown, then outliers."""
    if series["shifts"]:
        return 0, -series["shifts"][-1]["visit"], -series["shifts"][-1]["change"], series["label"]
    return (2, 0, 0.0, series["label"]) if series["away"] is None else (1, 0, -series["away"], series["label"])


# ---- text and answer


def sentence(found: History) -> str:
    """Return the answer in one sentence."""
    suites = ", ".join(dict.fromkeys(visit.session.suite for visit in found.visits))
    first, last = found.visits[0].session.day, found.visits[-1].session.day
    days = f"on {first}" if first == last else f"from {first} to {last}"
    changed = sum(bool(series["shifts"]) for series in found.series)
    unsure = [series["why_not"] for series in found.series if series["why_not"] is not None]
    text = f"{format.count(len(found.visits), 'session')} of {suites}, {days}: {changed} of "
    text += f"{format.count(len(found.series), 'configuration')} changed, "
    text += f"{len(found.series) - len(unsure) - changed} did not"
    if unsure:
        text += f"; {format.count(len(unsure), 'configuration')} cannot be judged yet ({unsure[0]})"
    if away := sum(series["away"] is not None for series in found.series):
        text += f"; the newest session of {format.count(away, 'configuration')} is an outlier"
    return f"{text}."


def lines(found: History, every: bool = False) -> list[str]:
    """Return the answer as lines of text: all cases, or those that changed or whose newest session is an outlier."""
    shown = [each["sentence"] for each in found.series if every or each["shifts"] or each["away"] is not None]
    return [sentence(found), *shown]


def _texts(series: Series, visits: Sequence[SessionData]) -> dict[str, str]:
    """Return the `note` and the `sentence` of a case.

    The note has remarks about a short series and about its newest session. The sentence has the state, the newest step
    time, the last change, the whole change, and the note.
    """
    start, parts = f"{series['state']}: {series['label']}", []
    sessions = format.count(int(series["points"]["level_s"].notna().sum()), "session")
    step_s = series["points"]["step_time_s"].dropna()
    if len(step_s):
        start += f": {format.milliseconds(step_s.iloc[-1])}"
    if series["shifts"]:
        last = series["shifts"][-1]
        session = visits[last["visit"]].session
        interval = f"95%: {format.signed(last['low'])} to {format.signed(last['high'])}"
        start += f", {format.signed(last['change'])} since {session.day} ({session.name}; {interval})"
        changed = (f"{each.name} changed from {each.base} to {each.candidate}" for each in last["changed"])
        parts.append(format.listed(changed, most=MOST_CHANGES) or NOTHING)
    if len(series["shifts"]) > 1:
        many = format.count(len(series["shifts"]), "change")
        parts.append(f"over the whole time {format.signed(series['whole'])} in {many} ({sessions})")
    elif not series["shifts"] and series["session_sd"] is not None:
        parts.append(f"{sessions}, which differ by {format.percent(series['session_sd'])}")
    last_point, remark = series["points"].iloc[-1], ""
    if last_point["visit"] < max(at for at, visit in enumerate(visits) if visit.session.suite == series["suite"]):
        remark = f"last measured {visits[last_point['visit']].session.day}"
    elif not format.known(last_point["step_time_s"]):
        remark = f"the newest session: {last_point['status']}"
    elif series["away"] is not None:
        remark = f"the newest session is an outlier ({format.signed(series['away'])}); a second one would be a change"
    note = "; ".join(filter(None, (series["why_not"], remark)))
    return {"note": note, "sentence": "; ".join(filter(None, (start, *parts, note)))}


def arrow(change: Difference) -> str:
    """Return a change of the environment in a few words: 'torch 2.12 → 2.13'."""
    return f"{change.name} {change.base} → {change.candidate}"


def answer(found: History) -> Answer:
    """Return the answer of `history`."""
    rows: dict[str, list[Any]] = {name: [] for name in TABLES} | {"series": list(found.series)}
    for at, (visit, changed) in enumerate(zip(found.visits, found.machine, strict=True)):
        session = visit.session
        cells = {
            "visit": at,
            "store": str(visit.results.path),
            "finished": session.finished_utc is not None,
            "commit": session.known("git", "commit"),
            "torch": session.known("versions", "torch"),
            "host": session.known("host"),
            "side": session.interleaved.get("side"),
        }
        rows["sessions"].append((session, cells))
        rows["session_differences"] += keyed(changed, visit=at)
    for series in found.series:
        rows["points"] += records(series["points"])
        rows["shifts"] += series["shifts"]
        for shift in series["shifts"]:
            key = {name: shift[name] for name in ("suite", "case_id", "visit")}
            rows["shift_differences"] += keyed(shift["changed"], **key)
    return Answer((sentence(found),), tables(TABLES, rows))
