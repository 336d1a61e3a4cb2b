"""The variation between sessions, which belongs to the error of sides that were not interleaved.

Launches of one session share clocks, temperature and neighbors, so only other sessions show their effect.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import pandas as pd

from parabench.analysis.environment.diff import differences, session_differences
from parabench.analysis.session import SessionData, data_of, select_sessions
from parabench.analysis.stats.contrasts import Between, Numbers, by_block, logs_of
from parabench.store.results import records

# The assumed standard deviation of a session's log time if too few sessions were measured. Every sentence that depends
# on it names it.
ALLOWANCE = 0.05
# With 4 sessions the 95% quantile of t is 2.4; with 2 it is 6.3.
FEWEST_SESSIONS = 4
# With 30 sessions the quantile of t is 4% above its limit. Newer sessions describe the machine best.
MOST_SESSIONS = 30


@dataclass(frozen=True)
class BetweenSessions:
    """How the variation between sessions entered a comparison."""

    sessions: int  # in base's database, with its suite and environment
    measured: int  # configurations whose variance was measured in FEWEST_SESSIONS or more of these
    allowed: int  # configurations that use the allowance
    allowance: float  # a standard deviation of a session's log time


def between_sessions(
    base: SessionData,
    candidate: SessionData,
    cases: Collection[str],
    allowance: float = ALLOWANCE,
    others: Sequence[SessionData] | None = None,
) -> tuple[dict[str, Between], int]:
    """Return the variation between sessions by configuration, and the number of sessions that could have been base.

    `others` are the sessions `alike`, if they are known.
    """
    sessions = [base, *(alike(base, candidate) if others is None else others)]

    def logs(sides: Iterable[SessionData], case: str) -> list[Numbers]:
        return [logs_of(side.by_case[case]) for side in sides if case in side.by_case]

    found = {case: _between(logs(sessions, case), logs((base, candidate), case), allowance) for case in cases}
    return found, len(sessions)


def _between(sessions: Sequence[Numbers], compared: Sequence[Numbers], allowance: float) -> Between:
    """Return the variance between `sessions`, or an allowance for those `compared` if these are too few."""
    return Between.measured(sessions) if len(sessions) >= FEWEST_SESSIONS else Between.allowed(compared, allowance)


def between_means(
    base: SessionData, candidate: SessionData, cases: Sequence[tuple[str, str]], others: Sequence[SessionData]
) -> Between:
    """Return the variation between sessions of the mean over `cases`, pairs of ids in base and candidate.

    A mean over many configurations is as uncertain as one, because clocks and temperature affect all of them. `others`
    are the sessions `alike`.
    """
    own, new = zip(*cases, strict=True)

    def blocks(side: SessionData, ids: Sequence[str]) -> list[Numbers]:
        if not set(ids) <= side.by_case.keys():
            return []  # without a launch of every configuration
        return [by_block([pd.Series(logs_of(side.by_case[case]), side.by_case[case].index) for case in ids])]

    first = blocks(base, own)
    sessions = [*first, *chain.from_iterable(blocks(other, own) for other in others)]
    return _between(sessions, [*first, *blocks(candidate, new)], ALLOWANCE)


def alike(base: SessionData, candidate: SessionData) -> list[SessionData]:
    """Return the newest MOST_SESSIONS of base's results database that could have been the base.

    They finished, have the same suite and environment, are not newer than both sides, and are not variants of an `ab`.
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
