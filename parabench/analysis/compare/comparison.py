"""Compare two sessions: one table of ratios by configuration and quantity, with intervals and outcomes."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import pandas as pd

from parabench.analysis.answer import Columns, Row, table
from parabench.analysis.compare.sides import ALLOWANCE, alike, between_sessions, check_distinct, interleaved
from parabench.analysis.numbers import WORK, Launches, by_case, launch_ids, of_pair, unique_labels
from parabench.analysis.session import SessionData
from parabench.analysis.stats.contrasts import FEWEST_LAUNCHES, Between, TTest, factor, holm, judge, logs_of
from parabench.errors import UsageError
from parabench.plan.case import Case
from parabench.store.record import GB, Status

TOLERANCE, ALPHA = 0.02, 0.01
# Configurations that differ only in these fields match if two machines are compared.
MACHINES_OWN = ("device", "backend")
SHARED_WORK = tuple(name for name in WORK if name not in MACHINES_OWN)
STEP = "step_time"
# Throughput relative to energy and memory, with names for sentences. It is in tokens, or in samples for models without
# sequences. Energy is of all devices in the measured steps, peak memory is the highest of a rank.
EFFICIENCIES = {"per_joule": "per joule", "per_gb": "/s per GB of peak memory"}


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
# The columns of step times in answers. docs/site/keys.toml describes them.
CASES: Columns = {
    "case_id": str, "label": str, "outcome": Outcome, "base_step_time_s": float | None,
    "candidate_step_time_s": float | None, "ratio": float | None, "low": float | None, "high": float | None,
    "upper": float | None, "p_slower": float | None, "session_sd": float | None, "launches_needed": int | None,
    "base_launches": tuple[int, ...], "candidate_launches": tuple[int, ...], "exempt": bool, "fails_more": bool,
    "note": str,
}  # fmt: skip
# The names of two of them in `Comparison.ratios`, which also has other quantities.
STEP_TIMES = {"base": "base_step_time_s", "candidate": "candidate_step_time_s"}
_NO_OUTCOME = {"outcome": None, "launches_needed": None, "exempt": False, "fails_more": False}


@dataclass(frozen=True)
class Comparison:
    """The comparison of two sessions by configuration. `row` in `ratios` is the index of a row of `cases`."""

    base: SessionData
    candidate: SessionData
    paired: bool  # interleaved, so compared in common repetitions
    cases: pd.DataFrame  # fields, label, its ids base_id and candidate_id, and whether it was launched in_base, ...
    # A row per configuration and quantity; `both`: whether both sessions launched it. Only step times have outcomes.
    ratios: pd.DataFrame
    launches: Mapping[str, Sequence[Launches]]  # what was compared, by quantity and row of `cases`
    between: Row  # the source of the variation between sessions, as columns of the table `verdict`
    alike: Sequence[SessionData]  # the other sessions from which it was estimated

    @property
    def common(self) -> list[tuple[str, str]]:
        """The configurations that both sessions launched: (id in base, id in candidate)."""
        both = self.cases[self.cases["in_base"] & self.cases["in_candidate"]]
        return list(zip(both["base_id"], both["candidate_id"], strict=True))

    def of(self, quantity: str) -> pd.DataFrame:
        """Return the ratios of a quantity for configurations that both sessions launched."""
        return self.ratios[(self.ratios["quantity"] == quantity) & self.ratios["both"]]


def compare_sessions(
    base: SessionData,
    candidate: SessionData,
    *,
    by_id: bool = False,
    quantities: Sequence[str] = tuple(EFFICIENCIES),
    tolerance: float = TOLERANCE,
    alpha: float = ALPHA,
    allowance: float = ALLOWANCE,
) -> Comparison:
    """Compare the step times of two sessions, and the `quantities` of EFFICIENCIES that both sessions have.

    Configurations match if they differ only in MACHINES_OWN, or `by_id`. With too few sessions, `allowance` is the
    standard deviation between sessions.
    """
    sides, paired = (base, candidate), interleaved(base, candidate)
    cases = _matched(base, candidate, by_id)
    pairs = list(zip(cases["base_id"], cases["candidate_id"], strict=True))
    others = [] if paired else alike(base, candidate)
    between = {} if paired else between_sessions(base, candidate, {old for old, _ in pairs}, allowance, others)
    launches = {STEP: [of_pair(pair, base.by_case, candidate.by_case, paired) for pair in pairs]}
    steps, tests = _contrast(launches[STEP], paired, {at: between[old] for at, (old, _) in enumerate(pairs) if between})
    _judge_steps(steps, tests, pairs, sides, tolerance, alpha)
    found = {STEP: steps}
    for name in quantities:
        (values, why), (new_values, new_why) = (_efficiency(side, name) for side in sides)
        launches[name] = [of_pair(pair, values, new_values, paired) for pair in pairs]
        found[name], _ = _contrast(launches[name], paired, {})
        for (old, new), row in zip(pairs, found[name], strict=True):
            if row["ratio"] is None:
                reasons = (why.get(old, ""), new_why.get(new, ""))
                texts = [f"on {side.role}, {reason}" for side, reason in zip(sides, reasons, strict=True) if reason]
                row["note"] = reasons[0] if reasons[0] == reasons[1] else " and ".join(texts)
    rows = []
    for at, case in enumerate(cases.itertuples()):
        case_id = case.candidate_id if case.in_candidate else case.base_id
        key = {"row": at, "both": case.in_base and case.in_candidate, "case_id": case_id, "label": case.label}
        rows += [_NO_OUTCOME | own[at] | key | {"quantity": name} for name, own in found.items()]
    names = {new: old for old, new in STEP_TIMES.items()}
    columns = {"row": int, "both": bool, "quantity": str, **{names.get(name, name): CASES[name] for name in CASES}}
    measured = [test.between.sessions > 0 for test in tests.values() if test.between is not None]
    how: Row = dict.fromkeys(("sessions", "measured", "allowed", "allowance"))
    if measured:
        how |= {"sessions": 1 + len(others), "measured": sum(measured), "allowed": measured.count(False)}
        how["allowance"] = allowance
    ratios = table(columns, rows).astype({"row": int, "both": bool})
    return Comparison(base, candidate, paired, cases, ratios, launches, how, others)


def compared(base: SessionData, candidate: SessionData, **how: Any) -> Comparison:
    """Return `compare_sessions` of two sessions, which may be from two machines.

    Raises UsageError if both are the same session, or if they have no configuration in common.
    """
    check_distinct((base, candidate))
    of = compare_sessions(base, candidate, **how)
    if not of.common:
        names = (f"{side.session.name} of {side.results.path}" for side in (base, candidate))
        raise UsageError(
            f"no configuration is in both {' and '.join(names)}; measure the same suite with the same --set on both"
        )
    return of


def _matched(base: SessionData, candidate: SessionData, by_id: bool) -> pd.DataFrame:
    """Return the table `Comparison.cases`.

    If a session measured a configuration on two kinds of device, it is matched by id.
    """

    def key(id_: str, case: Case) -> str:
        return id_ if by_id else json.dumps({k: v for k, v in case.to_dict().items() if k not in MACHINES_OWN})

    sides = (base, candidate)
    works = [{str(id_): key(str(id_), side.case(str(id_))) for id_ in side.cases_by_id.index} for side in sides]
    twice = {work for own in works for work, count in Counter(own.values()).items() if count > 1}
    launched = [{id_ if work in twice else work: id_ for id_, work in own.items()} for own in works]
    planned = [{key(id_, case): id_ for id_, case in side.planned.items()} for side in sides]
    rows, cases = [], {}
    for work in dict.fromkeys([*launched[0], *launched[1]]):
        ids = [own.get(work) for own in launched]
        side, first = (base, ids[0]) if ids[0] is not None else (candidate, str(ids[1]))
        cases[first] = side.case(first)
        old, new = (own or plan.get(work, first) for own, plan in zip(ids, planned, strict=True))
        there = {"in_base": ids[0] is not None, "in_candidate": ids[1] is not None}
        rows.append(cases[first].to_dict() | {"base_id": old, "candidate_id": new} | there)
    columns = [*Case().to_dict(), "base_id", "candidate_id", "in_base", "in_candidate"]
    found = pd.DataFrame(rows, columns=columns, dtype=object).assign(label=list(unique_labels(cases).values()))
    return found.astype({"in_base": bool, "in_candidate": bool})


def _contrast(
    launches: Sequence[Launches], paired: bool, between: Mapping[int, Between]
) -> tuple[list[Row], dict[int, TTest]]:
    """Return the ratio candidate / base of each configuration, and the tests of those with enough launches.

    `paired` sessions are compared in common repetitions. Otherwise the error contains the variation `between` sessions.
    `note` is the reason for a missing interval.
    """
    logs = {at: (logs_of(first), logs_of(other)) for at, (first, other) in enumerate(launches)}
    tests = judge(logs, paired=paired, between=between)
    rows: list[Row] = []
    for at, (first, other) in enumerate(launches):
        test = tests.get(at)
        old, new = (float(own.mean()) if len(own) else None for own in logs[at])
        few = f"an interval needs {FEWEST_LAUNCHES} launches per variant; there are {len(first)} and {len(other)}"
        row: Row = {
            "base": None if old is None else math.exp(old),
            "candidate": None if new is None else math.exp(new),
            "ratio": None if old is None or new is None else math.exp(new - old),
            **dict.fromkeys(("low", "high", "upper", "p_slower", "session_sd")),
            "base_launches": launch_ids(first),
            "candidate_launches": launch_ids(other),
            "note": "" if test else few,
        }
        if test:
            row |= {name: factor(getattr(test, name)) for name in ("low", "high", "upper")}
            row |= {"p_slower": test.p_slower, "session_sd": test.between.sd if test.between else None}
        rows.append(row)
    return rows, tests


def _judge_steps(
    rows: Sequence[Row],
    tests: Mapping[int, TTest],
    pairs: Sequence[tuple[str, str]],
    sides: tuple[SessionData, SessionData],
    tolerance: float,
    alpha: float,
) -> None:
    """Add the outcome to each row of step times. Failed launches decide first; the statistical test decides the rest.

    If launches of a configuration failed in both sessions, the outcome is `broke` if the failure rate rose, by Fisher's
    exact test with Holm's method at level `alpha`.
    """
    base, candidate = sides
    ends = [(_ends(old, base), _ends(new, candidate)) for old, new in pairs]
    mixed = {at: (old, new) for at, (old, new) in enumerate(ends) if old and new and old.failed and new.failed}
    rose = dict(zip(mixed, holm([_rose(*own) for own in mixed.values()]), strict=True))
    for at, (row, (before, after), (old, new)) in enumerate(zip(rows, ends, pairs, strict=True)):
        test, exempt, fails_more = tests.get(at), False, False
        outcome: Outcome | None
        if before and after:
            outcome, note, exempt, fails_more = _end(before, after, rose.get(at, 1.0) <= alpha)
        elif before:
            outcome, note, exempt = Outcome.ONLY_BASE, candidate.why_missing(new), new in candidate.skipped
        else:
            outcome, note = Outcome.ONLY_CANDIDATE, base.why_missing(old)
        if outcome is None:
            outcome, why = (Outcome.NOT_JUDGED, row["note"]) if test is None else speed(test, tolerance, alpha)
            if fails_more and outcome in (Outcome.SAME, Outcome.FASTER):
                outcome = Outcome.UNCLEAR
            note = "; ".join(filter(None, (why, note)))
        row |= {"outcome": outcome, "note": note, "exempt": exempt, "fails_more": fails_more}
        row |= {"base": base.step_times.get(old), "candidate": candidate.step_times.get(new)}
        row["launches_needed"] = test.launches_for(tolerance) if test else None


def speed(test: TTest, tolerance: float = TOLERANCE, alpha: float = ALPHA) -> tuple[Outcome, str]:
    """Return the outcome of a configuration by the test of its step times, and a note.

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


class _Ends(NamedTuple):
    """How the launches of a configuration ended in a session. Interrupted launches neither failed nor succeeded."""

    counts: str  # in words: '2 ok, 1 oom', with the first error
    failed: int
    ok: int
    valid: int  # the number of launches with a step time


_FAILURES = (Status.WRONG, Status.OOM, Status.CRASHED, Status.HUNG, Status.FAILED)


def _ends(case: str, side: SessionData) -> _Ends | None:
    """Return the ends of the launches of a configuration; None if it was not launched."""
    own = side.repetitions.get(case)
    if own is None:
        return None
    ok = own["status"] == Status.OK
    how = Counter(own["status"].mask(ok & ~own["timed"], f"{Status.OK} without a step time"))
    counts, error = ", ".join(f"{n} {status}" for status, n in how.items()), next(iter(own["error"].dropna()), "")
    failed = int(own["status"].isin(_FAILURES).sum())
    return _Ends(f"{counts}: {error}" if error else counts, failed, int(ok.sum()), int(own["timed"].sum()))


def _rose(base: _Ends, candidate: _Ends) -> float:
    """Return the one-sided p-value of Fisher's exact test for more failures in candidate."""
    ours, launches = candidate.failed + candidate.ok, base.failed + base.ok + candidate.failed + candidate.ok
    failed = base.failed + candidate.failed
    ways = (
        math.comb(ours, k) * math.comb(launches - ours, failed - k)
        for k in range(candidate.failed, min(ours, failed) + 1)
    )
    return sum(ways) / math.comb(launches, failed)


def _end(base: _Ends, candidate: _Ends, rose: bool) -> tuple[Outcome | None, str, bool, bool]:
    """Return the outcome, a note, `exempt` and `fails_more` of a configuration that both sessions launched."""
    note = f"base {base.counts}; candidate {candidate.counts}"
    if candidate.failed and (not base.failed or rose or (base.valid and not candidate.valid)):
        return Outcome.BROKE, note, False, False
    if not candidate.valid:
        return Outcome.NOT_OK, note, bool(base.failed) and not base.valid, False
    if not base.valid and base.failed:
        return Outcome.FIXED, note, False, False
    # This compares the shares of failed launches without a division by zero.
    if candidate.failed * base.ok > base.failed * candidate.ok:
        return None, f"{note}; fails more often, though not beyond chance", False, True
    return None, note if base.failed or candidate.failed else "", False, False


def _efficiency(side: SessionData, name: str) -> tuple[Mapping[str, pd.Series[float]], Mapping[str, str]]:
    """Return a quantity of EFFICIENCIES by configuration (`numbers.by_case`), and the reasons for missing values."""
    own = side.counted
    if name == "per_joule":
        found = own.assign(value=1 / own["token_j"], reason=own["joules_reason"])
    else:
        value = own["tokens_per_s"] / (own["peak_memory_bytes"] / GB)
        found = own.assign(value=value, reason="peak memory was not recorded")
    unknown = found[found["value"].isna() & (found["reason"] != "")].drop_duplicates("case")
    failed = side.cases_by_id["status"][~side.cases_by_id.index.isin(list(side.by_case))]
    failures = {str(case): f"its launches ended {how}" for case, how in failed.items()}
    why = dict(zip(unknown["case"], unknown["reason"], strict=True)) | failures
    return by_case(found[found["value"] > 0], "value"), why
