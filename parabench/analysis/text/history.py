"""A history as a person would say it, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from parabench.analysis.environment.diff import Difference
from parabench.analysis.history.series import NO_RUPTURES, History, Series, Shift
from parabench.analysis.session import SessionData
from parabench.analysis.text import format

# More that changed at once than this explains nothing.
MOST_CHANGES = 4
NOTHING = "nothing else that is recorded changed then"


def sentence(of: History) -> str:
    """What there is, in a sentence or two."""
    suites = ", ".join(dict.fromkeys(visit.session.suite for visit in of.visits))
    first, last = of.visits[0].session.day, of.visits[-1].session.day
    days = f"on {first}" if first == last else f"from {first} to {last}"
    said = f"{format.count(len(of.visits), 'session')} of {suites}, {days}: "
    if not of.series:
        return f"{said}no launch is recorded."
    unsure = [series for series in of.series if series.why_not is not None]
    if len(unsure) == len(of.series):
        reasons = [series.why_not for series in unsure]
        why = NO_RUPTURES if NO_RUPTURES in reasons else reasons[0]
        return f"{said}nothing can be said yet of {format.count(len(unsure), 'case')} ({why})."
    steady = len(of.series) - len(unsure) - len(of.changed)
    said += f"{len(of.changed)} of {format.count(len(of.series), 'case')} changed, {steady} did not"
    away = sum(series.away is not None for series in of.series)
    if unsure:
        said += f"; too few sessions to tell of {len(unsure)}"
    if away:
        said += f"; in {away} the newest session alone is away from its level"
    return f"{said}."


def lines(of: History, every: bool = False) -> list[str]:
    """As lines of text: of the cases that changed, or of all."""
    return [sentence(of), *(line(series, of.visits) for series in (of.series if every else of.noted))]


def line(of: Series, visits: Sequence[SessionData]) -> str:
    """One case: its state, its newest number, its last change and the whole."""
    said = [f"{of.state}: {of.label}"]
    if of.newest is not None:
        said[0] += f": {format.milliseconds(of.newest.step_time_s)}"
    if of.shifts:
        said[0] += f", {_since(of.shifts[-1], visits)}"
        said.append(format.listed(map(_changed, of.shifts[-1].changed), most=MOST_CHANGES) or NOTHING)
    sessions = format.count(sum(point.level_s is not None for point in of.points), "session")
    if len(of.shifts) > 1:
        many = format.count(len(of.shifts), "change")
        said.append(f"over the whole time {format.signed(of.whole or 0.0)} in {many} ({sessions})")
    elif not of.shifts and of.session_sd is not None:
        said.append(f"{sessions}, which differ by {format.percent(of.session_sd)}")
    said.append(note(of, visits))
    return "; ".join(filter(None, said))


def _since(last: Shift, visits: Sequence[SessionData]) -> str:
    """The last change: '+6.1 % since 2026-03-04 (nightly-12; 95 %: +5.5 % to +6.7 %)'."""
    visit = visits[last.visit]
    sure = f"95 %: {format.signed(last.low)} to {format.signed(last.high)}"
    return f"{format.signed(last.change)} since {visit.session.day} ({visit.session.name}; {sure})"


def note(of: Series, visits: Sequence[SessionData]) -> str:
    """What else is to be known: of a short series, or of the newest session."""
    last = of.points[-1]
    if last.visit < max(i for i, visit in enumerate(visits) if visit.session.suite == of.suite):
        ended = f"last measured {visits[last.visit].session.day}"
    elif last.step_time_s is None:
        ended = f"the newest session: {last.status}"
    elif of.away is not None:
        ended = f"the newest session alone is {format.signed(of.away)} off: one more will tell"
    else:
        ended = ""
    return "; ".join(filter(None, (of.why_not, ended)))


def _changed(change: Difference) -> str:
    return f"{change.name} changed from {change.base} to {change.candidate}"


def arrow(change: Difference) -> str:
    """A change where there is little room: 'torch 2.12 → 2.13'."""
    return f"{change.name} {change.base} → {change.candidate}"


def to_dict(of: History) -> dict[str, Any]:
    """Return the JSON (docs/reference/json.md): unknown values are null."""
    found: list[dict[str, Any]] = to_builtins(of.series)
    for fields, series in zip(found, of.series, strict=True):
        fields |= {"case": series.case.to_dict(), "case_id": series.case.id, "whole": series.whole}
        fields |= {"state": series.state, "away": series.away, "sentence": line(series, of.visits)}
    return {"sentence": sentence(of), "sessions": to_builtins(of.sessions), "series": found}
