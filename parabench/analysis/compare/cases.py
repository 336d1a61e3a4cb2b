"""The comparison of single configurations of two sessions: numbers, failures and the outcome by the gate's rule."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import pandas as pd

from parabench.analysis.compare.between import ALLOWANCE, BetweenSessions, between_sessions
from parabench.analysis.compare.sides import interleaved
from parabench.analysis.energy import COUNTER
from parabench.analysis.numbers import Launches, by_case, launch_ids, of_pair
from parabench.analysis.session import SessionData
from parabench.analysis.stats.contrasts import FEWEST_LAUNCHES, Between, TTest, factor, holm, judge, logs_of
from parabench.store.record import GB, Status

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
            end = _by_numbers(end, sides, test, tolerance, alpha, paired)
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


@dataclass(frozen=True)
class _End:
    """The outcome of a configuration by the ends of its launches; None if their numbers decide."""

    outcome: Outcome | None
    note: str
    exempt: bool = False
    fails_more: bool = False


def _by_numbers(
    end: _End, launches: Launches, test: TTest | None, tolerance: float, alpha: float, paired: bool
) -> _End:
    """Return the outcome of a configuration that succeeded on both sides."""
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


_FAILURES = (Status.WRONG, Status.OOM, Status.CRASHED, Status.HUNG, Status.FAILED)


@dataclass(frozen=True)
class _Launches:
    """How the launches of a configuration ended on one side. Interrupted launches neither failed nor succeeded."""

    counts: dict[str, int]
    failed: int
    ok: int
    valid: int
    error: str

    def said(self) -> str:
        """Return 'oom', or '8 ok, 1 oom' if they ended in several ways."""
        return next(iter(self.counts)) if len(self.counts) == 1 else self.each()

    def each(self) -> str:
        """Return '8 ok, 1 oom', or 'none'."""
        return ", ".join(f"{n} {how}" for how, n in self.counts.items()) or "none"


def _launches(case: str, side: SessionData) -> _Launches:
    own = side.repetitions[case]
    how = own["status"].mask((own["status"] == Status.OK) & ~own["timed"], f"{Status.OK} without a step time")
    error = next(iter(own["error"].dropna()), "")
    return _Launches(
        counts=dict(Counter(map(str, how))),
        failed=int(own["status"].isin(_FAILURES).sum()),
        ok=int((own["status"] == Status.OK).sum()),
        valid=int(own["timed"].sum()),
        error=f": {error}" if error else "",
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
    note = ""
    if any(side.failed and side.ok for side in (base, candidate)):
        note = f"base {base.each()}; candidate {candidate.each()}{candidate.error or base.error}"
    was_is = note or f"was {base.said()}, is {candidate.said()}{candidate.error}"
    if candidate.failed and (not base.failed or rose or (base.valid and not candidate.valid)):
        return _End(Outcome.BROKE, was_is)
    if not candidate.valid:
        never = bool(base.failed) and not base.valid
        return _End(Outcome.NOT_OK, note or f"base {base.said()}, candidate {candidate.said()}{candidate.error}", never)
    if not base.valid and base.failed:
        return _End(Outcome.FIXED, was_is)
    # Shares of failed launches, compared without a division by zero.
    more = candidate.failed * base.ok > base.failed * candidate.ok
    return _End(None, f"{note}; fails more often, though not beyond chance" if more else note, fails_more=more)


@dataclass(frozen=True)
class Ratio:
    """A number of a configuration on two sides, and candidate / base with its 95% interval from the launches alone.

    `base` and `candidate` are geometric means over launches. `reason` is why a number or the interval is unknown.
    """

    base: float | None
    candidate: float | None
    ratio: float | None
    low: float | None
    high: float | None
    reason: str


@dataclass(frozen=True)
class Known:
    """Numbers of launches by configuration (`numbers.by_case`), and the reason for each configuration without one."""

    by_case: Mapping[str, pd.Series[float]]
    why: dict[str, str]


def step_times(side: SessionData) -> Known:
    """Return step times in seconds."""
    status = side.cases_by_id.loc[~side.cases_by_id.index.isin(list(side.by_case)), "status"]
    return Known(side.by_case, {str(case): f"its launches ended {how}" for case, how in status.items()})


def tokens_per_gb(side: SessionData) -> Known:
    """Return tokens/s (samples/s without sequences) per GB of peak memory of the largest rank."""
    good = side.counted
    value = good["tokens_per_s"] / (good["peak_memory_bytes"] / GB)
    return _known(side, good.assign(value=value, reason="peak memory was not recorded"))


def tokens_per_joule(side: SessionData) -> Known:
    """Return tokens (samples without sequences) per joule of all devices in the measured steps."""
    good = side.counted
    # A configuration uses one source of energy: the counter, if a launch has it.
    counter = good["joules_source"] == COUNTER
    joules = good["joules_per_step"].where(counter | ~counter.groupby(good["case"]).transform("any"))
    return _known(
        side, good.assign(value=good["global_batch"] * good["seq_len"] / joules, reason=good["joules_reason"])
    )


def _known(side: SessionData, good: pd.DataFrame) -> Known:
    unknown = good[good["value"].isna() & (good["reason"] != "")].drop_duplicates("case")
    why = dict(zip(unknown["case"], unknown["reason"], strict=True)) | step_times(side).why
    return Known(by_case(good[good["value"] > 0], "value"), why)


def ratios(
    pairs: Sequence[tuple[str, str]], base: Known, candidate: Known, paired: bool, names: tuple[str, str]
) -> dict[Pair, Ratio]:
    """Return the ratio of a number of each configuration; `names` are the names of the sides."""
    launches = {pair: of_pair(pair, base.by_case, candidate.by_case, paired) for pair in pairs}
    logs = {pair: (logs_of(own[0]), logs_of(own[1])) for pair, own in launches.items()}
    tests = judge(logs, paired=paired)
    found: dict[Pair, Ratio] = {}
    for pair, own in logs.items():
        first, other = (math.exp(side.mean()) if len(side) else None for side in own)
        test = tests.get(pair)
        if first is None or other is None:
            found[pair] = Ratio(first, other, None, None, None, _why(pair, base, candidate, names))
        elif test is None:
            counts = f"{len(own[0])} and {len(own[1])}"
            reason = f"an interval needs {FEWEST_LAUNCHES} launches per side; there are {counts}"
            found[pair] = Ratio(first, other, other / first, None, None, reason)
        else:
            found[pair] = Ratio(first, other, other / first, factor(test.low), factor(test.high), "")
    return found


def _why(pair: tuple[str, str], base: Known, candidate: Known, names: tuple[str, str]) -> str:
    """Return why a number is unknown on one side or on both."""
    why = [base.why.get(pair[0]), candidate.why.get(pair[1])]
    if why[0] == why[1]:
        return why[0] or ""
    return " and ".join(f"on {name}, {said}" for name, said in zip(names, why, strict=True) if said)
