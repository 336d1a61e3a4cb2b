"""Compare two sessions: one table of ratios by configuration and quantity, with intervals and outcomes."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import pandas as pd

from parabench.analysis.answer import Columns, table
from parabench.analysis.compare.sides import ALLOWANCE, BetweenSessions, alike, between_sessions, interleaved
from parabench.analysis.numbers import WORK, by_case, launch_ids, of_pair, unique_labels
from parabench.analysis.session import SessionData
from parabench.analysis.stats.contrasts import FEWEST_LAUNCHES, Between, TTest, factor, holm, judge, logs_of
from parabench.plan.case import Case
from parabench.store.record import GB, Status

TOLERANCE, ALPHA = 0.02, 0.01
# Two configurations that differ only in these fields have the same workload.
MACHINES_OWN = ("device", "backend")
SHARED_WORK = tuple(name for name in WORK if name not in MACHINES_OWN)
STEP = "step_time"
# Throughput relative to energy and memory, with names for sentences. Throughput is in tokens, or in samples for models
# without sequences. Joules are of all devices in the measured steps, peak memory is of the rank with the highest one.
GIVES = {"per_joule": "per joule", "per_gb": "/s per GB of peak memory"}
# The ids of a configuration in base and in candidate, also if a session did not launch it.
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
# The columns of `Comparison.ratios`. `both`: both sessions launched the configuration. Only step times have the columns
# from `outcome` on. docs/site/keys.toml describes them.
RATIOS: Columns = {
    "row": int, "both": bool, "quantity": str, "case_id": str, "label": str, "base": float | None,
    "candidate": float | None, "ratio": float | None, "low": float | None, "high": float | None, "upper": float | None,
    "p_slower": float | None, "session_sd": float | None, "base_launches": tuple[int, ...],
    "candidate_launches": tuple[int, ...], "note": str, "outcome": Outcome | None, "launches_needed": int | None,
    "exempt": bool, "fails_more": bool,
}  # fmt: skip
_NO_OUTCOME = {"outcome": None, "launches_needed": None, "exempt": False, "fails_more": False}


@dataclass(frozen=True)
class Known:
    """A number of the launches of a session by configuration, and why others have none."""

    by_case: ByCase
    why: Mapping[str, str]


@dataclass(frozen=True)
class Comparison:
    """Two sessions. A row of `cases` is a configuration, and `row` in `ratios` is its place there."""

    base: SessionData
    candidate: SessionData
    cases: pd.DataFrame  # fields, label, its ids base_id and candidate_id, and whether it was launched in_base, ...
    ratios: pd.DataFrame  # with the columns RATIOS
    known: Mapping[str, tuple[Known, Known]]  # the quantities of base and candidate
    between: BetweenSessions | None
    alike: list[SessionData]

    @cached_property
    def paired(self) -> bool:
        return interleaved(self.base, self.candidate)

    @property
    def common(self) -> list[Pair]:
        """The ids of the configurations that both sessions launched."""
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
    gives: Sequence[str] = tuple(GIVES),
    tolerance: float = TOLERANCE,
    alpha: float = ALPHA,
    allowance: float = ALLOWANCE,
) -> Comparison:
    """Compare step times and the quantities `gives`, if both sessions have them.

    Configurations match if they have the same workload on any machine, or `by_id`. With too few sessions, `allowance`
    is the standard deviation between sessions.
    """
    cases = _matched(base, candidate, by_id)
    pairs: list[Pair] = list(zip(cases["base_id"], cases["candidate_id"], strict=True))
    paired = interleaved(base, candidate)
    others = [] if paired else alike(base, candidate)
    between = {}
    if not paired:
        between = between_sessions(base, candidate, {old for old, _ in pairs}, allowance, others)
    steps, tests = _contrast(pairs, base.by_case, candidate.by_case, paired, between)
    _judge_steps(steps, tests, pairs, base, candidate, tolerance, alpha)
    known = {STEP: (Known(base.by_case, {}), Known(candidate.by_case, {}))}
    found = {STEP: steps}
    for name in gives:
        known[name] = (_given(base, name), _given(candidate, name))
        found[name] = _given_ratios(pairs, (base.role, candidate.role), known[name], paired)
    rows = []
    for at, case in enumerate(cases.itertuples()):
        case_id = case.candidate_id if case.in_candidate else case.base_id
        key = {"row": at, "both": case.in_base and case.in_candidate, "case_id": case_id, "label": case.label}
        rows += [_NO_OUTCOME | own[at] | key | {"quantity": name} for name, own in found.items()]
    ratios = table(RATIOS, rows).astype({"row": int, "both": bool})
    entered = [test.between.sessions > 0 for test in tests.values() if test.between is not None]
    how = BetweenSessions(1 + len(others), sum(entered), len(entered) - sum(entered), allowance) if entered else None
    return Comparison(base, candidate, cases, ratios, known, how, others)


def _matched(base: SessionData, candidate: SessionData, by_id: bool) -> pd.DataFrame:
    """Return the `cases` of a comparison.

    If a session measured a workload on two kinds of device, its configurations are matched by id.
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
    pairs: Sequence[Pair], base: ByCase, candidate: ByCase, paired: bool, between: Mapping[str, Between] | None = None
) -> tuple[list[Row], dict[int, TTest]]:
    """Return a row for each pair, and the tests of rows with enough launches.

    A row has the ratio candidate / base of a number of the launches, with its 95% interval. `note` is the reason for a
    missing interval. `paired` sessions are compared in common repetitions. Otherwise the error contains the variation
    `between` sessions.
    """
    launches = [of_pair(pair, base, candidate, paired) for pair in pairs]
    logs = {at: (logs_of(first), logs_of(other)) for at, (first, other) in enumerate(launches)}
    known = {at: between[old] for at, (old, _) in enumerate(pairs) if old in between} if between else None
    tests = judge(logs, paired=paired, between=known)
    rows: list[Row] = []
    for at, (first, other) in enumerate(launches):
        test = tests.get(at)
        old, new = (float(own.mean()) if len(own) else None for own in logs[at])
        few = f"an interval needs {FEWEST_LAUNCHES} launches per variant; there are {len(first)} and {len(other)}"
        rows.append(
            {
                "base": None if old is None else math.exp(old),
                "candidate": None if new is None else math.exp(new),
                "ratio": None if old is None or new is None else math.exp(new - old),
                "low": factor(test.low) if test else None,
                "high": factor(test.high) if test else None,
                "upper": factor(test.upper) if test else None,
                "p_slower": test.p_slower if test else None,
                "session_sd": test.between.sd if test and test.between else None,
                "base_launches": launch_ids(first),
                "candidate_launches": launch_ids(other),
                "note": "" if test else few,
            }
        )
    return rows, tests


def _judge_steps(
    rows: Sequence[Row],
    tests: Mapping[int, TTest],
    pairs: Sequence[Pair],
    base: SessionData,
    candidate: SessionData,
    tolerance: float,
    alpha: float,
) -> None:
    """Add the outcome to each row of step times. The ends of launches decide first, then the test."""
    for at, (row, end) in enumerate(zip(rows, _ends(pairs, base, candidate, alpha), strict=True)):
        test = tests.get(at)
        if end["outcome"] is None:
            outcome, why = (Outcome.NOT_JUDGED, row["note"]) if test is None else speed(test, tolerance, alpha)
            if end["fails_more"] and outcome in (Outcome.SAME, Outcome.FASTER):
                outcome = Outcome.UNCLEAR
            end |= {"outcome": outcome, "note": "; ".join(filter(None, (why, end["note"])))}
        old, new = pairs[at]
        row |= end | {"base": base.step_times.get(old), "candidate": candidate.step_times.get(new)}
        row["launches_needed"] = test.launches_for(tolerance) if test else None


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
    """How the launches of a configuration ended in a session. Interrupted launches neither failed nor succeeded."""

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

    Configurations that fail in both sessions broke if their share of failures rose, by Fisher's exact test with Holm's
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
    """Return the outcome, a note, `exempt` and `fails_more` of a configuration that both sessions launched."""
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


def _given(side: SessionData, name: str) -> Known:
    """Return a quantity of GIVES of a session."""
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
    return Known(by_case(found[found["value"] > 0], "value"), why)


def _given_ratios(pairs: Sequence[Pair], names: tuple[str, str], known: tuple[Known, Known], paired: bool) -> list[Row]:
    """Return the rows of a quantity of GIVES. A missing ratio has the reasons of the sessions as its note."""
    rows, _ = _contrast(pairs, known[0].by_case, known[1].by_case, paired)
    for pair, row in zip(pairs, rows, strict=True):
        if row["ratio"] is None:
            why = [side.why.get(id_, "") for side, id_ in zip(known, pair, strict=True)]
            texts = [f"on {name}, {text}" for name, text in zip(names, why, strict=True) if text]
            row["note"] = " and ".join(texts) if why[0] != why[1] else why[0]
    return rows
