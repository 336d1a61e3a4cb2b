"""A gate's verdict as a person would say it, and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

from msgspec import to_builtins

from parabench.analysis.compare.between import FEWEST_SESSIONS, BetweenSessions
from parabench.analysis.compare.gate import CaseResult, Comparison
from parabench.analysis.compare.rule import REGRESSIONS, Outcome, Verdict
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.ttest import MOST_LAUNCHES, POWER
from parabench.analysis.text import format

# Of the JSON (docs/reference/json.md): higher where a field went or means something else, not where one was
# added.
SCHEMA = 2


def sentence(of: Comparison) -> str:
    """The verdict, which slowdowns are ruled out, what that rests on, and what else became of cases."""
    return " ".join(sentences(of))


def sentences(of: Comparison) -> list[str]:
    """The same, sentence by sentence."""
    said = {
        Verdict.REGRESSION: _regression,
        Verdict.INCONCLUSIVE: _inconclusive,
        Verdict.NO_REGRESSION: _none,
    }[of.verdict](of)
    counts = {outcome: sum(row.outcome == outcome for row in of.rows) for outcome in Outcome}
    told = {*REGRESSIONS, Outcome.SAME}
    if of.verdict is Verdict.INCONCLUSIVE and counts[Outcome.UNCLEAR] == len(of.not_ruled_out):
        told.add(Outcome.UNCLEAR)
    rest = [f"{counts[outcome]:,} {outcome}" for outcome in Outcome if outcome not in told and counts[outcome]]
    also = f"Also: {', '.join(rest)}." if rest else ""
    return [part for part in (*said, *_measured(of), also) if part]


def _regression(of: Comparison) -> Iterator[str]:
    said = []
    slower = [row for row in of.rows if row.outcome is Outcome.SLOWER]
    if slower:
        most = max(slower, key=lambda row: row.ratio or 0)
        which = f"{len(slower):,} of {format.count(len(of.judged), 'case')} slower"
        said.append(f"{which}, the worst by {format.percent((most.ratio or 1) - 1)} ({most.label})")
    broke = [row for row in of.rows if row.outcome is Outcome.BROKE]
    partly = [row for row in broke if row.candidate_launches]
    gone = [row for row in broke if not row.candidate_launches]
    for rows, how in ((gone, "newly failing"), (partly, "failing more often")):
        if rows:
            which = format.listed((row.label for row in rows), most=3)
            said.append(f"{format.count(len(rows), 'case')} {how} ({which})")
    yield f"Regression: {' and '.join(said)}."
    ruled_out = len(of.judged) - len(of.not_ruled_out)
    if 0 < ruled_out < len(of.judged):
        yield f"Slowdowns above {tolerated(of)} are ruled out in {ruled_out:,} of them ({format.percent(CONFIDENCE)})."


def _none(of: Comparison) -> Iterator[str]:
    part = len(of.judged) < len(of.rows)
    yield f"No regression: {_part(of)}." if part else "No regression."
    yield f"Slowdowns above {tolerated(of)} are ruled out{' in every case judged' if part else ''} ({_bound(of)})."


def _inconclusive(of: Comparison) -> Iterator[str]:
    not_judged = [row for row in of.rows if row.not_judged]
    if not of.judged:
        yield "Inconclusive: no case has enough launches on both sides to be judged."
        if len(not_judged) < len(of.rows) and not_judged:
            yield f"{_not_judged(not_judged)}."
        return
    open_, many = len(of.not_ruled_out), len(of.judged)
    if open_:
        where = "" if many == 1 == len(of.rows) else f" in {open_:,} of {format.count(many, 'case')}"
        bounds = f"slowdowns above {tolerated(of)} are not ruled out{where} ({_bound(of)})."
    else:
        bounds = f"slowdowns above {tolerated(of)} are ruled out in every case judged ({_bound(of)})."
    if not not_judged:
        yield f"Inconclusive: {bounds}"
    else:
        yield f"Inconclusive: {_part(of)}: {_not_judged(not_judged)}. Measure these too, or take a base without them."
        yield bounds[0].upper() + bounds[1:]
    yield _advice(of)


def tolerated(of: Comparison) -> str:
    """The tolerance, as it was given: '2 %'."""
    return f"{100 * of.tolerance:.6g} %"


def _bound(of: Comparison) -> str:
    """'95 %; the largest upper bound is +1.1 %, ddp ring 25 MiB, 2 ranks'."""
    row = of.widest
    assert row is not None
    assert row.upper is not None
    which = "the largest upper bound" if len(of.judged) > 1 else "the upper bound"
    return f"{format.percent(CONFIDENCE)}; {which} is {format.signed(row.upper - 1)}, {row.label}"


def _part(of: Comparison) -> str:
    """'1 of 4 cases judged'."""
    return f"{len(of.judged):,} of {format.count(len(of.rows), 'case')} judged"


# What is said of cases that could not be judged and should have been.
_WHY = {
    Outcome.ONLY_BASE: ("is only in base", "are only in base"),
    Outcome.NOT_OK: ("has no launch in candidate that counts", "have no launch in candidate that counts"),
    Outcome.NOT_JUDGED: ("has too few launches", "have too few launches"),
    Outcome.UNCLEAR: ("fails more often, though not beyond chance", "fail more often, though not beyond chance"),
}


def _not_judged(rows: list[CaseResult]) -> str:
    """'2 are only in base (a; b), 1 has too few launches (c)'."""
    said = []
    for outcome, (one, several) in _WHY.items():
        labels = [row.label for row in rows if row.outcome is outcome]
        if labels:
            which = format.listed(labels, most=3)
            said.append(f"{len(labels):,} {one if len(labels) == 1 else several} ({which})")
    return ", ".join(said)


def needed(of: Comparison) -> int | None:
    """With how many launches a side two equal sides would pass, of the cases that stand in the way; None where there is
    no such number, or no such case."""
    known = [row.launches_needed for row in of.not_ruled_out]
    return None if None in known else max((each for each in known if each is not None), default=None)


def _advice(of: Comparison) -> str:
    if not of.not_ruled_out:
        return ""
    launches = needed(of)
    if launches is not None:
        most = max(of.not_ruled_out, key=lambda row: row.launches_needed or 0)
        equal = f"Equal sides would pass with about {launches} launches per side ({format.percent(POWER)})"
        return f"{equal}{_short(most)}."
    if any(row.session_sd for row in of.not_ruled_out if row.launches_needed is None):
        return (
            f"No number of launches up to {MOST_LAUNCHES} would suffice, because sessions differ: interleave the sides "
            "with `parabench ab`."
        )
    return f"More than {MOST_LAUNCHES} launches per side would be needed: too noisy for this tolerance."


def _short(row: CaseResult) -> str:
    """Which side is short of launches, where the other has more."""
    there = {"base": len(row.base_launches), "candidate": len(row.candidate_launches)}
    short, long = sorted(there, key=lambda side: there[side])
    if there[short] == there[long]:
        return ""
    return f"; {short} has {format.count(there[short], 'launch')} where {long} has {there[long]:,}"


def _measured(of: Comparison) -> Iterator[str]:
    """What the bounds rest on: launches, and of sides that were measured apart what sessions are taken to differ by."""
    if not of.judged:
        return
    launches = [min(len(row.base_launches), len(row.candidate_launches)) for row in of.judged]
    many = f"{min(launches)} to {max(launches)}" if min(launches) < max(launches) else str(max(launches))
    yield f"{many} launches per side, {'not ' if of.between_sessions else ''}interleaved."
    if of.between_sessions is not None:
        yield _sessions(of, of.between_sessions)


def _sessions(of: Comparison, between: BetweenSessions) -> str:
    there = f"{format.count(between.sessions, 'session')} of base's suite and environment in its store"
    if not between.allowed:
        typical = format.percent(median(row.session_sd for row in of.judged if row.session_sd is not None))
        return f"What sessions differ is in the bounds, from {there}: {typical} (standard deviation, typical case)."
    share = f"{100 * between.allowance:.6g} % (standard deviation, --between-sessions)"
    if between.measured:
        which = f"{between.allowed:,} of {format.count(len(of.judged), 'case')}"
        return f"Sessions are assumed to differ by {share} for {which}, and by what {there} show for the others."
    if any((row.session_sd or 0.0) > between.allowance for row in of.judged):
        share += ", or as much as launches of one where that is more"
    is_ = "is" if between.sessions == 1 else "are"
    return f"Sessions are assumed to differ by {share}: there {is_} {there}, and {FEWEST_SESSIONS} would tell."


def command(of: Comparison) -> str:
    """What makes this comparison again."""
    changed = [word for name in of.changed for word in ("--changed", name)]
    options = ["--tolerance", repr(of.tolerance), "--alpha", repr(of.alpha), *changed]
    if of.between_sessions is not None:
        options += ["--between-sessions", repr(of.between_sessions.allowance)]
    return shlex.join(["parabench", "compare", *(origin.at for origin in of.origins), *options])


def lines(of: Comparison) -> list[str]:
    """The whole comparison as lines of text."""
    return [
        *format.in_lines(sentences(of)),
        *map(str, of.differences),
        *format.warnings(of.findings),
        *map(line, of.rows),
    ]


def line(row: CaseResult) -> str:
    """A case in a line of its own."""
    return f"{row.outcome}: {row.label}: {_change(row)}"


def _change(row: CaseResult) -> str:
    """What became of a case: '41.2 ms -> 45.0 ms, +9.2 % (95 %: +8.1 % to +10 %); upper bound +9.9 %'."""
    if row.ratio is None:
        return row.note
    change = f"{format.milliseconds(row.base_step_time_s)} -> {format.milliseconds(row.candidate_step_time_s)}"
    change += f", {format.signed(row.ratio - 1)}"
    if row.low is not None and row.high is not None:
        change += f" (95 %: {interval(row)})"
    if row.upper is not None:
        change += f"; upper bound {format.signed(row.upper - 1)}"
    return f"{change}{'; ' + row.note if row.note else ''}"


def to_dict(of: Comparison) -> dict[str, Any]:
    """As JSON can hold it (docs/reference/json.md): unknown is null."""
    fields: dict[str, Any] = to_builtins(of)
    derived = {
        "schema": SCHEMA,
        "kind": "gate",
        "verdict": of.verdict,
        "exit_code": of.verdict.exit_code,
        "upper": of.upper,
        "sentence": sentence(of),
    }
    assert not derived.keys() & fields.keys()
    return derived | fields


def interval(row: CaseResult) -> str:
    """The 95 % interval of a row's change: '+8.1 % to +10 %'; nothing where there is none."""
    if row.low is None or row.high is None:
        return ""
    return f"{format.signed(row.low - 1)} to {format.signed(row.high - 1)}"


def ids(launches: Iterable[int]) -> str:
    """Launches by their ids, those in a row together: '1-4, 9'; 'none' where there are none."""
    return format.runs(launches) or "none"
