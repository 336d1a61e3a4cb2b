"""Every case over the sessions of one store or several: how fast it was when, and when that changed."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri, stdtrit

from parabench.analysis.environment.diff import changes
from parabench.analysis.history.series import NO_RUPTURES, History, Series, SessionPoint, Shift
from parabench.analysis.numbers import case_of, numbers, status_counts, unique_labels
from parabench.analysis.session import SessionData, data_of, select_sessions
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.block_model import moderated
from parabench.analysis.stats.change_point import FEWEST_SESSIONS, Level, Noise, Numbers, launch_noise, levels_of
from parabench.analysis.stats.contrasts import FEWEST_LAUNCHES
from parabench.analysis.text import format
from parabench.errors import UsageError, did_you_mean
from parabench.store.record import FIRST_BLOCK
from parabench.store.results import Results

# How many launches the variance that all sessions of a series have in common is worth beside a session's own.
SERIES_WEIGHT = 1.0


def history(
    stores: Sequence[Results], *, case: str | None = None, suite: str | None = None, since: str | None = None
) -> History:
    """The history of the trainings in `stores`: of the cases whose label holds `case` (or whose id begins with it), of
    the sessions of `suite`, that started at `since` (ISO 8601, UTC) or later.

    Cases are followed by their id within a suite. Raises UsageError when there is no such session or case.
    """
    found = visits_of(stores)
    if not found:
        raise UsageError(f"no session that trained is in {_paths(stores)}; give the results.db of `parabench run`")
    visits = [visit for visit in found if suite is None or visit.session.suite == suite]
    if not visits:
        there = ", ".join(dict.fromkeys(visit.session.suite for visit in found))
        hint = did_you_mean(str(suite), [visit.session.suite for visit in found])
        raise UsageError(f"no session of suite {suite!r} is in {_paths(stores)}; {hint}there are sessions of {there}")
    recent = [visit for visit in visits if since is None or visit.session.started_utc >= since]
    if not recent:
        raise UsageError(f"no session started since {since}; the newest began {visits[-1].session.started_utc}")
    return of_visits(recent, case)


def of_visits(visits: Sequence[SessionData], case: str | None = None) -> History:
    """The same of visits that are chosen."""
    table = _chosen(numbers_of(visits), case)
    series = [_series(visits, group) for _, group in table.groupby(["suite", "case"], sort=False)]
    return History(tuple(visits), tuple(sorted(series, key=Series.urgency)))


def visits_of(stores: Sequence[Results]) -> list[SessionData]:
    """All sessions of trainings, the oldest first. One that several stores hold (a copy that was measured on) is in it
    once, as the store with most launches of it has it."""
    once: dict[tuple[str, ...], tuple[int, SessionData]] = {}
    for results in stores:
        launches = Counter(results.launch["session_id"].tolist())
        for session in select_sessions(results, results.of_kind("training")):
            visit = data_of(results, session)
            key = session.identity
            count = launches[session.id]
            if key not in once or once[key][0] < count:
                once[key] = count, visit
    visits = [visit for _, visit in once.values()]
    return sorted(visits, key=lambda visit: (visit.session.started_utc, visit.session.interleaved.get("side", "")))


def numbers_of(visits: Sequence[SessionData]) -> pd.DataFrame:
    """Return the repetitions of all visits, with the columns of `numbers.numbers`; each database is read once.

    `visit` is the place of the session in `visits`, `suite` is its suite, and `label` is unique among all cases.
    """
    tables = []
    for store in {id(whole): whole for whole in (visit.results.whole_store for visit in visits)}.values():
        own = {visit.session.id: place for place, visit in enumerate(visits) if visit.results.whole_store is store}
        table = numbers(store, *(visits[place].session for place in own.values()))
        table = table[table["repetition"] >= FIRST_BLOCK]
        # Columns that are unknown in one database would not keep their type beside another one.
        tables.append(table[_OF_LAUNCH].assign(visit=table["session"].map(own)))
    table = pd.concat(tables, ignore_index=True)
    stored = table.drop_duplicates("case")
    cases = {str(case): case_of(text) for case, text in zip(stored["case"], stored["case_json"], strict=True)}
    return table.assign(
        suite=[visits[place].session.suite for place in table["visit"]],
        label=table["case"].map(unique_labels(cases)).astype(object),
    )


_OF_LAUNCH = ["case", "case_json", "device", "launch_id", "status", "step_s", "timed"]


def _paths(stores: Sequence[Results]) -> str:
    return format.listed(str(results.path) for results in stores)


def _chosen(table: pd.DataFrame, case: str | None) -> pd.DataFrame:
    """The rows of the cases that are meant. Raises UsageError, with near names, when there is none."""
    if case is None:
        return table
    meant = table["label"].str.contains(case, case=False, regex=False) | table["case"].str.startswith(case)
    if not meant.any():
        labels = list(dict.fromkeys(table["label"]))
        words = [word for label in labels for word in label.replace(",", "").split()]
        hint = did_you_mean(case, [*labels, *words])
        raise UsageError(
            f"--case {case!r} is in no case's label and begins no id; {hint}there are {format.listed(labels, 3)}"
        )
    return table[meant]


def _series(visits: Sequence[SessionData], table: pd.DataFrame) -> Series:
    """One case of one suite; `table` is its part of `numbers_of`."""
    good: list[tuple[Any, pd.DataFrame]] = list(table[table["timed"]].groupby("visit"))
    every: list[tuple[Any, pd.DataFrame]] = list(table.groupby("visit"))
    ids = {int(visit): tuple(int(each) for each in group["launch_id"]) for visit, group in good}
    logs = {int(visit): np.log(group["step_s"].to_numpy(dtype=float)) for visit, group in good}
    judged = [place for place in sorted(logs) if visits[place].session.judged]
    levels, noise, why_not = _levels([logs[place] for place in judged])
    level_of = {judged[i]: math.exp(level.mean) for level in levels for i in range(level.start, level.end)}
    outliers = {judged[i] for level in levels for i in level.outliers}
    launch_sd = launch_noise(list(logs.values()))
    points = []
    for place, group in every:
        visit = int(place)
        number, low, high = _interval(logs.get(visit), launch_sd)
        points.append(
            SessionPoint(
                visit=visit,
                step_time_s=number,
                low_s=low,
                high_s=high,
                launches=ids.get(visit, ()),
                status=status_counts(group["status"]),
                level_s=level_of.get(visit),
                outlier=visit in outliers,
            )
        )
    devices = set(table["device"])
    newest = table[table["visit"] == table["visit"].max()].iloc[0]
    return Series(
        suite=str(newest["suite"]),
        case=case_of(newest["case_json"]),
        device=str(newest["device"]),
        label=str(newest["label"]),
        points=tuple(points),
        shifts=tuple(_shift(*pair, visits, judged, devices) for pair in itertools.pairwise(levels)),
        session_sd=None if noise is None else math.expm1(noise.session),
        launch_sd=None if launch_sd is None else math.expm1(launch_sd),
        why_not=why_not,
    )


def _levels(logs: list[Numbers]) -> tuple[tuple[Level, ...], Noise | None, str | None]:
    """Return (levels, noise, None), or the reason why no change point can be found."""
    if len(logs) < FEWEST_SESSIONS:
        there = format.count(len(logs), "session")
        return (), None, f"{there} with a number so far, and a change point needs {FEWEST_SESSIONS}"
    if find_spec("ruptures") is None:
        return (), None, NO_RUPTURES
    levels, noise = levels_of(logs)
    return levels, noise, None


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
    """(mean, low, high) of a session's launches in seconds, with a t interval. The variance of a few launches is
    moderated by that of the series."""
    if logs is None:
        return None, None, None
    mean, n = float(logs.mean()), len(logs)
    if n < FEWEST_LAUNCHES or launch_sd is None:
        return math.exp(mean), None, None
    df = n - 1 + SERIES_WEIGHT
    variance = moderated((n - 1) * float(logs.var(ddof=1)), n - 1, launch_sd, SERIES_WEIGHT)
    half = _t(df) * math.sqrt(variance / n)
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


@cache
def _t(df: float) -> float:
    return float(stdtrit(df, (1 + CONFIDENCE) / 2))
