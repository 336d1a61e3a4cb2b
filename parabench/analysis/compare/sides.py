"""Select the sessions of a comparison, and estimate the variation between sessions, which adds to its error.

Launches of one session share clocks, temperature and neighbors, so only other sessions show their effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import pandas as pd

from parabench.analysis import format
from parabench.analysis.environment.diff import differences, session_differences
from parabench.analysis.numbers import LAUNCH_NUMBERS
from parabench.analysis.session import SessionData, data_of, select_session, select_sessions, split
from parabench.analysis.stats.contrasts import Between, Numbers, by_block, logs_of
from parabench.errors import UsageError
from parabench.store.results import Results, load, records
from parabench.store.store import STORE_NAME

# The assumed standard deviation of a session's log time if too few sessions were measured. Every sentence that depends
# on it names it.
ALLOWANCE = 0.05
# With 4 sessions the 95% quantile of Student's t is 2.4; with 2 it is 6.3.
FEWEST_SESSIONS = 4
# With 30 sessions this quantile is 4% above its limit. The newest sessions are used, because they describe the machine
# best.
MOST_SESSIONS = 30


def side_of(results: Results, session: str | int | None = None, role: str = "base") -> SessionData:
    """Return a training session of `results`, the newest by default. Raises UsageError if there is none."""
    chosen = select_session(results, session)
    chosen.require("training", results.path)
    return data_of(results, chosen, role)


def sides_of(results: Results, sessions: Sequence[int]) -> tuple[SessionData, SessionData]:
    """Return base and candidate, the sessions of `results` with these ids."""
    base, candidate = sessions
    return side_of(results, base, "base"), side_of(results, candidate, "candidate")


def read_sides(base: str, candidate: str) -> tuple[SessionData, SessionData]:
    """Return the sessions that two arguments name: DATABASE or DATABASE@SESSION, as `session.split` reads them.

    Raises UsageError if there is no such training session.
    """
    first, other = _read([split(base), split(candidate)])
    return replace(first, role="base"), replace(other, role="candidate")


def read_several(stores: Sequence[tuple[Path, str | None]]) -> list[SessionData]:
    """Return the sessions of (database, id or label; None: the newest) pairs, each with a unique name as its `role`.

    The role is the shortest unique name. Raises UsageError for fewer than two sessions, for one session twice, and if
    a session does not exist.
    """
    if len(stores) < 2:
        raise UsageError("one session has nothing to be compared with; name two or more results databases or sessions")
    sides = _read(stores)
    check_distinct(sides)
    names = []
    for side in sides:
        path, name = side.results.path, side.session.name
        store = path.resolve().parent.name if path.name == STORE_NAME else path.stem
        names.append([format.one_line(each) for each in (name, f"{name} of {store}", f"{name} of {side.origin.at}")])
    uses = Counter(chain.from_iterable(names))
    roles = [next((name for name in own if uses[name] == 1), own[-1]) for own in names]
    return [replace(side, role=role) for side, role in zip(sides, roles, strict=True)]


def _read(stores: Sequence[tuple[Path, str | None]]) -> list[SessionData]:
    """Return the sessions of (database, id or label) pairs. Each database is read once."""
    loaded = {path: load(path, LAUNCH_NUMBERS) for path, _ in stores}
    return [side_of(loaded[path], session) for path, session in stores]


def check_distinct(sides: Sequence[SessionData]) -> None:
    """Raise UsageError if a session is given twice, also as a copy in another results database."""
    found: set[tuple[str, ...]] = set()
    for side in sides:
        if side.session.identity in found:
            store = side.results.path
            raise UsageError(f"{side.session.name} of {store} is given twice; name other sessions as {store}@SESSION")
        found.add(side.session.identity)


def interleaved(base: SessionData, candidate: SessionData) -> bool:
    """Return whether both sessions are variants of one `parabench ab`, so that drift affects both alike."""
    own, other = base.session.interleaved, candidate.session.interleaved
    return bool(own) and own.get("run") == other.get("run") and own.get("side") != other.get("side")


def alike(base: SessionData, candidate: SessionData) -> list[SessionData]:
    """Return the newest sessions in base's results database that repeat the base, at most MOST_SESSIONS - 1.

    They finished, have the same suite and environment, are not newer than both, and are not variants of an `ab`.
    """
    latest = max(base.session.started_utc, candidate.session.started_utc)
    names = ("id", "suite", "started_utc", "finished_utc")
    listed = [row for row in records(base.results.listed, names) if row["suite"] == base.session.suite]
    could = [row for row in listed if row["finished_utc"] is not None and row["started_utc"] <= latest]
    ids = [row["id"] for row in sorted(could, key=lambda row: (row["started_utc"], row["id"]), reverse=True)]
    devices = {str(device) for device in base.numbers["device"]}
    found = (
        data_of(base.results, session, base.role)
        for at in range(0, len(ids), MOST_SESSIONS)
        for session in select_sessions(base.results, ids[at : at + MOST_SESSIONS])
        if session.identity not in (base.session.identity, candidate.session.identity)
        and session.kind == "training"
        and not session.interleaved
        # The session's record is enough for this test, and cheaper than its launches.
        and not any(each.matters for each in session_differences(base.session, session, devices))
    )
    same = (side for side in found if not any(each.matters for each in differences(base, side)))
    return list(islice(same, MOST_SESSIONS - 1))


def between_sessions(
    base: SessionData, candidate: SessionData, cases: Collection[str], allowance: float, others: Sequence[SessionData]
) -> dict[str, Between]:
    """Return the variation between sessions of each configuration by id. `others` are the sessions from `alike`."""

    def logs(sides: Sequence[SessionData], case: str) -> list[Numbers]:
        return [logs_of(side.by_case[case]) for side in sides if case in side.by_case]

    return {case: _between(logs((base, *others), case), logs((base, candidate), case), allowance) for case in cases}


def between_means(
    base: SessionData, candidate: SessionData, cases: Sequence[tuple[str, str]], others: Sequence[SessionData]
) -> Between:
    """Return the variation between sessions of the mean over `cases`, pairs of ids in base and candidate.

    A mean over many configurations is as uncertain as one, because clocks and temperature affect all of them. `others`
    are the sessions from `alike`. Sessions without a launch of every configuration do not count.
    """
    own, new = zip(*cases, strict=True)

    def repetitions(side: SessionData, ids: Sequence[str]) -> list[Numbers]:
        if not set(ids) <= side.by_case.keys():
            return []
        return [by_block([pd.Series(logs_of(side.by_case[case]), side.by_case[case].index) for case in ids])]

    sessions = [means for side in (base, *others) for means in repetitions(side, own)]
    return _between(sessions, [*repetitions(base, own), *repetitions(candidate, new)], ALLOWANCE)


def _between(sessions: Sequence[Numbers], compared: Sequence[Numbers], allowance: float) -> Between:
    """Return the variance between `sessions`; if they are too few, the allowance for the `compared` sessions."""
    return Between.measured(sessions) if len(sessions) >= FEWEST_SESSIONS else Between.allowed(compared, allowance)
