"""Suites as pytest items: `pytest suites/ --benchmark-json=out.json`.

A suite is a Python file that imports from parabench and declares CASES. Its cases become items. All selected cases of a
suite are launched when the first of them runs; each item then passes its recorded step times to pytest-benchmark. In
pedantic mode a round reads the timer exactly twice, so a timer that returns 0, t0, 0, t1, ... yields them as results.
"""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from parabench.errors import UsageError

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from parabench.analysis.session import SessionData
    from parabench.plan.case import Case
    from parabench.plan.protocol import Protocol
    from parabench.records import Declared
    from parabench.session.request import Planned, TrainingRequest

# The statements of a suite, in this order.
_SUITE = re.compile(r"^from parabench import\b.*?^CASES\s*[:=]", re.MULTILINE | re.DOTALL)

# The help of --rounds under pytest, where configurations are not raced by default.
ROUNDS = "interleaved rounds of the configurations that share a launch (default: 0: each has its own launches)"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `parabench run`."""
    group = parser.getgroup("parabench", "distributed training suites")
    group.addoption("--parabench-out", default="parabench-results", metavar="DIR", help="for store and report")
    for each in _of_launches().values():
        more: dict[str, Any] = {"action": "store_true", "default": None}
        if each.type is not bool:
            more = {"type": each.type, "metavar": each.field.metavar or each.type.__name__.upper()}
        text = ROUNDS if each.field.option == "--rounds" else each.field.help
        group.addoption(_option(each), help=text.replace("%", "%%"), **more)
    group.addoption("--parabench-set", action="append", default=[], metavar="AXIS=V1,V2", help="values for an axis")


def _of_launches() -> dict[str, Declared]:
    """Return the options of launches, without those of traces and racing, which only `parabench run` has."""
    from parabench.plan.fields import option_fields
    from parabench.plan.protocol import Protocol

    return {name: each for name, each in option_fields(Protocol).items() if not each.field.role or name == "rounds"}


def _option(each: Declared) -> str:
    return f"--parabench-{each.field.option.removeprefix('--')}"


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect suite files. Ordinary test modules are left to pytest."""
    if any(fnmatch(file_path.name, pattern) for pattern in parent.config.getini("python_files")):
        return None
    if file_path.suffix != ".py" or not _is_suite(file_path.read_text(encoding="utf-8", errors="replace")):
        return None
    collector: pytest.Collector = SuiteFile.from_parent(parent, path=file_path)
    return collector


def _is_suite(source: str) -> bool:
    """Return whether a file imports from parabench and declares CASES itself, not in a string that it writes."""
    if not _SUITE.search(source):  # most files, which need not be parsed
        return False
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError):  # reported with its place when it is loaded
        return True
    lines = source.split("\n")
    return bool(_SUITE.search("\n".join(lines[each.lineno - 1] for each in statements)))


class SuiteFile(pytest.File):
    """One suite. Its selected cases are launched together, once."""

    planned: Planned[Case, Protocol]
    # {case id: its step times, or why it failed}
    _outcomes: dict[str, list[float] | str] | None = None

    def collect(self) -> Iterator[pytest.Item]:
        """Yield an item for each case; cases that this machine cannot run, perhaps all of them, are skipped.

        Raises CollectError for a suite that is wrong on every machine, and for values of options that are.
        """
        from parabench.machine.machine import this_machine
        from parabench.plan.plan import NothingToRun
        from parabench.plan.suite import load_suite
        from parabench.pytest_plugin.suite_run import plan_suite

        if not self.config.pluginmanager.hasplugin("benchmark"):
            raise self.CollectError(
                "parabench: pytest-benchmark is needed for the cases of a suite; install it, and leave out "
                "-p no:benchmark"
            )
        try:
            self.planned = plan_suite(self.request(), load_suite(str(self.path)), this_machine())
            cases, skipped = self.planned.plan.cases, self.planned.plan.skipped
        except NothingToRun as nothing:
            cases, skipped = (), nothing.skipped
        except UsageError as error:
            raise self.CollectError(f"parabench: {_line(error)}") from error
        for case in cases:
            yield CaseItem.of(self, case, None)
        for each in skipped:
            yield CaseItem.of(self, each.case, each.reason)

    def request(self) -> TrainingRequest:
        """The options as a run's request."""
        from parabench.session.request import TrainingRequest

        config = self.config
        given = {name: config.getoption(_option(each)) for name, each in _of_launches().items()}
        return TrainingRequest.of(
            suite=str(self.path),
            argv=["pytest", *map(str, config.invocation_params.args)],
            axes=tuple(config.getoption("--parabench-set")),
            out=Path(config.getoption("--parabench-out")),
            **given,
        )

    def step_times(self, case: Case) -> list[float]:
        """Return the stored step times of `case`, in seconds. Fail the test if one of its launches is not ok."""
        if self._outcomes is None:
            try:
                self._outcomes = self._run()
            except UsageError as error:
                self._outcomes = {each.id: f"parabench: {_line(error)}" for each in self.planned.plan.cases}
        outcome = self._outcomes[case.id]
        if isinstance(outcome, str):
            pytest.fail(outcome, pytrace=False)
        return outcome

    def _run(self) -> dict[str, list[float] | str]:
        """Measure the selected cases. Raises UsageError."""
        from parabench.machine.machine import this_machine
        from parabench.pytest_plugin.suite_run import measure

        items = [item for item in self.session.items if isinstance(item, CaseItem)]
        selected = tuple(item.case for item in items if item.parent is self)
        return _read(measure(self.request(), self.planned, selected, this_machine()))


class CaseItem(pytest.Function):
    """One case of a suite."""

    case: Case
    # What the benchmark's clock tells: 0, t0, 0, t1, ...
    readings: deque[float]

    @classmethod
    def of(cls, parent: SuiteFile, case: Case, skipped: str | None) -> CaseItem:
        """Return the item for `case`, skipped if there is a reason."""
        item: CaseItem = cls.from_parent(parent, name=case.id, callobj=measured_steps)
        item.case = case
        item.readings = deque()
        item.add_marker(pytest.mark.benchmark(timer=item.readings.popleft), append=False)
        # If its launches failed, there is nothing to time.
        item.add_marker(pytest.mark.filterwarnings("ignore:Benchmark fixture was not used at all"))
        if skipped is not None:
            item.add_marker(pytest.mark.skip(reason=skipped))
        return item


def measured_steps(request: pytest.FixtureRequest, benchmark: BenchmarkFixture) -> None:
    """Step time: the slowest rank's time, every measured step of every launch."""
    item = request.node
    assert isinstance(item, CaseItem)
    assert isinstance(item.parent, SuiteFile)
    durations = item.parent.step_times(item.case)
    item.readings.extend(reading for duration in durations for reading in (0.0, duration))
    benchmark.extra_info["case"] = item.case.to_dict()
    # The ranks did the work before.
    benchmark.pedantic(lambda: None, rounds=len(durations), iterations=1)


def _line(error: object) -> str:
    """Return an error as one line without control characters."""
    from parabench.analysis import format

    return format.error_line(error)


def _read(measured: SessionData) -> dict[str, list[float] | str]:
    """Return {case id: its step times, or why it failed} of a session.

    If configurations were interleaved, their step times come from the shared launches only.
    """
    from parabench.store.record import FIRST_BLOCK, Status

    launches = measured.results.launch
    launches = launches[launches["block"] >= FIRST_BLOCK]
    steps = measured.results.steps.merge(launches, left_on="launch_id", right_on="id")
    compared = {str(case): set(group) for case, group in measured.timed.groupby("case")["launch_id"]}
    outcomes: dict[str, list[float] | str] = {}
    for case, group in steps.groupby("case_id"):
        counts = group["launch_id"].isin(compared.get(str(case)) or group["launch_id"])
        outcomes[str(case)] = group.loc[counts, "step_s"].tolist()
    failed = launches[launches["status"] != Status.OK]
    for row in failed.to_dict("records"):
        outcomes[str(row["case_id"])] = _line(f"{row['status']}: {row['error']}")
    return outcomes
