"""Which course each kind of launch takes, for a node that is told to launch."""

from __future__ import annotations

from pathlib import Path

from parabench.launch.launcher import training_course
from parabench.launch.node import Course
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.protocol import LinkProtocol
from parabench.workloads.collectives_launch import collective_course
from parabench.workloads.links_launch import link_course


def course_of(order: LaunchSpec, traces: Path) -> Course:
    """What this node's ranks do of the order; those that write traces leave them in `traces`, on their own node."""
    case = order.case
    if isinstance(case, CollectiveCase):
        return collective_course(case, order.protocol)
    assert isinstance(case, Case)
    if isinstance(order.protocol, LinkProtocol):
        return link_course(case, order.protocol)
    return training_course(case, order.protocol, traces)
