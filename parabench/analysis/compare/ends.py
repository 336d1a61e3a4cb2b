"""How a case's launches ended on both sides: what broke, what was fixed, and what fails more often than it did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
from scipy.stats import fisher_exact

from parabench.analysis.compare.outcome import Outcome
from parabench.analysis.session import SessionData
from parabench.analysis.stats.ttest import Case, holm
from parabench.store.record import Status

FAILURES = (Status.WRONG, Status.OOM, Status.CRASHED, Status.HUNG, Status.FAILED)


@dataclass(frozen=True)
class Ends:
    """How one side's launches of a case ended: {how: launches}, how many failed, ended well, and count."""

    counts: dict[str, int]
    failed: int
    ok: int
    good: int
    error: str

    def said(self) -> str:
        """'oom', or where they ended in several ways '8 ok, 1 oom'."""
        return next(iter(self.counts)) if len(self.counts) == 1 else self.each()

    def each(self) -> str:
        """'8 ok, 1 oom', 'none'."""
        return ", ".join(f"{n} {how}" for how, n in self.counts.items()) or "none"


@dataclass(frozen=True)
class End:
    """What became of a case by how its launches ended. `outcome` is None where their numbers decide; `excused` where a
    gate can do without them, because there is nothing that it could have become slower than. `fails_more`: the
    candidate's launches failed more often than base's, though not beyond chance."""

    outcome: Outcome | None
    note: str
    excused: bool = False
    fails_more: bool = False


def ends_of(case: str, side: SessionData) -> Ends:
    """How the launches of a case that both sides have ended."""
    own = side.launched[case]
    good = set(side.by_case[case].index) if case in side.by_case else set()
    how = [_how(status, at in good) for at, status in own["status"].items()]
    errors: pd.Series[str] = own["error"].dropna()
    return Ends(
        counts=dict(Counter(how)),
        failed=int(own["status"].isin(FAILURES).sum()),
        ok=int((own["status"] == Status.OK).sum()),
        good=len(good),
        error=f": {errors.iloc[0]}" if len(errors) and errors.iloc[0] else "",
    )


def _how(status: str, good: bool) -> str:
    return f"{status} without a latency" if status == Status.OK and not good else str(status)


def judge_ends(
    pairs: Mapping[Case, tuple[str, str]], base: SessionData, candidate: SessionData, alpha: float
) -> dict[Case, End]:
    """What became of each case that both sides have; `pairs` are its ids in base and in candidate.

    One that never failed in base and does in candidate broke; so did one that fails in both where its share of failed
    launches rose in Fisher's exact test, one-sided and adjusted over such cases by Holm, at level `alpha`. Launches
    that were interrupted neither failed nor ended well.
    """
    ends = {case: (ends_of(old, base), ends_of(new, candidate)) for case, (old, new) in pairs.items()}
    mixed = {case: sides for case, sides in ends.items() if all(side.failed for side in sides)}
    p = dict(zip(mixed, holm([_rose(*sides) for sides in mixed.values()]), strict=True))
    return {case: _end(*sides, p.get(case, 1.0) <= alpha) for case, sides in ends.items()}


def _rose(base: Ends, candidate: Ends) -> float:
    """The one-sided p that the candidate's share of failed launches is the base's."""
    table = [[candidate.failed, candidate.ok], [base.failed, base.ok]]
    return float(fisher_exact(table, alternative="greater").pvalue)


def _end(base: Ends, candidate: Ends, rose: bool) -> End:
    note = ""
    if any(side.failed and side.ok for side in (base, candidate)):
        note = f"base {base.each()}; candidate {candidate.each()}{candidate.error or base.error}"
    was_is = note or f"was {base.said()}, is {candidate.said()}{candidate.error}"
    if candidate.failed and (not base.failed or rose or (base.good and not candidate.good)):
        return End(Outcome.BROKE, was_is)
    if not candidate.good:
        never = bool(base.failed) and not base.good
        return End(Outcome.NOT_OK, note or f"base {base.said()}, candidate {candidate.said()}{candidate.error}", never)
    if not base.good and base.failed:
        return End(Outcome.FIXED, was_is)
    # As shares of what ended, without division by what may be none.
    more = candidate.failed * base.ok > base.failed * candidate.ok
    return End(None, f"{note}; fails more often, though not beyond chance" if more else note, fails_more=more)
