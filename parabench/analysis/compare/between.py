"""What sessions differ by themselves: of sides that did not take turns it belongs to the error of their difference.

Another session is another time: other clocks, another temperature, other neighbours. What launches of one session have
in common no number of them shows, only other sessions do.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pandas as pd

from parabench.analysis.environment.diff import differences, session_differences
from parabench.analysis.session import SessionData, data_of, select_sessions
from parabench.analysis.stats.geometric import by_block
from parabench.analysis.stats.ttest import FEWEST_LAUNCHES, LEAST_SD, Between, Numbers, logs_of
from parabench.store.frames import records

# The standard deviation of a session's log time where too few sessions tell it: an assumption, which every sentence
# that rests on it names.
ALLOWANCE = 0.05
# Of fewer sessions the spread is hardly known: with 4 the 95 % quantile of t is 2.4, with 2 it is 6.3.
FEWEST_SESSIONS = 4
# With as many the quantile of t is 4 % above what it is of any number, and of a store of years the last ones tell best
# what sessions differ by now.
MOST_SESSIONS = 30


@dataclass(frozen=True)
class BetweenSessions:
    """How what sessions differ was taken into account. `sessions` of the base's suite and environment are in its store,
    base among them, MOST_SESSIONS at most; `measured` of the judged cases have their own variance from FEWEST_SESSIONS
    or more of these, and for the other `allowed` stands the `allowance`, a standard deviation of a session's log
    time."""

    sessions: int
    measured: int
    allowed: int
    allowance: float


def between_sessions(
    base: SessionData, candidate: SessionData, cases: Collection[str], allowance: float = ALLOWANCE
) -> tuple[dict[str, Between], int]:
    """({case: what its sessions differ by}, sessions of the base's suite and environment in its store).

    A case that FEWEST_SESSIONS of these measured has the variance of its sessions' means, each one that base could have
    been: that is the random effect of a session together with the noise of its launches. Others have the allowance.
    """
    sessions = [base, *alike(base, candidate)]
    found = {}
    for case in cases:
        logs = [logs_of(side.by_case[case]) for side in sessions if case in side.by_case]
        if len(logs) >= FEWEST_SESSIONS:
            found[case] = measured(logs)
        else:
            here = [logs_of(side.by_case[case]) for side in (base, candidate) if case in side.by_case]
            found[case] = allowed(here, allowance)
    return found, len(sessions)


def between_means(
    base: SessionData,
    candidate: SessionData,
    cases: Sequence[tuple[str, str]],
    others: Sequence[SessionData],
    allowance: float = ALLOWANCE,
) -> Between:
    """What two sessions' means over `cases`, their ids in base and in candidate, differ by: as `between_sessions` has
    it of one case, with a block's mean for a launch. `others` are the sessions that are `alike`; of these count those
    with a launch of every case.

    What a session is off is in all its cases (a clock, a temperature), so the mean of many is no surer of it than one.
    """
    sides = [(base, [first for first, _ in cases]), (candidate, [second for _, second in cases])]
    sides += [(other, sides[0][1]) for other in others]
    means = [
        by_block([pd.Series(logs_of(side.by_case[case]), side.by_case[case].index) for case in own])
        if set(own) <= side.by_case.keys()
        else None
        for side, own in sides
    ]
    tell = [each for each in (means[0], *means[2:]) if each is not None]
    if len(tell) >= FEWEST_SESSIONS:
        return measured(tell)
    return allowed([each for each in means[:2] if each is not None], allowance)


def allowed(logs: list[Numbers], allowance: float) -> Between:
    """The allowance, of a case with these launches in base and candidate.

    Where launches of one session differ by more, sessions are not believed to differ by less: on a machine that drifts
    the mean of a session is no surer than its launches are. An allowance of 0 says that sessions do not differ.
    """
    freedom, within = _within(logs)
    if allowance and within > allowance**2:
        return Between(within, float(freedom), 0.0, 0)
    return Between(allowance**2, math.inf, 0.0, 0)


def measured(logs: list[Numbers]) -> Between:
    """The variance of the means of several sessions, and how much of it their launches account for."""
    _, within = _within(logs)
    means = np.array([session.mean() for session in logs])
    return Between(
        variance=max(float(means.var(ddof=1)), LEAST_SD**2),
        df=len(logs) - 1.0,
        launches=within * float(np.mean([1 / len(session) for session in logs])),
        sessions=len(logs),
    )


def _within(logs: list[Numbers]) -> tuple[int, float]:
    """(degrees of freedom, variance of one launch within its session), 0 where no session has two."""
    several = [session for session in logs if len(session) >= FEWEST_LAUNCHES]
    freedom = sum(len(session) - 1 for session in several)
    squares = sum((len(session) - 1) * float(session.var(ddof=1)) for session in several)
    return freedom, squares / freedom if freedom else 0.0


def alike(base: SessionData, candidate: SessionData) -> Iterator[SessionData]:
    """The other sessions of base's suite in its store that could have been the base, the newest MOST_SESSIONS of them:
    finished, of trainings, of an environment that differs in nothing that decides a step time, and not begun after both
    sides. The candidate is none of them, and neither are the sides of an `ab`, which are variants."""
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
        # By its record alone first: that needs none of its launches.
        and not any(each.matters for each in session_differences(base.session, session, devices))
    )
    same = (side for side in found if not any(each.matters for each in differences(base, side)))
    yield from islice(same, MOST_SESSIONS - 1)
