"""A case over sessions: its numbers, its levels and its changes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from parabench.analysis.environment.diff import Difference, changes
from parabench.analysis.session import SessionData
from parabench.errors import needs_package
from parabench.plan.case import Case

# Series.why_not if the package that finds change points is missing.
NO_RUPTURES = f"finding a change point {needs_package('ruptures')}"


@dataclass(frozen=True)
class SessionPoint:
    """A case in one session, which is at place `visit` of the history.

    `step_time_s` is its step time there (`numbers.levels`), None where no launch counts; `low_s` to `high_s`
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
    changed: tuple[Difference, ...]


@dataclass(frozen=True)
class Series:
    """One case of one suite over sessions. `session_sd` and `launch_sd` are its noise, as fractions: what sessions
    differ beyond their launches, and what launches differ within a session. `why_not` is the reason if no change point
    can be found."""

    suite: str
    case: Case
    device: str
    label: str
    points: tuple[SessionPoint, ...]
    shifts: tuple[Shift, ...]
    session_sd: float | None
    launch_sd: float | None
    why_not: str | None

    @property
    def newest(self) -> SessionPoint | None:
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

    @property
    def state(self) -> str:
        """Return the state of the case in a word or two."""
        if self.newest is None:
            return "no number"
        if self.why_not is not None:
            return "unknown" if self.why_not == NO_RUPTURES else "too few"
        if not self.shifts:
            return "unchanged"
        return "slower" if self.shifts[-1].change > 0 else "faster"


@dataclass(frozen=True)
class SessionEntry:
    """A session of training runs in the JSON.

    `side` is `a` or `b` for a variant of `parabench ab`. `changed` holds the differences in machine and software from
    the judged session of the same suite before it.
    """

    store: str
    id: int
    label: str | None
    suite: str
    started_utc: str
    finished: bool
    commit: str | None
    torch: str | None
    host: str | None
    side: Literal["a", "b"] | None
    judged: bool
    changed: tuple[Difference, ...]


@dataclass(frozen=True)
class History:
    """All cases, what changed most recently first. `visits` are the sessions, the oldest first."""

    visits: tuple[SessionData, ...]
    series: tuple[Series, ...]

    @cached_property
    def machine(self) -> tuple[tuple[Difference, ...], ...]:
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
    def sessions(self) -> tuple[SessionEntry, ...]:
        """The sessions as the JSON has them."""
        return tuple(
            SessionEntry(
                store=str(visit.results.path),
                id=visit.session.id,
                label=visit.session.label,
                suite=visit.session.suite,
                started_utc=visit.session.started_utc,
                finished=visit.session.finished_utc is not None,
                commit=visit.session.known("git", "commit"),
                torch=visit.session.known("versions", "torch"),
                host=visit.session.known("host"),
                side=visit.session.interleaved.get("side"),  # type: ignore[arg-type]  # `a` or `b`
                judged=visit.session.judged,
                changed=changed,
            )
            for visit, changed in zip(self.visits, self.machine, strict=True)
        )

    @property
    def changed(self) -> list[Series]:
        return [series for series in self.series if series.shifts]

    @property
    def noted(self) -> list[Series]:
        """Those, and where the newest session alone is away: what is listed unless all are."""
        return [series for series in self.series if series.shifts or series.away is not None]
