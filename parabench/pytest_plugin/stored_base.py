"""A base that was measured before: `--parabench-baseline STORE[@SESSION]`.

What can be known before is said before: a baseline that is not there at pytest's start, one that cannot be compared
with at the suite's first test, so that no long run is lost to a typo.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from parabench import __version__
from parabench.analysis.compare.gate import compare
from parabench.analysis.compare.sides import side_of
from parabench.analysis.environment.diff import check_alike, session_differences
from parabench.analysis.session import SessionData, select_session, select_sessions
from parabench.analysis.text import format
from parabench.errors import UsageError
from parabench.machine.machine import Machine, environment
from parabench.plan.plan import TrainingPlan
from parabench.pytest_plugin.judged import Judged
from parabench.pytest_plugin.suite_run import SuiteRun
from parabench.store.results import Results, load
from parabench.store.store import split


@dataclass(frozen=True, kw_only=True)
class StoredBase:
    """A store, read before anything is launched, so that one which is also written to never answers with this run's own
    session. `named` is the session that the user chose, if any. `allowance` is what sessions are taken to differ by
    where the store does not tell it; `changed` names what differs and is to be judged."""

    results: Results
    named: str | None
    allowance: float
    changed: tuple[str, ...]

    @classmethod
    def read(cls, text: str, allowance: float, changed: tuple[str, ...]) -> StoredBase:
        """The store that `text` names. Raises pytest.UsageError where it has no such session."""
        try:
            path, named = split(text)
            results = load(path)
            select_session(results, named)
        except UsageError as error:
            raise pytest.UsageError(f"parabench: --parabench-baseline: {format.error_line(error)}") from error
        return cls(results=results, named=named, allowance=allowance, changed=changed)

    def judge(self, run: SuiteRun, tolerance: float, alpha: float) -> Judged:
        """Measure the suite's cases here and compare them with those of the store. Raises UsageError."""
        base, unselected = self.session_of(run.planned.suite), run.unselected()
        self.check(base, run.plan, run.machine)
        candidate = run.measured()
        comparison = compare(base, candidate, tolerance, alpha, self.changed, unselected, self.allowance)
        title = f"{run.planned.suite}: {comparison.candidate} against {comparison.base} of {base.results.path}"
        return Judged(comparison, candidate, title, unselected)

    def session_of(self, suite: str) -> SessionData:
        """The session to compare `suite` with: the newest finished one of that suite.

        Where the user named one by id or label, the newest of that name, of the suite if there is one. Raises
        UsageError when there is none.
        """
        path = self.results.path
        sessions = select_sessions(self.results, self.results.listed["id"].tolist())
        if self.named is None:
            among = [each for each in sessions if each.finished_utc is not None]
        else:
            by_id = [each for each in sessions if str(each.id) == self.named]
            among = by_id or [each for each in sessions if each.label == self.named]
        same = [each for each in among if each.suite == suite and each.kind == "training"]
        if not same and self.named is None:
            there = format.listed(dict.fromkeys(each.suite for each in among), most=len(among)) or "none at all"
            raise UsageError(
                f"baseline {path} holds no finished session of suite {suite!r}, only of {there}; measure it there, "
                f"or name a session: {path}@SESSION"
            )
        return side_of(self.results, (same or among)[-1].id, "base")

    def check(self, base: SessionData, plan: TrainingPlan, machine: Machine) -> None:
        """Raise UsageError for what `compare` would refuse, as far as it is known before anything is launched."""
        here = environment(machine)
        planned = replace(base.session, version=__version__, environment=here, plan=plan.to_dict())
        devices = {str(device) for device in base.launches["device"]}
        check_alike(list(session_differences(base.session, planned, devices)), self.changed, "--parabench-changed")
        if not {case.id for case in plan.cases} & set(base.cases_by_id.index):
            raise UsageError(
                f"no case of this run is in {base.session.name} of {self.results.path}, so nothing can be judged; "
                "select the cases that it has, or measure these there first"
            )
