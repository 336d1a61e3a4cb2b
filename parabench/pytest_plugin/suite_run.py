"""A suite as one run of pytest measures it: its selected cases, together and once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn

import pytest
from rich.console import Console

from parabench.analysis.compare.sides import side_of
from parabench.analysis.session import SessionData
from parabench.cluster.participants import Participants
from parabench.machine.machine import Machine
from parabench.plan.case import Case
from parabench.plan.plan import TrainingPlan
from parabench.plan.protocol import LAUNCHES_DEFAULT, Protocol
from parabench.plan.suite import Suite
from parabench.report import build
from parabench.session.request import Planned, TrainingRequest, plan_training
from parabench.session.resume import REPORT_NAME, resume_command
from parabench.session.session import lead_session
from parabench.signals import STOPPED
from parabench.store.results import load
from parabench.store.store import STORE_NAME


@dataclass(frozen=True, kw_only=True)
class SuiteRun:
    """A suite that pytest has collected: `planned` has all its cases, `selected` are those to measure."""

    suite: Suite
    request: TrainingRequest
    planned: Planned[Case, Protocol]
    selected: frozenset[Case]
    machine: Machine

    @cached_property
    def plan(self) -> TrainingPlan:
        """What is to be launched."""
        whole = self.planned.plan
        return replace(whole, cases=tuple(case for case in whole.cases if case in self.selected))

    def unselected(self) -> frozenset[str]:
        """The ids of the cases that the suite's file has and this run leaves out, by name or by --parabench-set."""
        whole = plan_suite(replace(self.request, axes=()), self.suite, self.machine).plan
        return frozenset(case.id for case in {*_cases(whole), *self.planned.plan.cases} - self.selected)

    def measured(self) -> SessionData:
        """Launch the cases in a session of their own, and write its report. Raises UsageError; ends pytest when
        stopped."""
        request, planned = self.request, replace(self.planned, plan=self.plan)
        code, session = lead_session(request, planned, self.machine, Participants(), Console())
        path = request.out / STORE_NAME
        if code == STOPPED:
            end_pytest(f"every finished launch is kept; resume: {resume_command(path)}")
        results = load(path)
        build.write_report(results, path.with_name(REPORT_NAME), str(session))
        return side_of(results, session, "candidate")


def plan_suite(request: TrainingRequest, suite: Suite, machine: Machine) -> Planned[Case, Protocol]:
    """The plan of a suite under pytest: with rounds its cases share launches, and nothing races. Raises UsageError."""
    planned = plan_training(request, suite, machine, turns=bool(request.options.get("rounds")))
    protocol = planned.plan.protocol
    if not protocol.races:
        return planned
    return replace(planned, plan=replace(planned.plan, protocol=replace(protocol, launches=LAUNCHES_DEFAULT)))


def end_pytest(line: str) -> NoReturn:
    """End pytest, which was asked to stop, and say how to go on."""
    pytest.exit(line, returncode=STOPPED)


def _cases(plan: TrainingPlan) -> Iterable[Any]:
    return (*plan.cases, *(skipped.case for skipped in plan.skipped))
