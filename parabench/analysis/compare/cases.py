"""Configurations of two sessions: ratios with intervals, failures, and the outcome by the gate's rule."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import pandas as pd

from parabench.analysis.compare.between import ALLOWANCE, BetweenSessions, between_sessions
from parabench.analysis.compare.sides import interleaved
from parabench.analysis.numbers import launch_ids, of_pair
from parabench.analysis.session import SessionData
from parabench.analysis.stats.contrasts import FEWEST_LAUNCHES, Between, TTest, factor, holm, judge, logs_of
from parabench.store.record import Status

TOLERANCE, ALPHA = 0.02, 0.01
# The ids of a configuration in base and in candidate, also if a side did not launch it.
Pair = tuple[str, str]
# A number of the launches of each configuration (`numbers.by_case`).
ByCase = Mapping[str, "pd.Series[float]"]
# One row of the table of ratios.
Row = dict[str, Any]


class Outcome(StrEnum):
    """The outcome of one configuration, the most important one first. The first two fail a gate."""

    SLOWER = "slower"
    BROKE = "broke"
    UNCLEAR = "unclear"
    FASTER = "faster"
    SAME = "same"
    NOT_JUDGED = "cannot be judged"
    NOT_OK = "not ok"
    FIXED = "fixed"
    ONLY_BASE = "only in base"
    ONLY_CANDIDATE = "only in candidate"


REGRESSIONS = (Outcome.SLOWER, Outcome.BROKE)


def contrast(
    pairs: Sequence[Pair], base: ByCase, candidate: ByCase, paired: bool, between: Mapping[str, Between] | None = None
) -> list[Row]:
    """Return a row for each pair: the ratio candidate / base of a number of its launches, with its 95% interval.

    `note` is the reason for a missing interval. `paired` sides are compared in common repetitions. Otherwise the error
    contains the variation `between` sessions.
    """
    launches = [of_pair(pair, base, candidate, paired) for pair in pairs]
    logs = {at: (logs_of(first), logs_of(other)) for at, (first, other) in enumerate(launches)}
    known = {at: between[old] for at, (old, _) in enumerate(pairs) if old in between} if between else None
    tests = judge(logs, paired=paired, between=known)
    rows: list[Row] = []
    for at, (first, other) in enumerate(launches):
        test = tests.get(at)
        means = [float(own.mean()) if len(own) else None for own in logs[at]]
        levels = [None if mean is None else math.exp(mean) for mean in means]
        few = f"an interval needs {FEWEST_LAUNCHES} launches per side; there are {len(first)} and {len(other)}"
        rows.append(
            {
                "base": levels[0],
                "candidate": levels[1],
                "ratio": math.exp(means[1] - means[0]) if means[0] is not None and means[1] is not None else None,
                "low": factor(test.low) if test else None,
                "high": factor(test.high) if test else None,
                "upper": factor(test.upper) if test else None,
                "p_slower": test.p_slower if test else None,
                "session_sd": test.between.sd if test and test.between else None,
                "base_launches": launch_ids(first),
                "candidate_launches": launch_ids(other),
                "note": "" if test else few,
                "test": test,
            }
        )
    return rows


def step_times(
    pairs: Sequence[Pair],
    base: SessionData,
    candidate: SessionData,
    tolerance: float = TOLERANCE,
    alpha: float = ALPHA,
    allowance: float = ALLOWANCE,
    others: Sequence[SessionData] | None = None,
) -> tuple[list[Row], BetweenSessions | None]:
    """Return the rows of the step times with outcomes, and how the variation between sessions entered.

    docs/site/keys.toml describes the columns. `others` are the sessions `alike`, if they are known. With too few,
    `allowance` is the standard deviation between sessions.
    """
    paired = interleaved(base, candidate)
    between, sessions = dict[str, Between](), 0
    if not paired:
        between, sessions = between_sessions(base, candidate, {old for old, _ in pairs}, allowance, others)
    rows = contrast(pairs, base.by_case, candidate.by_case, paired, between)
    measured, allowed = 0, 0
    for (old, new), row, end in zip(pairs, rows, _ends(pairs, base, candidate, alpha), strict=True):
        test: TTest | None = row.pop("test")
        if end["outcome"] is None:
            outcome, why = (Outcome.NOT_JUDGED, row["note"]) if test is None else speed(test, tolerance, alpha)
            if end["fails_more"] and outcome in (Outcome.SAME, Outcome.FASTER):
                outcome = Outcome.UNCLEAR
            end |= {"outcome": outcome, "note": "; ".join(filter(None, (why, end["note"])))}
        row |= end | {
            "base": base.step_times.get(old),
            "candidate": candidate.step_times.get(new),
            "launches_needed": test.launches_for(tolerance) if test else None,
        }
        if test is not None and test.between is not None:
            measured += test.between.sessions > 0
            allowed += test.between.sessions == 0
    return rows, BetweenSessions(sessions, measured, allowed, allowance) if measured + allowed else None


def speed(test: TTest, tolerance: float = TOLERANCE, alpha: float = ALPHA) -> tuple[Outcome, str]:
    """Return the outcome of a test, and a note.

    - slower: significant at `alpha`, and the estimate is beyond the tolerance
    - same: the upper bound is below the tolerance (a non-inferiority test)
    - faster: the same, and significantly faster by more than the tolerance
    - unclear: everything else
    """
    beyond = math.log1p(tolerance)
    if test.difference > beyond and test.p_slower <= alpha:
        return Outcome.SLOWER, ""
    if not test.upper < beyond:  # also if the bound is NaN
        return Outcome.UNCLEAR, "beyond the tolerance, but not beyond the noise" if test.difference > beyond else ""
    if test.difference < -beyond and test.p_faster <= alpha:
        return Outcome.FASTER, ""
    return Outcome.SAME, ""


class _Launches(NamedTuple):
    """How the launches of a configuration ended on one side. Interrupted launches neither failed nor succeeded."""

    counts: str
    failed: int
    ok: int
    valid: int


_FAILURES = (Status.WRONG, Status.OOM, Status.CRASHED, Status.HUNG, Status.FAILED)


def _launches(case: str, side: SessionData) -> _Launches:
    own = side.repetitions[case]
    ok = own["status"] == Status.OK
    how = Counter(own["status"].mask(ok & ~own["timed"], f"{Status.OK} without a step time"))
    counts, error = ", ".join(f"{n} {status}" for status, n in how.items()), next(iter(own["error"].dropna()), "")
    failed = int(own["status"].isin(_FAILURES).sum())
    return _Launches(f"{counts}: {error}" if error else counts, failed, int(ok.sum()), int(own["timed"].sum()))


def _ends(pairs: Sequence[Pair], base: SessionData, candidate: SessionData, alpha: float) -> list[Row]:
    """Return `outcome` by the ends of launches (None if step times decide), `note`, `exempt` and `fails_more`.

    Configurations that fail on both sides broke if their share of failures rose, by Fisher's exact test with Holm's
    method at level `alpha`.
    """
    both = {
        pair: (_launches(pair[0], base), _launches(pair[1], candidate))
        for pair in pairs
        if pair[0] in base.repetitions and pair[1] in candidate.repetitions
    }
    mixed = {pair: sides for pair, sides in both.items() if all(side.failed for side in sides)}
    p = dict(zip(mixed, holm([_rose(*sides) for sides in mixed.values()]), strict=True))
    found = []
    for pair in pairs:
        exempt = fails_more = False
        if pair in both:
            outcome, note, exempt, fails_more = _end(*both[pair], p.get(pair, 1.0) <= alpha)
        elif pair[0] in base.repetitions:
            outcome, note = Outcome.ONLY_BASE, candidate.why_missing(pair[1])
            exempt = pair[1] in candidate.skipped
        else:
            outcome, note = Outcome.ONLY_CANDIDATE, base.why_missing(pair[0])
        found.append({"outcome": outcome, "note": note, "exempt": exempt, "fails_more": fails_more})
    return found


def _rose(base: _Launches, candidate: _Launches) -> float:
    """Return the one-sided p-value of Fisher's exact test for more failures in candidate."""
    ours, launches = candidate.failed + candidate.ok, base.failed + base.ok + candidate.failed + candidate.ok
    failed = base.failed + candidate.failed
    ways = (
        math.comb(ours, k) * math.comb(launches - ours, failed - k)
        for k in range(candidate.failed, min(ours, failed) + 1)
    )
    return sum(ways) / math.comb(launches, failed)


def _end(base: _Launches, candidate: _Launches, rose: bool) -> tuple[Outcome | None, str, bool, bool]:
    """Return the outcome, a note, `exempt` and `fails_more` of a configuration that both sides launched."""
    note = f"base {base.counts}; candidate {candidate.counts}"
    if candidate.failed and (not base.failed or rose or (base.valid and not candidate.valid)):
        return Outcome.BROKE, note, False, False
    if not candidate.valid:
        return Outcome.NOT_OK, note, bool(base.failed) and not base.valid, False
    if not base.valid and base.failed:
        return Outcome.FIXED, note, False, False
    # Shares of failed launches, compared without a division by zero.
    if candidate.failed * base.ok > base.failed * candidate.ok:
        return None, f"{note}; fails more often, though not beyond chance", False, True
    return None, note if base.failed or candidate.failed else "", False, False
