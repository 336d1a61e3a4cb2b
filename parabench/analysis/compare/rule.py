"""The rule by which a case of two sessions is judged: what its numbers say, and how its launches ended."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Generic

from parabench.analysis.compare.between import ALLOWANCE, BetweenSessions, between_sessions
from parabench.analysis.compare.sides import interleaved
from parabench.analysis.numbers import Launches, of_pair
from parabench.analysis.session import SessionData
from parabench.analysis.stats.ttest import FEWEST_LAUNCHES, Case, Numbers, TTest, holm, judge, logs_of
from parabench.store.record import Status


class Outcome(StrEnum):
    """What became of one case, in the order in which a reader wants them. The first two fail a gate."""

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


class Verdict(StrEnum):
    """What a gate says."""

    NO_REGRESSION = "no regression"
    REGRESSION = "regression"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_code(self) -> int:
        """0, 1 and 3; 2 is wrong usage."""
        return {Verdict.NO_REGRESSION: 0, Verdict.REGRESSION: 1, Verdict.INCONCLUSIVE: 3}[self]


TOLERANCE, ALPHA = 0.02, 0.01


def speed(test: TTest, tolerance: float = TOLERANCE, alpha: float = ALPHA) -> tuple[Outcome, str]:
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


FAILURES = (Status.WRONG, Status.OOM, Status.CRASHED, Status.HUNG, Status.FAILED)


@dataclass(frozen=True)
class Ends:
    """How one side's launches of a case ended: {how: launches}, how many failed, succeeded, and count."""

    counts: dict[str, int]
    failed: int
    ok: int
    valid: int
    error: str

    def said(self) -> str:
        """'oom', or where they ended in several ways '8 ok, 1 oom'."""
        return next(iter(self.counts)) if len(self.counts) == 1 else self.each()

    def each(self) -> str:
        """'8 ok, 1 oom', 'none'."""
        return ", ".join(f"{n} {how}" for how, n in self.counts.items()) or "none"


@dataclass(frozen=True)
class End:
    """What became of a case by how its launches ended. `outcome` is None where their numbers decide; `exempt` where a
    gate can do without them, because there is nothing that it could have become slower than. `fails_more`: the
    candidate's launches failed more often than base's, though not beyond chance."""

    outcome: Outcome | None
    note: str
    exempt: bool = False
    fails_more: bool = False


def ends_of(case: str, side: SessionData) -> Ends:
    """Return how the launches of a case ended on one side."""
    own = side.repetitions[case]
    how = own["status"].mask((own["status"] == Status.OK) & ~own["timed"], f"{Status.OK} without a step time")
    error = next(iter(own["error"].dropna()), "")
    return Ends(
        counts=dict(Counter(map(str, how))),
        failed=int(own["status"].isin(FAILURES).sum()),
        ok=int((own["status"] == Status.OK).sum()),
        valid=int(own["timed"].sum()),
        error=f": {error}" if error else "",
    )


def judge_ends(
    pairs: Mapping[Case, tuple[str, str]], base: SessionData, candidate: SessionData, alpha: float
) -> dict[Case, End]:
    """What became of each case that both sides have; `pairs` are its ids in base and in candidate.

    One that never failed in base and does in candidate broke; so did one that fails in both where its share of failed
    launches rose in Fisher's exact test, one-sided and adjusted over such cases by Holm, at level `alpha`. Launches
    that were interrupted neither failed nor succeeded.
    """
    ends = {case: (ends_of(old, base), ends_of(new, candidate)) for case, (old, new) in pairs.items()}
    mixed = {case: sides for case, sides in ends.items() if all(side.failed for side in sides)}
    p = dict(zip(mixed, holm([_rose(*sides) for sides in mixed.values()]), strict=True))
    return {case: _end(*sides, p.get(case, 1.0) <= alpha) for case, sides in ends.items()}


def _rose(base: Ends, candidate: Ends) -> float:
    """The one-sided p that the candidate's share of failed launches is the base's: that of all ways in which as many
    of all launches fail, at least as many are the candidate's."""
    ours, launches = candidate.failed + candidate.ok, base.failed + base.ok + candidate.failed + candidate.ok
    failed = base.failed + candidate.failed
    ways = (
        math.comb(ours, k) * math.comb(launches - ours, failed - k)
        for k in range(candidate.failed, min(ours, failed) + 1)
    )
    return sum(ways) / math.comb(launches, failed)


def _end(base: Ends, candidate: Ends, rose: bool) -> End:
    note = ""
    if any(side.failed and side.ok for side in (base, candidate)):
        note = f"base {base.each()}; candidate {candidate.each()}{candidate.error or base.error}"
    was_is = note or f"was {base.said()}, is {candidate.said()}{candidate.error}"
    if candidate.failed and (not base.failed or rose or (base.valid and not candidate.valid)):
        return End(Outcome.BROKE, was_is)
    if not candidate.valid:
        never = bool(base.failed) and not base.valid
        return End(Outcome.NOT_OK, note or f"base {base.said()}, candidate {candidate.said()}{candidate.error}", never)
    if not base.valid and base.failed:
        return End(Outcome.FIXED, was_is)
    # As shares of what ended, without division by what may be none.
    more = candidate.failed * base.ok > base.failed * candidate.ok
    return End(None, f"{note}; fails more often, though not beyond chance" if more else note, fails_more=more)


@dataclass(frozen=True)
class JudgedCases(Generic[Case]):
    """Cases of two sides: the launches that were compared, the tests of those with launches enough, what became of
    those that both sides have. `between` is how what sessions differ was taken into account; None where both sides took
    turns, and where no case was judged."""

    launches: dict[Case, Launches]
    tests: dict[Case, TTest]
    ends: dict[Case, End]
    between: BetweenSessions | None


def judge_cases(
    pairs: Mapping[Case, tuple[str, str]],
    base: SessionData,
    candidate: SessionData,
    tolerance: float = TOLERANCE,
    alpha: float = ALPHA,
    allowance: float = ALLOWANCE,
) -> JudgedCases[Case]:
    """Judge each of `pairs`, a case's ids in base and in candidate: the one rule by which two sessions are compared,
    with a verdict (`compare`) and without one (`report` of several). The outcome of an end is never None.

    Where the sides did not take turns, what sessions differ by themselves belongs to the error; `allowance` is its
    standard deviation on the log scale for cases of which base's store does not tell it.
    """
    paired = interleaved(base, candidate)
    launches = {key: of_pair(pair, base.by_case, candidate.by_case, paired) for key, pair in pairs.items()}
    logs = {key: (logs_of(sides[0]), logs_of(sides[1])) for key, sides in launches.items()}
    tests, between = _tests(logs, pairs, base, candidate, allowance)
    both = {
        key: pair
        for key, pair in pairs.items()
        if pair[0] in base.cases_by_id.index and pair[1] in candidate.cases_by_id.index
    }
    ends = {
        key: end
        if end.outcome is not None
        else _by_numbers(end, launches[key], tests.get(key), tolerance, alpha, paired)
        for key, end in judge_ends(both, base, candidate, alpha).items()
    }
    return JudgedCases(launches, tests, ends, between)


def _tests(
    logs: Mapping[Case, tuple[Numbers, Numbers]],
    pairs: Mapping[Case, tuple[str, str]],
    base: SessionData,
    candidate: SessionData,
    allowance: float,
) -> tuple[dict[Case, TTest], BetweenSessions | None]:
    if interleaved(base, candidate):
        return judge(logs, paired=True), None
    found, sessions = between_sessions(base, candidate, {old for old, _ in pairs.values()}, allowance)
    tests = judge(logs, paired=False, between={key: found[old] for key, (old, _) in pairs.items()})
    if not tests:
        return tests, None
    measured = sum(test.between is not None and test.between.sessions > 0 for test in tests.values())
    return tests, BetweenSessions(sessions, measured, len(tests) - measured, allowance)


def _by_numbers(end: End, launches: Launches, test: TTest | None, tolerance: float, alpha: float, paired: bool) -> End:
    """What the numbers say of a case that succeeded on both sides; what its end had to say stays in the note."""
    if test is not None:
        outcome, note = speed(test, tolerance, alpha)
        if note and test.launches_for(tolerance) is not None:
            note += "; more launches would tell"
    else:
        outcome = Outcome.NOT_JUDGED
        what = "blocks that succeeded on both sides" if paired else "successful launches per side"
        counts = str(len(launches[0])) if paired else f"{len(launches[0])} and {len(launches[1])}"
        note = f"{FEWEST_LAUNCHES} {what} are needed; there are {counts}"
    if end.fails_more and outcome in (Outcome.SAME, Outcome.FASTER):
        outcome = Outcome.UNCLEAR
    return replace(end, outcome=outcome, note="; ".join(each for each in (note, end.note) if each))
