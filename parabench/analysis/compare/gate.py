"""The gate: compare each configuration of two variants and detect slowdowns."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Literal

from parabench.analysis import format
from parabench.analysis.answer import Answer, Rows, columns, keyed, tables
from parabench.analysis.compare.between import ALLOWANCE, FEWEST_SESSIONS, BetweenSessions
from parabench.analysis.compare.cases import ALPHA, REGRESSIONS, TOLERANCE, CaseResult, Outcome, compare_cases
from parabench.analysis.compare.sides import check_distinct, interleaved
from parabench.analysis.compare.warnings import UNPAIRED, unfinished
from parabench.analysis.environment.diff import Difference, check_alike, differences
from parabench.analysis.session import Origin, SessionData
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.contrasts import MOST_LAUNCHES, POWER
from parabench.errors import UsageError
from parabench.store.record import Finding


class Verdict(StrEnum):
    """The answer of a gate."""

    NO_REGRESSION = "no regression"
    REGRESSION = "regression"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_code(self) -> int:
        """0, 1 or 3; wrong usage is 2."""
        return {Verdict.NO_REGRESSION: 0, Verdict.REGRESSION: 1, Verdict.INCONCLUSIVE: 3}[self]


@dataclass(frozen=True)
class Comparison:
    """All configurations of both sides, regressions first.

    `paired`: the sides were interleaved, and their launches were compared block by block. Otherwise `between_sessions`
    describes the variation between sessions. `differences` are other differences between the sides, `findings` are
    warnings about the comparison itself.
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
        """Regression; no regression if a slowdown beyond the tolerance is ruled out in every configuration; otherwise
        inconclusive."""
        if any(row.outcome in REGRESSIONS for row in self.rows):
            return Verdict.REGRESSION
        if self.judged and not any(row.not_judged or row.outcome is Outcome.UNCLEAR for row in self.rows):
            return Verdict.NO_REGRESSION
        return Verdict.INCONCLUSIVE

    @property
    def judged(self) -> list[CaseResult]:
        """The configurations that were tested."""
        return [row for row in self.rows if row.p_slower is not None]

    @property
    def not_ruled_out(self) -> list[CaseResult]:
        """The judged configurations in which a slowdown beyond the tolerance is possible."""
        return [row for row in self.judged if row.upper is None or row.upper >= 1 + self.tolerance]

    @property
    def upper(self) -> float | None:
        """The largest one-sided 95% upper bound of candidate / base; None if nothing was tested."""
        return max((row.upper or 0.0 for row in self.judged), default=None)


def compare(
    base: SessionData,
    candidate: SessionData,
    tolerance: float = TOLERANCE,
    alpha: float = ALPHA,
    changed: tuple[str, ...] = (),
    allowance: float = ALLOWANCE,
) -> Comparison:
    """Compare the configurations of two sides by their ids.

    A configuration regressed if its launches are slower in a one-sided t-test of log numbers, adjusted by Holm's method
    at level `alpha`, and slower by more than `tolerance` (a fraction); or if it succeeded before and now does not, or
    significantly less often. The gate passes if the one-sided 95% upper bound of the slowdown is below the tolerance in
    every configuration. All must show it, so each is tested at that level (R. L. Berger, "Multiparameter hypothesis
    testing and acceptance sampling", Technometrics 24, 1982).

    Raises UsageError if both sides are the same session, if they have no configuration in common, or if they differ in
    something that affects step times and `changed` does not name it (if the sides were interleaved, this difference is
    what they compare).
    """
    check_distinct((base, candidate))
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
    pairs = [(case if case in base.cases_by_id.index else None, case if case in candidate.cases_by_id.index else None)
             for case in dict.fromkeys(map(str, cases))]  # fmt: skip
    results, between = compare_cases(pairs, base, candidate, tolerance, alpha, allowance)
    order = list(Outcome)
    rows = sorted(results.values(), key=lambda row: (order.index(row.outcome), -(row.ratio or 0)))
    return Comparison(
        base=base.session.name,
        candidate=candidate.session.name,
        origins=(base.origin, candidate.origin),
        paired=paired,
        tolerance=tolerance,
        alpha=alpha,
        between_sessions=between,
        rows=tuple(rows),
        differences=tuple(differing),
        findings=(*unfinished(base, candidate), *(() if paired else (UNPAIRED,))),
        changed=changed,
    )


_BETWEEN = columns(BetweenSessions)
# The tables of the answer.
TABLES = {
    "verdict": columns(
        Comparison,
        verdict=Verdict,
        exit_code=Literal[0, 1, 3],
        upper=float | None,
        **{name: hint | None for name, hint in _BETWEEN.items()},
    ),
    "sides": columns(Origin, side=Literal["base", "candidate"]),
    "cases": columns(CaseResult),
    "differences": columns(Difference),
}


def sentence(of: Comparison) -> str:
    """Return `sentences` in one line."""
    return " ".join(sentences(of))


def sentences(of: Comparison) -> list[str]:
    """Return the verdict with the outcomes, the slowdowns that are ruled out, advice, and the basis of the verdict."""
    return [f"{of.verdict.capitalize()}: {_outcomes(of)}.", *_bounds(of), *_advice(of), *_basis(of)]


def _outcomes(of: Comparison) -> str:
    """Return '2 cases slower (ddp ring +10%; fsdp +8.1%), 3 same'."""
    found: list[str] = []
    for outcome in sorted(Outcome, key=lambda each: each is Outcome.SAME):
        rows = [row for row in of.rows if row.outcome is outcome]
        if rows:
            count = f"{len(rows):,}" if found else format.count(len(rows), "case")
            changed = outcome in (Outcome.SLOWER, Outcome.FASTER)
            labels = (f"{row.label} {format.signed((row.ratio or 1) - 1)}" if changed else row.label for row in rows)
            named = "" if outcome is Outcome.SAME else f" ({format.listed(labels, most=3)})"
            found.append(f"{count} {outcome}{named}")
    return ", ".join(found)


def tolerated(of: Comparison) -> str:
    """Return the tolerance as it was given: '2%'."""
    return f"{100 * of.tolerance:.6g}%"


def _bounds(of: Comparison) -> Iterator[str]:
    if of.judged:
        largest = max(of.judged, key=lambda row: row.upper or 0.0)
        ruled_out = f"{len(of.judged) - len(of.not_ruled_out):,} of {format.count(len(of.judged), 'case')} judged"
        bound = f"the largest upper bound is {format.signed((largest.upper or 0.0) - 1)}, {largest.label}"
        yield f"Slowdowns above {tolerated(of)} are ruled out in {ruled_out} ({format.percent(CONFIDENCE)}; {bound})."


def needed(of: Comparison) -> int | None:
    """Return with how many launches per side two equal sides would pass; None if there is no such number."""
    known = [row.launches_needed for row in of.not_ruled_out]
    return None if None in known else max((each for each in known if each is not None), default=None)


def _advice(of: Comparison) -> Iterator[str]:
    """Yield what would make an inconclusive gate pass."""
    if of.verdict is not Verdict.INCONCLUSIVE:
        return
    if any(row.not_judged for row in of.rows):
        yield "Measure the cases that were not judged, or take a base without them."
    if of.not_ruled_out:
        launches = needed(of)
        if launches is not None:
            yield f"Equal sides would pass with about {launches} launches per side ({format.percent(POWER)})."
        elif any(row.session_sd for row in of.not_ruled_out if row.launches_needed is None):
            yield f"{MOST_LAUNCHES} launches per side would not suffice: interleave the sides with `parabench ab`."
        else:
            yield f"{MOST_LAUNCHES} launches per side would not suffice: the launches are too noisy for this tolerance."


def _basis(of: Comparison) -> Iterator[str]:
    """Yield the number of launches, and the variation between sessions that the bounds contain."""
    if not of.judged:
        return
    launches = [min(len(row.base_launches), len(row.candidate_launches)) for row in of.judged]
    many = f"{min(launches)} to {max(launches)}" if min(launches) < max(launches) else str(max(launches))
    between = of.between_sessions
    yield f"{many} launches per side, {'not ' if between else ''}interleaved."
    if between is None:
        return
    sessions = format.count(between.sessions, "session")
    if between.measured:
        typical = format.percent(median(row.session_sd or 0.0 for row in of.judged))
        yield f"The bounds contain the variation between {sessions}: {typical} (standard deviation, typical case)."
    if between.allowed:
        which = "" if between.allowed == len(of.judged) else f" in {format.count(between.allowed, 'case')}"
        share = f"{100 * between.allowance:.6g}% or more{which} (standard deviation, --between-sessions)"
        there = f"the store of base has {sessions} of its suite and environment"
        yield f"Sessions are assumed to differ by {share}: {there}, and {FEWEST_SESSIONS} are needed to measure it."


def command(of: Comparison) -> str:
    """Return the command that repeats this comparison."""
    changed = [word for name in of.changed for word in ("--changed", name)]
    options = ["--tolerance", repr(of.tolerance), "--alpha", repr(of.alpha), *changed]
    if of.between_sessions is not None:
        options += ["--between-sessions", repr(of.between_sessions.allowance)]
    return shlex.join(["parabench", "compare", *(origin.at for origin in of.origins), *options])


def lines(of: Comparison) -> list[str]:
    """Return the comparison as lines of text."""
    return [
        *format.in_lines(sentences(of)),
        *map(str, of.differences),
        *format.warnings(of.findings),
        *map(line, of.rows),
    ]


def line(row: CaseResult) -> str:
    """Return a configuration in one line: 'slower: LABEL: 41.2 ms -> 45.0 ms, +9.2% (95%: ...); upper bound ...'."""
    if row.ratio is None:
        return f"{row.outcome}: {row.label}: {row.note}"
    change = f"{format.milliseconds(row.base_step_time_s)} -> {format.milliseconds(row.candidate_step_time_s)}"
    change += f", {format.signed(row.ratio - 1)}"
    if row.low is not None:
        change += f" (95%: {interval(row)})"
    if row.upper is not None:
        change += f"; upper bound {format.signed(row.upper - 1)}"
    return f"{row.outcome}: {row.label}: {change}{'; ' + row.note if row.note else ''}"


def interval(row: CaseResult) -> str:
    """Return the 95% interval of a change: '+8.1% to +10%'; empty if it is unknown."""
    if row.low is None or row.high is None:
        return ""
    return f"{format.signed(row.low - 1)} to {format.signed(row.high - 1)}"


def ids(launches: Sequence[int]) -> str:
    """Return launch ids: '1-4, 9', or 'none'."""
    return format.runs(launches) or "none"


def answer(of: Comparison) -> Answer:
    """Return the answer of a gate."""
    between = vars(of.between_sessions) if of.between_sessions is not None else dict.fromkeys(_BETWEEN)
    rows: Rows = {
        "verdict": keyed([of], exit_code=of.verdict.exit_code, **between),
        "sides": [(origin, {"side": side}) for side, origin in zip(("base", "candidate"), of.origins, strict=True)],
        "cases": of.rows,
        "differences": of.differences,
    }
    return Answer(tuple(sentences(of)), tables(TABLES, rows), warnings=of.findings)
