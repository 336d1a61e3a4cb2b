"""Plan and measure a suite for pytest: its selected cases, together and once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from parabench.analysis.compare.sides import side_of
from parabench.analysis.session import SessionData
from parabench.cluster.participants import Participants
from parabench.machine.machine import Machine
from parabench.plan.case import Case
from parabench.plan.protocol import LAUNCHES_DEFAULT, Protocol
from parabench.plan.suite import Suite
from parabench.report import build
from parabench.session.request import Planned, TrainingRequest, plan_training
from parabench.session.resume import REPORT_NAME, resume_command
from parabench.session.session import lead_session
from parabench.signals import STOPPED
from parabench.store.results import load
from parabench.store.store import STORE_NAME


def plan_suite(request: TrainingRequest, suite: Suite, machine: Machine) -> Planned[Case, Protocol]:
    """Plan a suite without racing. Cases share launches only if rounds are requested. Raises UsageError."""
    planned = plan_training(request, suite, machine, turns=bool(request.options.get("rounds")))
    protocol = planned.plan.protocol
    if not protocol.races:
        return planned
    return replace(planned, plan=planned.plan.replace(protocol=protocol.replace(launches=LAUNCHES_DEFAULT)))


def measure(
    request: TrainingRequest, planned: Planned[Case, Protocol], selected: tuple[Case, ...], machine: Machine
) -> SessionData:
    """Measure the selected cases in a session of their own and write its report.

    Ends pytest if the session is stopped. Raises UsageError.
    """
    cases = tuple(case for case in planned.plan.cases if case in selected)
    planned = replace(planned, plan=planned.plan.replace(cases=cases))
    code, session = lead_session(request, planned, machine, Participants(), Console())
    path = request.out / STORE_NAME
    if code == STOPPED:
        pytest.exit(f"every finished launch is kept; resume: {resume_command(path)}", returncode=STOPPED)
    results = load(path)
    build.write_report(results, path.with_name(REPORT_NAME), str(session))
    return side_of(results, session, "candidate")
