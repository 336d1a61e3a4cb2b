"""Configurations of two sessions, one record each: numbers, failures, and the outcome by the gate's rule."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from parabench.analysis.compare.between import ALLOWANCE, BetweenSessions, between_sessions
from parabench.analysis.compare.sides import interleaved
from parabench.analysis.numbers import Launches, launch_ids, of_pair
from parabench.analysis.session import SessionData
from parabench.analysis.stats.contrasts import FEWEST_LAUNCHES, Between, TTest, factor, holm, judge, logs_of
from parabench.store.record import Status

TOLERANCE, ALPHA = 0.02, 0.01
# The ids of a configuration in base and in candidate; None if a side does not have it.
Pair = tuple[str | None, str | None]


class Outcome(StrEnum):
    """The outcome of one configuration, in the order in which a reader wants them. The first two fail a gate."""

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


@dataclass(frozen=True)
class CaseResult:
    """One configuration on two sides.

    `base_step_time_s` and `candidate_step_time_s` are its step times in the two sessions. `ratio` is candidate / base
    of the launches that are compared, so a launch without a partner does not affect it. `low` and `high` are its 95%
    interval, `upper` is the one-sided 95% upper bound, and `p_slower` is one-sided and adjusted by Holm's method.
    `session_sd` is the standard deviation of a session's log time that these contain, None if the sides were
    interleaved. `launches_needed` is the number of launches per side with which a gate of two equal sides would pass
    (None: no number up to 500). `base_launches` and `candidate_launches` are ids in table `launch`.

    `exempt`: a gate passes without this configuration, because it could not become slower. `fails_more`: its launches
    fail more often than in base, but not significantly.
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
        """Whether it may have become worse without a test that shows it: a gate with such a configuration cannot pass.

        Configurations that were fixed or that only candidate has could not become slower.
        """
        unknown = self.outcome in (Outcome.ONLY_BASE, Outcome.NOT_JUDGED, Outcome.NOT_OK)
        return self.fails_more or (unknown and not self.exempt)


def compare_cases(
    pairs: Sequence[Pair],
    base: SessionData,
    candidate: SessionData,
    tolerance: float = TOLERANCE,
    alpha: float = ALPHA,
    allowance: float = ALLOWANCE,
) -> tuple[dict[Pair, CaseResult], BetweenSessions | None]:
    """Compare configurations by the gate's rule, which `compare`, `ab` and `report` share.

    If the sides were not interleaved, the error contains the variation between sessions; `allowance` is its standard
    deviation on the log scale for configurations for which base's results database does not tell it.
    """
    paired = interleaved(base, candidate)
    launches = {pair: of_pair((pair[0] or "", pair[1] or ""), base.by_case, candidate.by_case, paired)
                for pair in pairs}  # fmt: skip
    logs = {pair: (logs_of(sides[0]), logs_of(sides[1])) for pair, sides in launches.items()}
    between: dict[str, Between] = {}
    sessions = 0
    if not paired:
        between, sessions = between_sessions(base, candidate, {old for old, _ in pairs if old}, allowance)
    tests = judge(logs, paired=paired, between={pair: between[pair[0]] for pair in pairs if pair[0] in between})
    ends = _ends(pairs, base, candidate, alpha)
    found = {}
    for pair, sides in launches.items():
        test, end = tests.get(pair), ends[pair]
        if end.outcome is None:
            end = _by_numbers(end, sides, test, tolerance, alpha)
        there, case = (candidate, pair[1]) if pair[1] is not None else (base, pair[0])
        assert case is not None
        assert end.outcome is not None
        means = [float(side.mean()) if len(side) else None for side in logs[pair]]
        found[pair] = CaseResult(
            case_id=case,
            label=str(there.cases_by_id.loc[case, "label"]),
            outcome=end.outcome,
            base_step_time_s=base.step_times.get(pair[0] or ""),
            candidate_step_time_s=candidate.step_times.get(pair[1] or ""),
            ratio=math.exp(means[1] - means[0]) if means[0] is not None and means[1] is not None else None,
            low=factor(test.low) if test else None,
            high=factor(test.high) if test else None,
            upper=factor(test.upper) if test else None,
            p_slower=test.p_slower if test else None,
            session_sd=test.between.sd if test and test.between else None,
            launches_needed=test.launches_for(tolerance) if test else None,
            base_launches=launch_ids(sides[0]),
            candidate_launches=launch_ids(sides[1]),
            exempt=end.exempt,
            fails_more=end.fails_more,
            note=end.note,
        )
    if paired or not tests:
        return found, None
    measured = sum(test.between is not None and test.between.sessions > 0 for test in tests.values())
    return found, BetweenSessions(sessions, measured, len(tests) - measured, allowance)


def speed(test: TTest, tolerance: float = TOLERANCE, alpha: float = ALPHA) -> tuple[Outcome, str]:
    """Return the outcome of a test, and a note.

    Slower: significant at `alpha`, and the estimate is beyond the tolerance. The same: the one-sided 95% upper bound is
    below the tolerance, which rules out such a slowdown (a non-inferiority test; J. M. Hoenig and D. M. Heisey, "The
    abuse of power", The American Statistician 55, 2001, on why power is no criterion after the fact). Faster: the same,
    and significantly faster by more than the tolerance. Everything else is unclear.
    """
    beyond = math.log1p(tolerance)
    if test.difference > beyond and test.p_slower <= alpha:
        return Outcome.SLOWER, ""
    if not test.upper < beyond:  # also if the bound is NaN
        return Outcome.UNCLEAR, "beyond the tolerance, but not beyond the noise" if test.difference > beyond else ""
    if test.difference < -beyond and test.p_faster <= alpha:
        return Outcome.FASTER, ""
    return Outcome.SAME, ""


class _End(NamedTuple):
    """The outcome of a configuration, None if its numbers decide. The fields are those of `CaseResult`."""

    outcome: Outcome | None
    note: str = ""
    exempt: bool = False
    fails_more: bool = False


def too_few(launches: Launches) -> str:
    """Return why there is no interval."""
    return f"an interval needs {FEWEST_LAUNCHES} launches per side; there are {len(launches[0])} and {len(launches[1])}"


def _by_numbers(end: _End, launches: Launches, test: TTest | None, tolerance: float, alpha: float) -> _End:
    """Return the outcome of a configuration that succeeded on both sides."""
    outcome, note = (Outcome.NOT_JUDGED, too_few(launches)) if test is None else speed(test, tolerance, alpha)
    if end.fails_more and outcome in (Outcome.SAME, Outcome.FASTER):
        outcome = Outcome.UNCLEAR
    return end._replace(outcome=outcome, note="; ".join(each for each in (note, end.note) if each))


_FAILURES = (Status.WRONG, Status.OOM, Status.CRASHED, Status.HUNG, Status.FAILED)


class _Launches(NamedTuple):
    """How the launches of a configuration ended on one side. Interrupted launches neither failed nor succeeded."""

    counts: str
    failed: int
    ok: int
    valid: int


def _launches(case: str, side: SessionData) -> _Launches:
    own = side.repetitions[case]
    how = own["status"].mask((own["status"] == Status.OK) & ~own["timed"], f"{Status.OK} without a step time")
    counts = ", ".join(f"{n} {status}" for status, n in Counter(how).items())
    error = next(iter(own["error"].dropna()), "")
    return _Launches(
        counts=f"{counts}: {error}" if error else counts,
        failed=int(own["status"].isin(_FAILURES).sum()),
        ok=int((own["status"] == Status.OK).sum()),
        valid=int(own["timed"].sum()),
    )


def _ends(pairs: Sequence[Pair], base: SessionData, candidate: SessionData, alpha: float) -> dict[Pair, _End]:
    """Return the outcome of each configuration by the ends of its launches.

    It broke if it never failed in base and fails in candidate; or if it fails in both, and the share of failed launches
    rose in Fisher's exact test, one-sided and adjusted over these configurations by Holm's method, at level `alpha`.
    """
    found: dict[Pair, _End] = {}
    both: dict[Pair, tuple[_Launches, _Launches]] = {}
    for old, new in pairs:
        if old is None or old not in base.cases_by_id.index:
            found[old, new] = _End(Outcome.ONLY_CANDIDATE, base.why_missing(old or new or ""))
        elif new is None or new not in candidate.cases_by_id.index:
            note, exempt = candidate.why_missing(new or old), (new or old) in candidate.skipped
            found[old, new] = _End(Outcome.ONLY_BASE, note, exempt)
        else:
            both[old, new] = _launches(old, base), _launches(new, candidate)
    mixed = {pair: sides for pair, sides in both.items() if all(side.failed for side in sides)}
    p = dict(zip(mixed, holm([_rose(*sides) for sides in mixed.values()]), strict=True))
    return found | {pair: _end(*sides, p.get(pair, 1.0) <= alpha) for pair, sides in both.items()}


def _rose(base: _Launches, candidate: _Launches) -> float:
    """Return the one-sided p-value of Fisher's exact test: that candidate has at least as many of all failures."""
    ours, launches = candidate.failed + candidate.ok, base.failed + base.ok + candidate.failed + candidate.ok
    failed = base.failed + candidate.failed
    ways = (
        math.comb(ours, k) * math.comb(launches - ours, failed - k)
        for k in range(candidate.failed, min(ours, failed) + 1)
    )
    return sum(ways) / math.comb(launches, failed)


def _end(base: _Launches, candidate: _Launches, rose: bool) -> _End:
    note = f"base {base.counts}; candidate {candidate.counts}"
    if candidate.failed and (not base.failed or rose or (base.valid and not candidate.valid)):
        return _End(Outcome.BROKE, note)
    if not candidate.valid:
        return _End(Outcome.NOT_OK, note, exempt=bool(base.failed) and not base.valid)
    if not base.valid and base.failed:
        return _End(Outcome.FIXED, note)
    # Shares of failed launches, compared without a division by zero.
    if candidate.failed * base.ok > base.failed * candidate.ok:
        return _End(None, f"{note}; fails more often, though not beyond chance", fails_more=True)
    return _End(None, note if base.failed or candidate.failed else "")
