"""A case over sessions, as data and as words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from parabench.analysis.history.points import Change, changes
from parabench.analysis.session import SessionData
from parabench.analysis.text import format
from parabench.plan.case import Case

# More that changed at once than this explains nothing.
MOST_CHANGES = 4
NOTHING = "nothing else that is recorded changed then"


@dataclass(frozen=True)
class Point:
    """A case in one session, which is at place `visit` of the history.

    `step_time_s` is its step time there (`tables.step_times`), None where no launch counts; `low_s` to `high_s`
    its 95 % interval as its launches give it, None where there is one launch. `launches` are their ids in table
    `launch`. `status` is 'ok' or a count such as '2 ok, 1 oom'. `level_s` is what the series was at then: None where
    change points are not sought, in a short series or in the other one of two sessions that took turns. `outlier`: too
    far from the level to count.
    """

    visit: int
    step_time_s: float | None
    low_s: float | None
    high_s: float | None
    launches: tuple[int, ...]
    status: str
    level_s: float | None
    outlier: bool


@dataclass(frozen=True)
class Shift:
    """A change point: from session `visit` on the level is another. `change` is a fraction, `low` to `high` its 95 %
    interval if the change is where it was found. `changed` is what else changed since the case's session before."""

    visit: int
    before_s: float
    after_s: float
    change: float
    low: float
    high: float
    changed: tuple[Change, ...]

    def why(self) -> str:
        """What changed then: 'torch changed from 2.12 to 2.13'."""
        return format.listed(map(str, self.changed), most=MOST_CHANGES) or NOTHING


@dataclass(frozen=True)
class Series:
    """One case of one suite over sessions. `session_sd` and `launch_sd` are its noise, as fractions: what sessions
    differ beyond their launches, and what launches differ within a session. `why_not` says why no change point can be
    found yet."""

    suite: str
    case: Case
    device: str
    label: str
    points: tuple[Point, ...]
    shifts: tuple[Shift, ...]
    session_sd: float | None
    launch_sd: float | None
    why_not: str | None

    @property
    def newest(self) -> Point | None:
        return next((point for point in reversed(self.points) if point.step_time_s is not None), None)

    @property
    def whole(self) -> float | None:
        """The change over the whole time, as a fraction: from the first level to the last. None where unknown."""
        levels = [point.level_s for point in self.points if point.level_s is not None]
        return levels[-1] / levels[0] - 1 if levels else None

    @property
    def away(self) -> float | None:
        """How far the newest session is from its level, as a fraction, where it is too far to count: no change point,
        for one session alone is none, but perhaps the beginning of one."""
        last = self.points[-1]
        if not last.outlier or last.step_time_s is None or last.level_s is None:
            return None
        return last.step_time_s / last.level_s - 1

    def urgency(self) -> tuple[int, int, float, str]:
        """What changed most recently comes first; of what changed at once, what became slowest. Then where the newest
        session alone is away."""
        if self.shifts:
            return 0, -self.shifts[-1].visit, -self.shifts[-1].change, self.label
        return (2, 0, 0.0, self.label) if self.away is None else (1, 0, -self.away, self.label)

    def state(self) -> str:
        """What became of it, in a word or two."""
        if self.newest is None:
            return "no number"
        if self.why_not is not None:
            return "too few"
        if not self.shifts:
            return "unchanged"
        return "slower" if self.shifts[-1].change > 0 else "faster"

    def line(self, visits: tuple[SessionData, ...]) -> str:
        """The series as one line of text: its state, its newest number, its last change and the whole."""
        said = [f"{self.state()}: {self.label}"]
        if self.newest is not None:
            said[0] += f": {format.milliseconds(self.newest.step_time_s)}"
        if self.shifts:
            said[0] += f", {self.since(visits)}"
            said.append(self.shifts[-1].why())
        sessions = format.count(sum(point.level_s is not None for point in self.points), "session")
        if len(self.shifts) > 1:
            many = format.count(len(self.shifts), "change")
            said.append(f"over the whole time {format.signed(self.whole or 0.0)} in {many} ({sessions})")
        elif not self.shifts and self.session_sd is not None:
            said.append(f"{sessions}, which differ by {format.percent(self.session_sd)}")
        said.append(self.note(visits))
        return "; ".join(filter(None, said))

    def since(self, visits: tuple[SessionData, ...]) -> str:
        """The last change: '+6.1 % since 2026-03-04 (nightly-12; 95 %: +5.5 % to +6.7 %)'."""
        last = self.shifts[-1]
        visit = visits[last.visit]
        sure = f"95 %: {format.signed(last.low)} to {format.signed(last.high)}"
        return f"{format.signed(last.change)} since {visit.session.day} ({visit.session.name}; {sure})"

    def note(self, visits: tuple[SessionData, ...]) -> str:
        """What else is to be known: of a short series, or of the newest session."""
        last = self.points[-1]
        if last.visit < max(i for i, visit in enumerate(visits) if visit.session.suite == self.suite):
            ended = f"last measured {visits[last.visit].session.day}"
        elif last.step_time_s is None:
            ended = f"the newest session: {last.status}"
        elif self.away is not None:
            ended = f"the newest session alone is {format.signed(self.away)} off: one more will tell"
        else:
            ended = ""
        return "; ".join(filter(None, (self.why_not, ended)))


@dataclass(frozen=True)
class History:
    """All cases, what changed most recently first. `visits` are the sessions, the oldest first."""

    visits: tuple[SessionData, ...]
    series: tuple[Series, ...]

    @cached_property
    def machine(self) -> tuple[tuple[Change, ...], ...]:
        """For each session what of its machine and software is not as in the followed one of its suite before; the
        commit apart, which nearly always changes."""
        followed: dict[str, SessionData] = {}
        found = []
        for visit in self.visits:
            suite = visit.session.suite
            devices = {series.device for series in self.series if series.suite == suite}
            different = changes(followed[suite], visit, devices) if suite in followed else ()
            found.append(tuple(change for change in different if change.name != "commit"))
            if visit.session.judged:
                followed[suite] = visit
        return tuple(found)

    @property
    def changed(self) -> list[Series]:
        return [series for series in self.series if series.shifts]

    @property
    def noted(self) -> list[Series]:
        """Those, and where the newest session alone is away: what is listed unless all are."""
        return [series for series in self.series if series.shifts or series.away is not None]

    def sentence(self) -> str:
        """What there is, in a sentence or two."""
        suites = ", ".join(dict.fromkeys(visit.session.suite for visit in self.visits))
        first, last = self.visits[0].session.day, self.visits[-1].session.day
        days = f"on {first}" if first == last else f"from {first} to {last}"
        said = f"{format.count(len(self.visits), 'session')} of {suites}, {days}: "
        if not self.series:
            return f"{said}no launch is recorded."
        unsure = [series for series in self.series if series.why_not is not None]
        if len(unsure) == len(self.series):
            return f"{said}nothing can be said yet of {format.count(len(unsure), 'case')} ({unsure[0].why_not})."
        steady = len(self.series) - len(unsure) - len(self.changed)
        said += f"{len(self.changed)} of {format.count(len(self.series), 'case')} changed, {steady} did not"
        away = sum(series.away is not None for series in self.series)
        if unsure:
            said += f"; too few sessions to tell of {len(unsure)}"
        if away:
            said += f"; in {away} the newest session alone is away from its level"
        return f"{said}."

    def lines(self, every: bool = False) -> list[str]:
        """As lines of text: of the cases that changed, or of all."""
        shown = self.series if every else self.noted
        return [self.sentence(), *(series.line(self.visits) for series in shown)]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it (docs/reference/history.schema.json): unknown is null."""
        return {
            "sentence": self.sentence(),
            "sessions": [
                _visit(visit) | {"changed": [asdict(change) for change in changed]}
                for visit, changed in zip(self.visits, self.machine, strict=True)
            ],
            "series": [
                asdict(series)
                | {"case": series.case.to_dict(), "case_id": series.case.id, "whole": series.whole}
                | {"state": series.state(), "away": series.away, "sentence": series.line(self.visits)}
                for series in self.series
            ],
        }


def _visit(visit: SessionData) -> dict[str, Any]:
    session = visit.session
    return {
        "store": str(visit.results.path),
        "id": session.id,
        "label": session.label,
        "suite": session.suite,
        "started_utc": session.started_utc,
        "finished": session.finished_utc is not None,
        "commit": visit.session.known("git", "commit"),
        "torch": visit.session.known("versions", "torch"),
        "host": visit.session.known("host"),
        "side": session.interleaved.get("side"),
        "judged": visit.session.judged,
    }
