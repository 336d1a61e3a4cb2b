"""The gate under pytest: `pytest suites/ --parabench-baseline STORE[@SESSION]`.

A suite is compared, after its cases were launched, with the session of the same suite in the baseline. What can be
known before is said before: a baseline that is not there at pytest's start, one that cannot be compared with at the
suite's first test, so that no long run is lost to a typo.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import click
import pytest

from parabench import __version__
from parabench.analysis.compare.between import ALLOWANCE
from parabench.analysis.compare.gate import CaseResult, Comparison, compare
from parabench.analysis.compare.rule import ALPHA, REGRESSIONS, TOLERANCE, Outcome, Verdict
from parabench.analysis.compare.sides import side_of
from parabench.analysis.environment.diff import check_alike, session_differences
from parabench.analysis.session import SessionData, select_session
from parabench.analysis.text import compare as compare_text
from parabench.analysis.text import format
from parabench.commands.options import ALPHAS, Fraction
from parabench.errors import UsageError
from parabench.machine.machine import Machine, environment
from parabench.plan.case import Case
from parabench.plan.plan import TrainingPlan
from parabench.store.results import Results, load
from parabench.store.store import split

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

# What `--parabench-NAME` takes, and what stands where it is not given.
NUMBERS: dict[str, tuple[click.ParamType[float], float]] = {
    "tolerance": (Fraction(), TOLERANCE),
    "alpha": (ALPHAS, ALPHA),
    "between-sessions": (Fraction(), ALLOWANCE),
}
COLOURS = {Verdict.NO_REGRESSION: "green", Verdict.INCONCLUSIVE: "yellow", Verdict.REGRESSION: "red"}


def make_gate(config: pytest.Config) -> Gate:
    """The gate that the options ask for, with its baseline read. Raises pytest.UsageError."""
    numbers = {}
    for name, (kind, default) in NUMBERS.items():
        given = config.getoption(f"--parabench-{name}")
        try:
            numbers[name] = default if given is None else float(kind.convert(given, None, None))
        except click.BadParameter as error:
            raise pytest.UsageError(f"--parabench-{name}: {error.message}") from error
    try:
        path, session = split(config.getoption("--parabench-baseline"))
        results = load(path)
        select_session(results, session)
    except UsageError as error:
        raise pytest.UsageError(f"parabench: --parabench-baseline: {error}") from error
    return Gate(
        results=results,
        named=session,
        changed=tuple(config.getoption("--parabench-changed") or ()),
        strict=config.getoption("--parabench-inconclusive") == "fail",
        tolerance=numbers["tolerance"],
        alpha=numbers["alpha"],
        allowance=numbers["between-sessions"],
    )


@dataclass(frozen=True)
class Judged:
    """A suite that was compared. `unselected` are the ids of its cases that this run did not select."""

    comparison: Comparison
    title: str
    unselected: frozenset[str]

    @property
    def rows(self) -> dict[str, CaseResult]:
        """What became of each case, by its id."""
        return {row.case_id: row for row in self.comparison.rows}

    @property
    def broke(self) -> dict[str, str]:
        """{case id: what it was and is now} of the cases that now fail."""
        return {
            case: format.one_line(compare_text.line(row))
            for case, row in self.rows.items()
            if row.outcome is Outcome.BROKE
        }

    @property
    def blind(self) -> set[str]:
        """The cases in which a slowdown of the tolerance is not ruled out: their tests have not shown anything.

        Where nothing was judged at all, or what the baseline has is gone from the suite, it is all that ran: no test
        of its own could say so.
        """
        comparison = self.comparison
        rows = [row for row in comparison.rows if row.outcome not in REGRESSIONS]
        gone = any(row.not_judged and row.outcome is Outcome.ONLY_BASE for row in rows)
        if not comparison.judged or gone:
            return {row.case_id for row in rows}
        return {row.case_id for row in rows if row.not_judged or row.outcome is Outcome.UNCLEAR}

    def lines(self) -> list[str]:
        """Everything but the verdict and the cases that stayed the same; several that were not selected are one."""
        comparison = self.comparison
        unselected = [row.label for row in comparison.rows if row.case_id in self.unselected]
        lines = [*map(str, comparison.differences)]
        lines += [f"warning: {finding.message} {finding.advice}" for finding in comparison.findings]
        lines += [
            compare_text.line(row)
            for row in comparison.rows
            if row.case_id not in self.unselected and (row.outcome is not Outcome.SAME or row.case_id in self.blind)
        ]
        if unselected:
            which = format.listed(unselected, most=len(unselected))
            lines.append(f"only in base, because not selected in this run: {which}")
        return lines


@dataclass(eq=False, kw_only=True)
class Gate:
    """Compares suites with a baseline, and says at the end of pytest what came of it.

    `results` are the baseline's, read before anything is launched, so that a store which is also written to never
    answers with this run's own session. `named` is the session that the user chose, if any. `allowance` is what
    sessions are taken to differ by where the baseline does not tell it. `strict`: a test that does not rule out a
    slowdown of the tolerance fails.
    """

    results: Results
    named: str | None
    tolerance: float
    alpha: float
    allowance: float
    changed: tuple[str, ...]
    strict: bool
    judged: list[Judged] = field(default_factory=list)
    inconclusive: set[str] = field(default_factory=set)

    def base(self, suite: str) -> SessionData:
        """The baseline's session to compare `suite` with: the newest finished one of that suite.

        Where the user named one by id or label, the newest of that name, of the suite if there is one. Raises
        UsageError when there is none.
        """
        path = self.results.path
        sessions = [select_session(self.results, int(each)) for each in self.results.session["id"]]
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

    def judge(self, base: SessionData, candidate: SessionData, suites: int, unselected: Collection[Case]) -> Judged:
        """Compare a suite that ran. All `suites` of this run share the accepted rate of false alarms evenly."""
        left_out = frozenset(case.id for case in unselected)
        comparison = compare(
            base, candidate, self.tolerance, self.alpha / suites, self.changed, left_out, self.allowance
        )
        title = (
            f"{candidate.session.suite}: {candidate.session.name} against {base.session.name} of {base.results.path}"
        )
        judged = Judged(comparison, title, left_out)
        self.judged.append(judged)
        return judged

    def finish(self, item: pytest.Item, judged: Judged, case: Case) -> None:
        """Fail the test of a case that regressed, with what became of it; keep in mind one that shows nothing."""
        row = judged.rows[case.id]
        line = format.one_line(compare_text.line(row))
        item.user_properties.append(("parabench", line))
        if row.outcome in REGRESSIONS:
            pytest.fail(line, pytrace=False)
        if case.id in judged.blind:
            if self.strict:
                pytest.fail(f"inconclusive: {line}", pytrace=False)
            self.inconclusive.add(item.nodeid)

    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        """What shows nothing is counted apart from what passed; pytest's exit code stays 0."""
        if report.when == "call" and report.passed and report.nodeid in self.inconclusive:
            return "inconclusive", "?", ("INCONCLUSIVE", {"yellow": True})
        return None

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """The verdict of each suite, with what a person needs to weigh it."""
        for judged in self.judged:
            colour = {COLOURS[judged.comparison.verdict]: True}
            terminalreporter.section(format.one_line(f"parabench {judged.title}"), sep="-", **colour)
            terminalreporter.write_line(format.one_line(compare_text.sentence(judged.comparison)), **colour)
            for line in judged.lines():
                terminalreporter.write_line(format.one_line(line))
