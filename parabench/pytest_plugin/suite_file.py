"""Collect a suite as pytest items, one for each case, and measure them.

All selected cases of a suite are launched when the first of them runs; each item then passes its recorded step times to
pytest-benchmark. In pedantic mode a round reads the timer exactly twice, so a timer that returns 0, t0, 0, t1, ...
yields them as results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from parabench.analysis import format
from parabench.analysis.compare.sides import side_of
from parabench.analysis.session import SessionData
from parabench.cluster.topology import Participants
from parabench.errors import UsageError
from parabench.machine import machine
from parabench.plan.case import Case
from parabench.plan.plan import NothingToRun
from parabench.plan.protocol import LAUNCHES_DEFAULT, Protocol
from parabench.pytest_plugin import launch_options, option_of
from parabench.report import build
from parabench.session.request import Planned, Request, plan_training
from parabench.session.resume import REPORT_NAME, resume_command
from parabench.session.session import lead_session
from parabench.signals import STOPPED
from parabench.store.record import FIRST_REPETITION, Status
from parabench.store.results import load, records
from parabench.store.store import STORE_NAME

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture


class SuiteFile(pytest.File):
    """A suite file. Its selected cases are launched once, together."""

    planned: Planned[Case, Protocol]

    def collect(self) -> Iterator[pytest.Item]:
        """Yield an item for each case. Cases that this machine cannot run are skipped.

        Raises CollectError if the suite or an option is invalid on every machine.
        """
        if not self.config.pluginmanager.hasplugin("benchmark"):
            raise self.CollectError(
                "parabench: pytest-benchmark is needed for the configurations of a suite; install it, and leave out "
                "-p no:benchmark"
            )
        try:
            # Without racing. Cases share launches only if rounds are requested.
            request = self.request
            turns = bool(request.options.get("rounds"))
            self.planned = plan_training(request, machine.this_machine(), turns=turns)
            protocol = self.planned.plan.protocol
            if protocol.races:
                plan = self.planned.plan.replace(protocol=protocol.replace(launches=LAUNCHES_DEFAULT))
                self.planned = replace(self.planned, plan=plan)
            cases, skipped = self.planned.plan.cases, self.planned.plan.skipped
        except NothingToRun as nothing:
            cases, skipped = (), nothing.skipped
        except UsageError as error:
            raise self.CollectError(f"parabench: {format.error_line(error)}") from error
        for case in cases:
            yield CaseItem.of(self, case, None)
        for each in skipped:
            yield CaseItem.of(self, each.case, each.reason)

    @property
    def request(self) -> Request:
        """The request of `parabench run` with the options of this pytest run."""
        config, options = self.config, launch_options()
        return Request.of(
            suite=str(self.path),
            argv=["pytest", *map(str, config.invocation_params.args)],
            axes=tuple(config.getoption("--parabench-set")),
            out=Path(config.getoption("--parabench-out")),
            **{name: config.getoption(option_of(each)) for name, each in options.items()},
        )

    @cached_property
    def outcomes(self) -> dict[str, list[float] | str]:
        """The step times in seconds of each selected case, or the reason of its failure, by case id.

        On first use, all cases are measured in one session with a report. If the session is stopped, pytest ends.
        """
        items = [item for item in self.session.items if isinstance(item, CaseItem)]
        selected = {item.case.id for item in items if item.parent is self}
        plan, request = self.planned.plan, self.request
        cases = tuple(case for case in plan.cases if case.id in selected)
        planned = replace(self.planned, plan=plan.replace(cases=cases))
        try:
            code, session = lead_session(request, planned, machine.this_machine(), Participants(), Console())
            path = request.out / STORE_NAME
            if code == STOPPED:
                pytest.exit(f"every finished launch is kept; resume: {resume_command(path)}", returncode=STOPPED)
            results = load(path)
            build.write_report(results, path.with_name(REPORT_NAME), str(session))
            return _read(side_of(results, session, "candidate"))
        except UsageError as error:
            return dict.fromkeys(selected, f"parabench: {format.error_line(error)}")


class CaseItem(pytest.Function):
    """One case of a suite."""

    case: Case
    # The readings of the benchmark's timer: 0, t0, 0, t1, ...
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
    """Pass the measured steps of all launches of a case to pytest-benchmark, each as long as its slowest rank."""
    item = request.node
    assert isinstance(item, CaseItem)
    assert isinstance(item.parent, SuiteFile)
    outcome = item.parent.outcomes[item.case.id]
    if isinstance(outcome, str):
        pytest.fail(outcome, pytrace=False)
    item.readings.extend(reading for duration in outcome for reading in (0.0, duration))
    benchmark.extra_info["case"] = item.case.to_dict()
    # The ranks have measured the steps before.
    benchmark.pedantic(lambda: None, rounds=len(outcome), iterations=1)


def _read(measured: SessionData) -> dict[str, list[float] | str]:
    """Return {case id: step times in seconds, or the reason of the failure}.

    If configurations were interleaved, their step times come from the shared launches only.
    """
    launches = measured.results.launch
    launches = launches[launches["repetition"] >= FIRST_REPETITION]
    steps = measured.results.steps.merge(launches, left_on="launch_id", right_on="id")
    compared = {str(case): set(group) for case, group in measured.timed.groupby("case")["launch_id"]}
    outcomes: dict[str, list[float] | str] = {}
    for case, group in steps.groupby("case_id"):
        counts = group["launch_id"].isin(compared.get(str(case)) or group["launch_id"])
        outcomes[str(case)] = group.loc[counts, "step_s"].tolist()
    for row in records(launches[launches["status"] != Status.OK]):
        outcomes[str(row["case_id"])] = format.error_line(f"{row['status']}: {row['error']}")
    return outcomes
