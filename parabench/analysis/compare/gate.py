"""Did it get slower? Two sides, case by case, with the false alarms of many cases held in check."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic

import pandas as pd

from parabench.analysis.compare.between import ALLOWANCE, BetweenSessions
from parabench.analysis.compare.ends import End, judge_ends
from parabench.analysis.compare.outcome import REGRESSIONS, Outcome, Verdict
from parabench.analysis.compare.row import Row
from parabench.analysis.compare.rule import ALPHA, TOLERANCE, judge_sides, speed
from parabench.analysis.compare.sides import Difference, check_alike, differences, interleaved, unfinished
from parabench.analysis.compare.warnings import unpaired_finding
from parabench.analysis.session import Origin, SessionData
from parabench.analysis.stats.ttest import FEWEST_LAUNCHES, Case, Test, factor, logs_of
from parabench.analysis.text import compare as compare_words
from parabench.errors import UsageError
from parabench.store.record import Finding

# Of the JSON (docs/compare.schema.json): higher where a field went or means something else, not where one was added.
SCHEMA = 2


# Of base, and of candidate.
Launches = tuple[pd.DataFrame, pd.DataFrame]


@dataclass(frozen=True)
class Comparison:
    """All cases of both sides, regressions first.

    `paired`: the launches of both sides took turns, and were compared block by block; where not, `between_sessions` is
    how what sessions differ by themselves was taken into account. `differences` are what else differs, one sentence
    each; `findings` are doubts about the comparison itself.
    """

    base: str
    candidate: str
    origins: tuple[Origin, Origin]
    paired: bool
    tolerance: float
    alpha: float
    between_sessions: BetweenSessions | None
    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    findings: tuple[Finding, ...]
    changed: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Regression; no regression where in every case a slowdown of the tolerance is ruled out; else inconclusive. A
        case that should have been judged and was not rules out nothing."""
        if any(row.outcome in REGRESSIONS for row in self.rows):
            return Verdict.REGRESSION
        if self.judged and not any(row.unseen or row.outcome is Outcome.UNCLEAR for row in self.rows):
            return Verdict.NO_REGRESSION
        return Verdict.INCONCLUSIVE

    @property
    def judged(self) -> list[Row]:
        return [row for row in self.rows if row.p_slower is not None]

    @property
    def widest(self) -> Row | None:
        """The judged case with the largest upper bound."""
        return max(self.judged, key=lambda row: row.upper or 0.0, default=None)

    @property
    def not_ruled_out(self) -> list[Row]:
        """The judged cases in which a slowdown of the tolerance is possible, those that regressed included."""
        return [row for row in self.judged if row.upper is None or row.upper >= 1 + self.tolerance]

    @property
    def upper(self) -> float | None:
        """The largest one-sided 95 % upper bound of candidate / base; None where nothing was tested."""
        return None if self.widest is None else self.widest.upper

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it (docs/compare.schema.json): unknown is null."""
        fields = asdict(self)
        derived = {
            "schema": SCHEMA,
            "kind": "gate",
            "verdict": self.verdict,
            "exit_code": self.verdict.exit_code,
            "upper": self.upper,
            "sentence": self.sentence(),
        }
        assert not derived.keys() & fields.keys()
        return derived | fields

    def sentence(self) -> str:
        return compare_words.sentence(self)

    def lines(self) -> list[str]:
        """The whole comparison as lines of text."""
        return [
            self.sentence(),
            *(f"differs: {difference}" for difference in self.differences),
            *(f"doubt: {finding.message} {finding.advice}" for finding in self.findings),
            *(row.line() for row in self.rows),
        ]


def compare(
    base: SessionData,
    candidate: SessionData,
    tolerance: float = TOLERANCE,
    alpha: float = ALPHA,
    changed: tuple[str, ...] = (),
    left_out: Collection[str] = (),
    allowance: float = ALLOWANCE,
) -> Comparison:
    """Compare the cases of two sides by their ids.

    A case regressed when its launches are slower in a one-sided t-test of log numbers, adjusted over cases by Holm, at
    level `alpha`, and slower by more than `tolerance` (a fraction); or when it ended well before and now does not, or
    significantly less often. The gate passes where in every case the one-sided 95 % upper bound of the slowdown lies
    below the tolerance: all cases must show it, so each may at that level (R. L. Berger, "Multiparameter hypothesis
    testing and acceptance sampling", Technometrics 24, 1982). `left_out` are ids of cases that were left out of
    candidate on purpose.
    Where both sides took turns in one run, launches are compared block by block, else side against side, and what
    sessions differ by themselves belongs to the error: `allowance`, a standard deviation of a session's log time, where
    base's store does not tell it. Every case of either side has a row. Raises UsageError when both sides are the same
    session; when they have no case in common, because a gate that judges nothing must not pass; and when they differ in
    what decides a latency and `changed` does not name it (of two that took turns, that is what is being compared).
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
        end, test = judged.ends.get(case) or _only(case, base, candidate, left_out), tests.get(case)
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


@dataclass(frozen=True)
class JudgedCases(Generic[Case]):
    """Cases of two sides: the launches that were compared, the tests of those with launches enough, what became of
    those that both sides have, and what is in `rule.Judged.between`."""

    launches: dict[Case, Launches]
    tests: dict[Case, Test]
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
    with a verdict (`compare`) and without one (`report` of several). The outcome of an end is never None."""
    paired = interleaved(base, candidate)
    launches = {key: _launches(pair, base, candidate, paired) for key, pair in pairs.items()}
    judged = judge_sides(
        {key: (logs_of(sides[0]["number_s"]), logs_of(sides[1]["number_s"])) for key, sides in launches.items()},
        base,
        candidate,
        allowance,
        {key: pair[0] for key, pair in pairs.items()},
    )
    both = {
        key: pair
        for key, pair in pairs.items()
        if pair[0] in base.cases_by_id.index and pair[1] in candidate.cases_by_id.index
    }
    ends = {
        key: end
        if end.outcome is not None
        else _by_numbers(end, launches[key], judged.tests.get(key), tolerance, alpha, paired)
        for key, end in judge_ends(both, base, candidate, alpha).items()
    }
    return JudgedCases(launches, judged.tests, ends, judged.between)


def check_two(base: SessionData, candidate: SessionData) -> None:
    """Raise UsageError when both sides are one session."""
    if base.results.path.resolve() == candidate.results.path.resolve() and base.session.id == candidate.session.id:
        store = base.results.path
        raise UsageError(f"both sides are {base.session.name} of {store}; name two sessions as {store}@SESSION")


def _launches(pair: tuple[str, str], base: SessionData, candidate: SessionData, paired: bool) -> Launches:
    """The launches of a case that count, of each side; only blocks that both have, where they are paired."""
    sides = [side.by_case.get(case, side.good.iloc[:0]) for case, side in zip(pair, (base, candidate), strict=True)]
    if paired and sides[0]["block"].tolist() != sides[1]["block"].tolist():
        both = set(sides[0]["block"]) & set(sides[1]["block"])
        sides = [side[side["block"].isin(both)] for side in sides]
    return sides[0], sides[1]


def _row(
    case: str,
    label: str,
    seconds: tuple[float | None, float | None],
    launches: Launches,
    test: Test | None,
    tolerance: float,
    end: End,
) -> Row:
    """`seconds` are the step times that the case has in its sessions; the ratio is of the launches that are
    compared."""
    means = [float(logs_of(side["number_s"]).mean()) if len(side) else None for side in launches]
    assert end.outcome is not None
    return Row(
        case_id=case,
        label=label,
        outcome=end.outcome,
        base_s=seconds[0],
        candidate_s=seconds[1],
        ratio=math.exp(means[1] - means[0]) if means[0] is not None and means[1] is not None else None,
        low=factor(test.low) if test else None,
        high=factor(test.high) if test else None,
        upper=factor(test.upper) if test else None,
        p_slower=test.p_slower if test else None,
        session_sd=test.between.sd if test and test.between else None,
        launches_needed=test.launches_for(tolerance) if test else None,
        base_launches=tuple(int(each) for each in launches[0]["launch_id"]),
        candidate_launches=tuple(int(each) for each in launches[1]["launch_id"]),
        excused=end.excused,
        fails_more=end.fails_more,
        note=end.note,
    )


def _only(case: str, base: SessionData, candidate: SessionData, left_out: Collection[str]) -> End:
    """What became of a case that one side has."""
    if case not in base.cases_by_id.index:
        return End(Outcome.ONLY_CANDIDATE, base.why_missing(case))
    if case in left_out and case not in candidate.skipped:
        return End(Outcome.ONLY_BASE, f"not selected in {candidate.session.name}", excused=True)
    return End(Outcome.ONLY_BASE, candidate.why_missing(case), excused=case in candidate.skipped)


def _by_numbers(end: End, launches: Launches, test: Test | None, tolerance: float, alpha: float, paired: bool) -> End:
    """What the numbers say of a case that ended well on both sides; what its end had to say stays in the note."""
    if test is not None:
        outcome, note = speed(test, tolerance, alpha)
        if note and test.launches_for(tolerance) is not None:
            note += "; more launches would tell"
    else:
        outcome = Outcome.NOT_JUDGED
        what = "blocks with a good launch on both sides" if paired else "good launches a side"
        counts = str(len(launches[0])) if paired else f"{len(launches[0])} and {len(launches[1])}"
        note = f"{FEWEST_LAUNCHES} {what} are needed; there are {counts}"
    if end.fails_more and outcome in (Outcome.SAME, Outcome.FASTER):
        outcome = Outcome.UNCLEAR
    return replace(end, outcome=outcome, note="; ".join(each for each in (note, end.note) if each))
