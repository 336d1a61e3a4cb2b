"""The gate: compare each configuration of two variants and detect slowdowns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, Literal

import pandas as pd

from parabench.analysis import format
from parabench.analysis.answer import Answer, Columns, columns, rows, tables
from parabench.analysis.compare.comparison import (
    ALPHA,
    CASES,
    REGRESSIONS,
    STEP_TIMES,
    TOLERANCE,
    Outcome,
    compared,
)
from parabench.analysis.compare.sides import ALLOWANCE, FEWEST_SESSIONS
from parabench.analysis.environment.diff import Difference, check_alike, differences
from parabench.analysis.session import Origin, SessionData
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.contrasts import MOST_LAUNCHES, POWER
from parabench.store.record import Finding
from parabench.store.results import records

UNPAIRED = Finding(
    "unpaired",
    "The variants were not interleaved: anything else that changed in between (clocks, temperature, other load) is "
    "attributed to the candidate.",
    "Interleave the variants with `parabench ab`.",
)


class Verdict(StrEnum):
    """The verdict of a gate."""

    NO_REGRESSION = "no regression"
    REGRESSION = "regression"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_code(self) -> int:
        """The exit code of a command with this verdict: 0, 1 or 3. Wrong usage is 2."""
        return {Verdict.NO_REGRESSION: 0, Verdict.REGRESSION: 1, Verdict.INCONCLUSIVE: 3}[self]


# The tables of the answer.
TABLES: dict[str, Columns] = {
    "verdict": {
        "verdict": Verdict, "exit_code": Literal[0, 1, 3], "upper": float | None,
        "sessions": int | None, "measured": int | None, "allowed": int | None, "allowance": float | None,
        "base": str, "candidate": str, "paired": bool, "tolerance": float, "alpha": float, "changed": tuple[str, ...],
    },
    "sides": columns(Origin, side=Literal["base", "candidate"]),
    "cases": CASES,
    "differences": columns(Difference),
}  # fmt: skip


def compare(
    base: SessionData,
    candidate: SessionData,
    tolerance: float = TOLERANCE,
    alpha: float = ALPHA,
    changed: tuple[str, ...] = (),
    allowance: float = ALLOWANCE,
) -> Answer:
    """Compare the configurations of two sessions by their ids. Regressions are first in the answer.

    A configuration regressed if it is slower than `tolerance`, or fails significantly more often. The test of slowdowns
    is a one-sided t-test at level `alpha`. The gate passes if each 95% upper bound is below the tolerance. All must
    pass, so no bound is adjusted (Berger, "Multiparameter hypothesis testing and acceptance sampling", Technometrics
    24, 1982).

    Raises:
        UsageError: If both are the same session, or have no configuration in common. Also if they were not interleaved,
            and differ in a fact that matters and is not in `changed`.
    """
    of = compared(base, candidate, by_id=True, quantities=(), tolerance=tolerance, alpha=alpha, allowance=allowance)
    differing = list(differences(base, candidate))
    if not of.paired:
        check_alike(differing, changed)
    cases = of.ratios.rename(columns=STEP_TIMES)
    cases = cases.assign(order=cases["outcome"].map([*Outcome].index), change=-cases["ratio"].fillna(0))
    cases = cases.sort_values(["order", "change"], kind="stable")[[*CASES]].reset_index(drop=True)
    verdict = Verdict.NO_REGRESSION
    if cases["outcome"].isin(REGRESSIONS).any():
        verdict = Verdict.REGRESSION
    elif (_not_judged(cases) | (cases["outcome"] == Outcome.UNCLEAR)).any() or cases["p_slower"].isna().all():
        verdict = Verdict.INCONCLUSIVE
    row = {
        "verdict": verdict,
        "exit_code": verdict.exit_code,
        "upper": format.number_or_none(cases["upper"].max()),
        **of.between,
        "base": base.session.name,
        "candidate": candidate.session.name,
        "paired": of.paired,
        "tolerance": tolerance,
        "alpha": alpha,
        "changed": changed,
    }
    sides = [(side.origin, {"side": name}) for side, name in ((base, "base"), (candidate, "candidate"))]
    found = tables(TABLES, {"verdict": [row], "sides": sides, "differences": differing}) | {"cases": cases}
    warnings = (*unfinished(base, candidate), *(() if of.paired else (UNPAIRED,)))
    return Answer(tuple(_sentences(row, cases)), found, warnings=warnings)


def unfinished(*sides: SessionData) -> Iterator[Finding]:
    """Yield a warning for each session whose planned launches are not complete."""
    for side in sides:
        if side.session.finished_utc is None:
            yield Finding(
                "unfinished",
                f"The session of {side.role} is not finished: more launches were planned.",
                "Finish it with --resume, and compare again.",
            )


def _not_judged(cases: pd.DataFrame) -> pd.Series[bool]:
    """Return whether each configuration may have become worse without a test that could show it."""
    unknown = cases["outcome"].isin((Outcome.ONLY_BASE, Outcome.NOT_JUDGED, Outcome.NOT_OK))
    return cases["fails_more"].astype(bool) | (unknown & ~cases["exempt"].astype(bool))


def not_ruled_out(cases: pd.DataFrame, tolerance: float) -> pd.Series[bool]:
    """Return whether each configuration was judged, and may be slower than the tolerance."""
    return cases["p_slower"].notna() & ~(cases["upper"] < 1 + tolerance)


def the_verdict(of: Answer) -> dict[str, Any]:
    """Return the one row of the table `verdict`, with None for unknown values."""
    return rows(of.tables["verdict"])[0]


def exit_code(of: Answer) -> int:
    """Return the exit code of a command with this verdict."""
    return int(the_verdict(of)["exit_code"])


def tolerated(tolerance: float) -> str:
    """Return the tolerance in percent, with all digits that the user gave: '2%', '2.25%'."""
    return f"{100 * tolerance:.6g}%"


def _sentences(verdict: dict[str, Any], cases: pd.DataFrame) -> Iterator[str]:
    """Yield the verdict with the outcomes, the slowdowns that are ruled out, advice, and the number of launches."""
    yield f"{verdict['verdict'].capitalize()}: {_outcomes(cases)}."
    judged = cases[cases["p_slower"].notna()]
    wide = judged[not_ruled_out(judged, verdict["tolerance"])]
    if len(judged):
        largest = judged.sort_values("upper", ascending=False, kind="stable").iloc[0]
        ruled_out = f"{len(judged) - len(wide):,} of {format.count(len(judged), 'configuration')} judged"
        bound = f"the largest upper bound is {format.signed(largest['upper'] - 1)}, {largest['label']}"
        within = f"Slowdowns above {tolerated(verdict['tolerance'])} are ruled out in {ruled_out}"
        yield f"{within} ({format.percent(CONFIDENCE)}; {bound})."
    if verdict["verdict"] is Verdict.INCONCLUSIVE:
        if _not_judged(cases).any():
            yield "Measure the configurations that were not judged, or take a base without them."
        launches = wide["launches_needed"]
        if len(wide) and launches.notna().all():
            power = format.percent(POWER)
            yield f"Equal variants would pass with about {launches.max()} launches per variant ({power})."
        elif len(wide):
            drift = ((wide["session_sd"] > 0) & wide["launches_needed"].isna()).any()
            noisy = "the launches are too noisy for this tolerance"
            why = "interleave the variants with `parabench ab`" if drift else noisy
            yield f"{MOST_LAUNCHES} launches per variant would not suffice: {why}."
    if len(judged):
        yield from _basis(verdict, judged)


def _outcomes(cases: pd.DataFrame) -> str:
    """Return the outcomes in words: '2 configurations slower (ddp ring +10%; fsdp +8.1%), 3 same'."""
    found: list[str] = []
    for outcome in sorted(Outcome, key=lambda each: each is Outcome.SAME):
        own = cases[cases["outcome"] == outcome]
        if len(own):
            labels = own["label"].tolist()
            if outcome in (Outcome.SLOWER, Outcome.FASTER):
                pairs = zip(labels, own["ratio"], strict=True)
                labels = [f"{label} {format.signed(ratio - 1)}" for label, ratio in pairs]
            named = "" if outcome is Outcome.SAME else f" ({format.listed(labels, most=3)})"
            found.append(f"{len(own):,}" if found else format.count(len(own), "configuration"))
            found[-1] += f" {outcome}{named}"
    return ", ".join(found)


def _basis(verdict: dict[str, Any], judged: pd.DataFrame) -> Iterator[str]:
    """Yield sentences about the number of launches, and about the variation between sessions in the bounds."""
    both = zip(judged["base_launches"], judged["candidate_launches"], strict=True)
    fewest = [min(len(own), len(other)) for own, other in both]
    many = f"{min(fewest)} to {max(fewest)}" if min(fewest) < max(fewest) else str(max(fewest))
    yield f"{many} launches per variant, {'' if verdict['paired'] else 'not '}interleaved."
    if verdict["paired"]:
        return
    sessions = format.count(verdict["sessions"], "session")
    if verdict["measured"]:
        typical = format.percent(judged["session_sd"].median())
        yield f"The bounds contain the variation between {sessions}: {typical} (standard deviation)."
    if verdict["allowed"]:
        which = "" if verdict["allowed"] == len(judged) else f" in {format.count(verdict['allowed'], 'configuration')}"
        share = f"{100 * verdict['allowance']:.6g}% or more{which} (standard deviation, --between-sessions)"
        there = f"the results database of base has {sessions} of its suite and environment"
        yield f"Sessions are assumed to differ by {share}: {there}, and {FEWEST_SESSIONS} are needed to measure it."


def options(of: Answer) -> list[str]:
    """Return the options of a `parabench compare` command that repeats this comparison."""
    verdict = the_verdict(of)
    found = ["--tolerance", repr(verdict["tolerance"]), "--alpha", repr(verdict["alpha"])]
    found += [word for name in verdict["changed"] for word in ("--changed", name)]
    if verdict["allowance"] is not None:
        found += ["--between-sessions", repr(verdict["allowance"])]
    return found


def lines(of: Answer) -> list[str]:
    """Return the comparison as lines of text."""
    differing = records(of.tables["differences"])
    return [
        *format.in_lines(of.sentences),
        *(f"{row['name']} differs: {row['base']} in base, {row['candidate']} in candidate" for row in differing),
        *format.warnings(of.warnings),
        *map(line, records(of.tables["cases"])),
    ]


def line(row: Any) -> str:
    """Return a configuration in one line: 'slower: LABEL: 41.2 ms -> 45.0 ms, +9.2% (95%: ...); upper bound ...'."""
    start = f"{row['outcome']}: {row['label']}: "
    if pd.isna(row["ratio"]):
        return f"{start}{row['note']}"
    times = (format.milliseconds(row[f"{side}_step_time_s"]) for side in ("base", "candidate"))
    change = f"{' -> '.join(times)}, {format.signed(row['ratio'] - 1)}"
    if ends := interval(row):
        change += f" (95%: {ends}); upper bound {format.signed(row['upper'] - 1)}"
    return start + "; ".join(filter(None, (change, row["note"])))


def interval(row: Any) -> str:
    """Return the 95% interval of a change: '+8.1% to +10%'; empty if it is unknown."""
    return "" if pd.isna(row["low"]) else f"{format.signed(row['low'] - 1)} to {format.signed(row['high'] - 1)}"


def ids(launches: Sequence[int]) -> str:
    """Return launch ids: '1-4, 9', or 'none'."""
    return format.runs(launches) or "none"
