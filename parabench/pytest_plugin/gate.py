"""The gate under pytest: each test of a suite is judged by its case's row of a comparison with a base, which lies in a
store (`stored_base`) or takes turns with what is here (`measured_base`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import click
import pytest

from parabench.analysis.compare.between import ALLOWANCE
from parabench.analysis.compare.rule import ALPHA, REGRESSIONS, TOLERANCE, Verdict
from parabench.analysis.text import compare as compare_text
from parabench.analysis.text import format
from parabench.commands.options import ALPHAS, Fraction
from parabench.plan.case import Case
from parabench.pytest_plugin.judged import Judged
from parabench.pytest_plugin.measured_base import AGAINST, MeasuredBase
from parabench.pytest_plugin.stored_base import StoredBase
from parabench.pytest_plugin.suite_run import SuiteRun

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

# What `--parabench-NAME` takes, and what stands where it is not given.
NUMBERS: dict[str, tuple[click.ParamType[Any], Any]] = {
    "tolerance": (Fraction(), TOLERANCE),
    "alpha": (ALPHAS, ALPHA),
    "between-sessions": (Fraction(), ALLOWANCE),
}
COLOURS = {Verdict.NO_REGRESSION: "green", Verdict.INCONCLUSIVE: "yellow", Verdict.REGRESSION: "red"}


def make_gate(config: pytest.Config) -> Gate:
    """The gate that the options ask for, its base looked at. Raises pytest.UsageError."""
    numbers = {}
    for name, (kind, default) in NUMBERS.items():
        given = config.getoption(f"--parabench-{name}")
        try:
            numbers[name] = default if given is None else kind.convert(given, None, None)
        except click.BadParameter as error:
            raise pytest.UsageError(f"--parabench-{name}: {error.message}") from error
    side = config.getoption(AGAINST)
    base: Base
    if side is not None:
        base = MeasuredBase.found(side)
    else:
        changed = tuple(config.getoption("--parabench-changed") or ())
        base = StoredBase.read(config.getoption("--parabench-baseline"), numbers["between-sessions"], changed)
    return Gate(
        base=base,
        strict=config.getoption("--parabench-inconclusive") == "fail",
        tolerance=numbers["tolerance"],
        alpha=numbers["alpha"],
    )


class Base(Protocol):
    """What suites are compared with."""

    def judge(self, run: SuiteRun, tolerance: float, alpha: float) -> Judged:
        """Measure the suite's cases here and compare them. Raises UsageError; ends pytest when stopped."""
        ...


@dataclass(eq=False, kw_only=True)
class Gate:
    """Compares suites with a base, and says at the end of pytest what came of it. `strict`: a test that does not rule
    out a slowdown of the tolerance fails."""

    base: Base
    tolerance: float
    alpha: float
    strict: bool
    judged: list[Judged] = field(default_factory=list)
    inconclusive: set[str] = field(default_factory=set)

    def judge(self, run: SuiteRun, suites: int) -> Judged:
        """Measure and compare a suite. All `suites` of this run share the accepted rate of false alarms evenly."""
        judged = self.base.judge(run, self.tolerance, self.alpha / suites)
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
