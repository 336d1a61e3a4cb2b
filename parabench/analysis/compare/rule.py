"""The rule of a gate: what the test of a case says. Every comparison of two sessions judges by it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

from parabench.analysis.compare.between import ALLOWANCE, BetweenSessions, between_sessions
from parabench.analysis.compare.outcome import Outcome
from parabench.analysis.compare.sides import interleaved
from parabench.analysis.session import SessionData
from parabench.analysis.stats.ttest import Case, Numbers, Test, judge

TOLERANCE, ALPHA = 0.02, 0.01


@dataclass(frozen=True)
class Judged(Generic[Case]):
    """The tests of the cases with launches enough. `between` is how what sessions differ was taken into account; None
    where both sides took turns, and where no case was judged."""

    tests: dict[Case, Test]
    between: BetweenSessions | None


def judge_sides(
    logs: Mapping[Case, tuple[Numbers, Numbers]],
    base: SessionData,
    candidate: SessionData,
    allowance: float = ALLOWANCE,
    base_case: Mapping[Case, str] | None = None,
) -> Judged[Case]:
    """Test cases of two sides: `logs` are those of base and candidate, one number a launch; of sides that took turns
    the same blocks in the same order. `base_case` is the id that a key of `logs` has in base, where it is not the key.

    Where the sides did not take turns, what sessions differ by themselves belongs to the error; `allowance` is its
    standard deviation on the log scale for cases of which base's store does not tell it.
    """
    if interleaved(base, candidate):
        return Judged(judge(logs, paired=True), None)
    ids = {key: base_case[key] if base_case is not None else str(key) for key in logs}
    by_id, sessions = between_sessions(base, candidate, set(ids.values()), allowance)
    tests = judge(logs, paired=False, between={key: by_id[case] for key, case in ids.items()})
    if not tests:
        return Judged(tests, None)
    measured = sum(test.between is not None and test.between.sessions > 0 for test in tests.values())
    return Judged(tests, BetweenSessions(sessions, measured, len(tests) - measured, allowance))


def speed(test: Test, tolerance: float = TOLERANCE, alpha: float = ALPHA) -> tuple[Outcome, str]:
    """What a test says of a case, and a note.

    Slower: significant at `alpha`, and the estimate beyond the tolerance. The same: a slowdown of the tolerance is
    ruled out, its one-sided 95 % upper bound lies below (a non-inferiority test; power after the fact is no criterion:
    J. M. Hoenig and D. M. Heisey, "The abuse of power", The American Statistician 55, 2001); faster: it is,
    significantly so, and by more than the tolerance. All else is unclear.
    """
    beyond = math.log1p(tolerance)
    if test.difference > beyond and test.p_slower <= alpha:
        return Outcome.SLOWER, ""
    if not test.upper < beyond:  # nor is anything ruled out by a bound that is no number
        return Outcome.UNCLEAR, "beyond the tolerance, but not beyond the noise" if test.difference > beyond else ""
    if test.difference < -beyond and test.p_faster <= alpha:
        return Outcome.FASTER, ""
    return Outcome.SAME, ""
