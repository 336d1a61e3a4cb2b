"""What launches of two sides that took turns tell of the noise: by how much pairs differ, and how long they take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from parabench.analysis.compare.sides import side_of
from parabench.analysis.numbers import LAUNCH_NUMBERS, of_pair
from parabench.analysis.session import SessionData, select_session, select_sessions
from parabench.analysis.stats.contrasts import Numbers, logs_of
from parabench.errors import UsageError
from parabench.store.frames import records
from parabench.store.results import Results, load
from parabench.store.store import split


@dataclass(frozen=True)
class Pilot:
    """What was measured: `differences` of shape (cases, pairs) are log(b / a) of each pair of launches that all cases
    have, in their order; `begun_s` is when each pair began and `ended_s` when the session ended, in s
    from its start. `rounds` of a launch, None
    where whole launches alternate. `left_out` are cases without any pair."""

    suite: str
    rounds: int | None
    cases: tuple[str, ...]
    differences: Numbers
    begun_s: Numbers
    ended_s: float | None = None
    left_out: tuple[str, ...] = ()

    @property
    def pairs(self) -> int:
        return len(self.begun_s)

    @property
    def first_s(self) -> float | None:
        """How long everything before the first pair took: launches that each case has to itself, and references. 0
        where the clock was set back."""
        return max(0.0, float(self.begun_s[0])) if self.pairs else None

    @property
    def pair_s(self) -> float | None:
        """From one pair's begin to the next one's: the median, because there may be a pause. Of one pair to the end of
        the session, None without one."""
        if self.pairs == 1 and self.ended_s is not None:
            return max(0.0, self.ended_s - float(self.begun_s[0]))
        return max(0.0, float(np.median(np.diff(self.begun_s)))) if self.pairs > 1 else None


def pilot_of(base: SessionData, candidate: SessionData) -> Pilot:
    """What two sides of an `ab` tell of the noise; they need not be equal, because a difference is no spread."""
    cases = [case for case in base.cases_by_id.index if case in candidate.cases_by_id.index]
    sides = {case: of_pair((case, case), base.by_case, candidate.by_case, paired=True) for case in cases}
    found = {
        case: pd.Series(logs_of(new) - logs_of(old), old.index.get_level_values("repetition"))
        for case, (old, new) in sides.items()
        if len(old)
    }
    common = pd.DataFrame(found).dropna()
    blocks = common.index.tolist()
    return Pilot(
        suite=base.session.suite,
        rounds=base.session.plan["protocol"].get("rounds") or None,
        cases=tuple(base.labels[case] for case in found),
        differences=common.to_numpy(dtype=float).T.reshape(len(found), len(blocks)),
        begun_s=_begun_s(base, candidate, blocks),
        ended_s=_seconds(base, base.session.finished_utc) if base.session.finished_utc is not None else None,
        left_out=tuple(base.labels[case] for case in cases if case not in found),
    )


def _begun_s(base: SessionData, candidate: SessionData, blocks: list[int]) -> Numbers:
    """When the first launch of each block began."""
    sides = [side.numbers.groupby("repetition")["started_utc"].min() for side in (base, candidate)]
    return np.array([min(_seconds(base, side[block]) for side in sides) for block in blocks], dtype=float)


def _seconds(base: SessionData, utc: str) -> float:
    """From the session's start to a moment."""
    start, moment = (np.datetime64(each.rstrip("Z"), "ms") for each in (base.session.started_utc, utc))
    return float((moment - start) / np.timedelta64(1, "s"))


def read_pilot(store: str) -> Pilot:
    """That of the newest `ab` of a store, or of the one that STORE@SESSION names. Raises UsageError."""
    path, session = split(store)
    return pilot_of(*sides_of_ab(load(path, LAUNCH_NUMBERS), session))


def sides_of_ab(results: Results, session: str | int | None = None) -> tuple[SessionData, SessionData]:
    """Both sides of an `ab` of a store: of the named session, else of the newest. Raises UsageError where there is
    none."""
    listed = records(results.listed, ("id",))
    if session is None:
        found = [each for each in select_sessions(results, [row["id"] for row in listed]) if each.interleaved]
        if not found:
            raise UsageError(f"{results.path} holds no sides that took turns; measure some with `parabench noise`")
        own = found[-1]
    else:
        own = select_session(results, session)
        found = select_sessions(results, [row["id"] for row in listed]) if own.interleaved else []
    run = own.interleaved.get("run")
    both = {each.interleaved["side"]: each.id for each in found if each.interleaved.get("run") == run}
    if set(both) != {"a", "b"}:
        raise UsageError(
            f"{own.name} of {results.path} is no side of an ab that has two; name one of those that `parabench ab` or "
            "`parabench noise` measured"
        )
    return side_of(results, both["a"], "base"), side_of(results, both["b"], "candidate")
