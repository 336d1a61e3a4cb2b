"""A gate's verdict as a person would say it."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

from parabench.analysis import words
from parabench.analysis.gate.outcome import REGRESSIONS, Outcome, Verdict
from parabench.analysis.gate.significance import MOST_LAUNCHES

if TYPE_CHECKING:
    from parabench.analysis.gate.compare import Comparison, Row


def sentence(of: Comparison) -> str:
    """The verdict, the smallest slowdown that would have been found, and what else became of cases."""
    said = {
        Verdict.REGRESSION: _regression,
        Verdict.INCONCLUSIVE: _inconclusive,
        Verdict.NO_REGRESSION: _none,
    }[of.verdict](of)
    counts = {outcome: sum(row.outcome == outcome for row in of.rows) for outcome in Outcome}
    rest = [
        f"{counts[outcome]:,} {outcome}"
        for outcome in Outcome
        if outcome not in (*REGRESSIONS, Outcome.SAME) and counts[outcome]
    ]
    also = f" Also: {', '.join(rest)}." if rest else ""
    return f"{said} {seen(of)}{also}"


def _regression(of: Comparison) -> str:
    said = []
    slower = [row for row in of.rows if row.outcome is Outcome.SLOWER]
    if slower:
        most = max(slower, key=lambda row: row.ratio or 0)
        which = f"{words.count(len(slower), 'case')} of {len(of.judged):,} judged got slower"
        said.append(f"{which}, the most by {words.percent((most.ratio or 1) - 1)} ({most.label})")
    broke = [row for row in of.rows if row.outcome is Outcome.BROKE]
    partly = [row for row in broke if row.candidate_launches]
    gone = [row for row in broke if not row.candidate_launches]
    for rows, end in ((gone, ("that worked no longer ends", "that worked no longer end", "well")),
                      (partly, ("ends", "end", "well less often"))):  # fmt: skip
        if rows:
            which = words.listed((row.label for row in rows), most=3)
            said.append(f"{words.count(len(rows), 'case')} {end[len(rows) > 1]} {end[2]} ({which})")
    return f"Regression: {' and '.join(said)}."


def _inconclusive(of: Comparison) -> str:
    unseen = [row for row in of.rows if row.unseen]
    if not of.judged:
        head = "Inconclusive: no case has enough launches on both sides to be judged."
        return f"{head} {_unseen(unseen)}." if len(unseen) < len(of.rows) and unseen else head
    blind = [row for row in of.judged if (row.detectable or 0) > of.tolerance]
    where = f"in {words.count(len(blind), 'case')} of {len(of.judged):,}" if len(of.judged) > 1 else "in it"
    if len(of.judged) == 1 == len(of.rows):
        where = "in the one case"
    missed = f"no slowdown was found, but one of {words.percent(of.tolerance)} could have been missed {where}"
    if not unseen:
        return f"Inconclusive: {missed}.{_advice(blind)}"
    part = f"Inconclusive: {_part(of)}: {_unseen(unseen)}"
    advice = " Measure these too, or take a base without them."
    return f"{part}.{advice}" + (f" {missed.capitalize()}.{_advice(blind)}" if blind else "")


def _part(of: Comparison) -> str:
    """'1 of 4 cases judged'."""
    return f"{len(of.judged):,} of {words.count(len(of.rows), 'case')} judged"


# What is said of cases that could not be judged and should have been.
_WHY = {
    Outcome.ONLY_BASE: ("is only in base", "are only in base"),
    Outcome.NOT_OK: ("has no launch in candidate that counts", "have no launch in candidate that counts"),
    Outcome.NOT_JUDGED: ("has too few launches", "have too few launches"),
    Outcome.UNCLEAR: ("fails more often, though not beyond chance", "fail more often, though not beyond chance"),
}


def _unseen(rows: list[Row]) -> str:
    """'2 are only in base (a; b), 1 has too few launches (c)'."""
    said = []
    for outcome, (one, several) in _WHY.items():
        labels = [row.label for row in rows if row.outcome is outcome]
        if labels:
            which = words.listed(labels, most=3)
            said.append(f"{len(labels):,} {one if len(labels) == 1 else several} ({which})")
    return ", ".join(said)


def _advice(blind: list[Row]) -> str:
    if not blind:
        return ""
    if any(row.launches_needed is None for row in blind):
        return f" More than {MOST_LAUNCHES} launches a side would be needed: too noisy for this tolerance."
    most = max(blind, key=lambda row: row.launches_needed or 0)
    return f" About {most.launches_needed} launches a side would show it{_short(most)}."


def _short(row: Row) -> str:
    """Which side is short of launches, where the other has more."""
    there = {"base": len(row.base_launches), "candidate": len(row.candidate_launches)}
    short, long = sorted(there, key=lambda side: there[side])
    if there[short] == there[long]:
        return ""
    return f"; {short} has {words.count(there[short], 'launch')} where {long} has {there[long]:,}"


def _none(of: Comparison) -> str:
    judged, most = len(of.judged), words.percent(of.tolerance)
    if judged < len(of.rows):
        which = f"{_part(of)}: " + ("none of them" if judged > 1 else "it did not")
    else:
        which = f"none of {words.count(judged, 'case')}" if judged > 1 else "the case did not"
    return f"No regression: {which} {'got' if judged > 1 else 'get'} slower by more than {most}."


def seen(of: Comparison) -> str:
    """What the gate could have seen at all."""
    if of.detectable is None:
        return "No slowdown of any size could have been found."
    how = "interleaved" if of.paired else "one side after the other"
    launches = [min(len(row.base_launches), len(row.candidate_launches)) for row in of.judged]
    many = f"{min(launches)} to {max(launches)}" if min(launches) < max(launches) else str(max(launches))
    every = "every case" if len(of.judged) == len(of.rows) else "every case judged"
    which = f"The smallest slowdown that would have been found in {every}"
    size = words.percent(of.detectable) if of.detectable <= 1 else "more than twice as long"
    return f"{which}: {size} ({many} launches a side, {how})."


def command(of: Comparison) -> str:
    """What makes this comparison again."""
    changed = [word for name in of.changed for word in ("--changed", name)]
    options = ["--tolerance", repr(of.tolerance), "--alpha", repr(of.alpha), *changed]
    return shlex.join(["parabench", "compare", *(origin.at for origin in of.origins), *options])


def interval(row: Row) -> str:
    """The 95 % interval of a row's change: '+8.1 % to +10 %'; nothing where there is none."""
    if row.low is None or row.high is None:
        return ""
    return f"{words.signed(row.low - 1)} to {words.signed(row.high - 1)}"


def ids(launches: Iterable[int]) -> str:
    """Launches by their ids, those in a row together: '1-4, 9'; 'none' where there are none."""
    said: list[str] = []
    # Consecutive ids have one distance from their places.
    for _, group in itertools.groupby(enumerate(sorted(launches)), key=lambda pair: pair[1] - pair[0]):
        run = [each for _, each in group]
        said.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(said) or "none"
