"""Launches that must succeed."""

from __future__ import annotations

from parabench.launch.launcher import launch
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.store.record import Launch, Status

DEADLINE_S = 120.0


def launched(case: Case, protocol: Protocol) -> Launch:
    """Launch a case once. Raises RuntimeError if the launch fails."""
    done = launch(LaunchSpec.of(case, protocol, deadline_s=DEADLINE_S))
    if done.status is not Status.OK:
        raise RuntimeError(f"{case.label}: {done.status}: {done.failure}")
    return done
