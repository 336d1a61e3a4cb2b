"""Did it get slower? Two sides, case by case, with the false alarms of many cases held in check."""

from __future__ import annotations

import math
from dataclasses import dataclass

from parabench.analysis.compare.between import ALLOWANCE, BetweenSessions
from parabench.analysis.compare.rule import (
    ALPHA,
    REGRESSIONS,
    TOLERANCE,
    End,
    Outcome,
    Verdict,
    judge_cases,
)
from parabench.analysis.compare.sides import check_two, interleaved
from parabench.analysis.compare.warnings import unfinished, unpaired_finding
from parabench.analysis.environment.diff import Difference, check_alike, differences
from parabench.analysis.numbers import Launches, launch_ids
from parabench.analysis.session import Origin, SessionData
from parabench.analysis.stats.ttest import TTest, factor, logs_of
from parabench.errors import UsageError
from parabench.store.record import Finding


@dataclass(frozen=True)
class CaseResult:
    """One case.

    `base_step_time_s` and `candidate_step_time_s` are the step times that the case has in its two sessions. `ratio` is
    candidate / base of the launches that are compared, so that a launch without a partner does not move it; `low` to
    `high` its 95 % interval and `upper` its one-sided 95 % upper bound; `p_slower` is one-sided and adjusted by Holm.
    `session_sd` is the standard deviation of a session's log time that is in them, None where both sides took turns.
    `launches_needed` is with how many launches a side a gate of two equal sides would pass (`TTest.launches_for`; None:
    no number up to 500). `base_launches` and `candidate_launches` are the ids in table `launch` of what the numbers
    were made of. `exempt`: only in base, because the candidate skipped it with a reason; or it
    never succeeded in base either. `fails_more`: more often than in base, though not beyond chance.
    """

    case_id: str
    label: str
    outcome: Outcome
    base_step_time_s: float | None
    candidate_step_time_s: float | None
    ratio: float | None
    low: float | None
    high: float | None
    upper: float | None
    p_slower: float | None
    session_sd: float | None
    launches_needed: int | None
    base_launches: tuple[int, ...]
    candidate_launches: tuple[int, ...]
    exempt: bool
    fails_more: bool
    note: str

    @property
    def not_judged(self) -> bool:
        """Whether it may have become worse without anyone being able to tell: a gate with such a case cannot pass.

        What was fixed, or is only in the candidate, has no step time before that it could be slower than.
        """
        unknown = self.outcome in (Outcome.ONLY_BASE, Outcome.NOT_JUDGED, Outcome.NOT_OK)
        return self.fails_more or (unknown and not self.exempt)


@dataclass(frozen=True)
class Comparison:
    """All cases of both sides, regressions first.

    `paired`: the launches of both sides took turns, and were compared block by block; where not, `between_sessions` is
    how what sessions differ by themselves was taken into account. `differences` are what else differs, one sentence
    each; `findings` are warnings about the comparison itself.
    """

    base: str
    candidate: str
    origins: tuple[Origin, Origin]
    paired: bool
    tolerance: float
    alpha: float
    between_sessions: BetweenSessions | None
    rows: tuple[CaseResult, ...]
    differences: tuple[Difference, ...]
    findings: tuple[Finding, ...]
    changed: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Regression; no regression where in every case a slowdown of the tolerance is ruled out; else inconclusive. A
        case that should have been judged and was not rules out nothing."""
        if any(row.outcome in REGRESSIONS for row in self.rows):
            return Verdict.REGRESSION
        if self.judged and not any(row.not_judged or row.outcome is Outcome.UNCLEAR for row in self.rows):
            return Verdict.NO_REGRESSION
        return Verdict.INCONCLUSIVE

    @property
    def judged(self) -> list[CaseResult]:
        return [row for row in self.rows if row.p_slower is not None]

    @property
    def widest(self) -> CaseResult | None:
        """The judged case with the largest upper bound."""
        return max(self.judged, key=lambda row: row.upper or 0.0, default=None)

    @property
    def not_ruled_out(self) -> list[CaseResult]:
        """The judged cases in which a slowdown of the tolerance is possible, those that regressed included."""
        return [row for row in self.judged if row.upper is None or row.upper >= 1 + self.tolerance]

    @property
    def upper(self) -> float | None:
        """The largest one-sided 95 % upper bound of candidate / base; None where nothing was tested."""
        return None if self.widest is None else self.widest.upper


def compare(
    base: SessionData,
    candidate: SessionData,
    tolerance: float = TOLERANCE,
    alpha: float = ALPHA,
    changed: tuple[str, ...] = (),
    allowance: float = ALLOWANCE,
) -> Comparison:
    """Compare the cases of two sides by their ids.

    A case regressed when its launches are slower in a one-sided t-test of log numbers, adjusted over cases by Holm, at
    level `alpha`, and slower by more than `tolerance` (a fraction); or when it succeeded before and now does not, or
    significantly less often. The gate passes where in every case the one-sided 95 % upper bound of the slowdown lies
    below the tolerance: all cases must show it, so each may at that level (R. L. Berger, "Multiparameter hypothesis
    testing and acceptance sampling", Technometrics 24, 1982).
    Where both sides took turns in one run, launches are compared block by block, else side against side, and what
    sessions differ by themselves belongs to the error: `allowance`, a standard deviation of a session's log time, where
    base's store does not tell it. Every case of either side has a row. Raises UsageError when both sides are the same
    session; when they have no case in common, because a gate that judges nothing must not pass; and when they differ in
    what decides a step time and `changed` does not name it (of two that took turns, that is what is being compared).
    """
    check_two(base, candidate)
    cases = [*base.cases_by_id.index, *candidate.cases_by_id.index]
    if len(set(cases)) == len(cases):
        raise UsageError(
            f"no case is in both {base.session.name} of {base.results.path} and {candidate.session.name} of "
            f"{candidate.results.path}; measure the same suite with the same --set on both sides"
        )
    paired = interleaved(base, candidate)
    differing = list(differences(base, candidate))
    if not paired:
        check_alike(differing, changed)
    judged = judge_cases({case: (case, case) for case in cases}, base, candidate, tolerance, alpha, allowance)
    tests = judged.tests
    rows = []
    for case, sides in judged.launches.items():
        end, test = judged.ends.get(case) or _only(case, base, candidate), tests.get(case)
        there = candidate if case in candidate.cases_by_id.index else base
        seconds = base.step_times.get(case), candidate.step_times.get(case)
        rows.append(_row(case, str(there.cases_by_id.loc[case, "label"]), seconds, sides, test, tolerance, end))
    order = list(Outcome)
    return Comparison(
        base=base.session.name,
        candidate=candidate.session.name,
        origins=(base.origin, candidate.origin),
        paired=paired,
        tolerance=tolerance,
        alpha=alpha,
        between_sessions=judged.between,
        rows=tuple(sorted(rows, key=lambda row: (order.index(row.outcome), -(row.ratio or 0)))),
        differences=tuple(differing),
        findings=(
            *unfinished(base, candidate),
            *(() if paired else unpaired_finding(base, candidate, tests)),
        ),
        changed=changed,
    )


def _row(
    case: str,
    label: str,
    seconds: tuple[float | None, float | None],
    launches: Launches,
    test: TTest | None,
    tolerance: float,
    end: End,
) -> CaseResult:
    """`seconds` are the step times that the case has in its sessions; the ratio is of the launches that are
    compared."""
    means = [float(logs_of(side).mean()) if len(side) else None for side in launches]
    assert end.outcome is not None
    return CaseResult(
        case_id=case,
        label=label,
        outcome=end.outcome,
        base_step_time_s=seconds[0],
        candidate_step_time_s=seconds[1],
        ratio=math.exp(means[1] - means[0]) if means[0] is not None and means[1] is not None else None,
        low=factor(test.low) if test else None,
        high=factor(test.high) if test else None,
        upper=factor(test.upper) if test else None,
        p_slower=test.p_slower if test else None,
        session_sd=test.between.sd if test and test.between else None,
        launches_needed=test.launches_for(tolerance) if test else None,
        base_launches=launch_ids(launches[0]),
        candidate_launches=launch_ids(launches[1]),
        exempt=end.exempt,
        fails_more=end.fails_more,
        note=end.note,
    )


def _only(case: str, base: SessionData, candidate: SessionData) -> End:
    """What became of a case that one side has."""
    if case not in base.cases_by_id.index:
        return End(Outcome.ONLY_CANDIDATE, base.why_missing(case))
    return End(Outcome.ONLY_BASE, candidate.why_missing(case), exempt=case in candidate.skipped)
