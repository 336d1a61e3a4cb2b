"""One case of a gate."""

from __future__ import annotations

from dataclasses import dataclass

from parabench.analysis.compare.outcome import Outcome
from parabench.analysis.text import format


@dataclass(frozen=True)
class Row:
    """One case.

    `base_s` and `candidate_s` are the step times that the case has in its two sessions. `ratio` is candidate / base of
    the launches that are compared, so that a launch without a partner does not move it; `low` to `high` its 95 %
    interval and `upper` its one-sided 95 % upper bound; `p_slower` is one-sided and adjusted by Holm. `session_sd` is
    the standard deviation of a session's log time that is in them, None where both sides took turns. `launches_needed`
    is with how many launches a side a gate of two equal sides would pass (`Test.launches_for`; None: no number up to
    500).
    `base_launches` and `candidate_launches` are the ids in table `launch` of what the numbers were made of. `excused`:
    only in base, because the candidate skipped it with a reason or this comparison left it out on purpose; or it never
    ended well in base either. `fails_more`: more often than in base, though not beyond chance.
    """

    case_id: str
    label: str
    outcome: Outcome
    base_s: float | None
    candidate_s: float | None
    ratio: float | None
    low: float | None
    high: float | None
    upper: float | None
    p_slower: float | None
    session_sd: float | None
    launches_needed: int | None
    base_launches: tuple[int, ...]
    candidate_launches: tuple[int, ...]
    excused: bool
    fails_more: bool
    note: str

    @property
    def unseen(self) -> bool:
        """Whether it may have become worse without anyone being able to tell: a gate with such a case cannot pass.

        What was fixed, or is only in the candidate, has no latency before that it could be slower than.
        """
        unknown = self.outcome in (Outcome.ONLY_BASE, Outcome.NOT_JUDGED, Outcome.NOT_OK)
        return self.fails_more or (unknown and not self.excused)

    def line(self) -> str:
        return f"{self.outcome}: {self.label}: {self.change()}"

    def change(self) -> str:
        """What became of it: '41.2 ms -> 45.0 ms, +9.2 % (95 %: +8.1 % to +10 %); upper bound +9.9 %'."""
        if self.ratio is None:
            return self.note
        change = f"{format.milliseconds(self.base_s)} -> {format.milliseconds(self.candidate_s)}"
        change += f", {format.signed(self.ratio - 1)}"
        if self.low is not None and self.high is not None:
            change += f" (95 %: {format.signed(self.low - 1)} to {format.signed(self.high - 1)})"
        if self.upper is not None:
            change += f"; upper bound {format.signed(self.upper - 1)}"
        return f"{change}{'; ' + self.note if self.note else ''}"
