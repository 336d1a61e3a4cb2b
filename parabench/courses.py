"""Which course each kind of launch takes, for a node that is told to launch."""

from __future__ import annotations

from pathlib import Path

from parabench.case import Case
from parabench.cluster.order import Order
from parabench.collective_case import CollectiveCase
from parabench.collective_launcher import collective_course
from parabench.launcher import training_course
from parabench.links.measure import link_course
from parabench.links.protocol import LinkProtocol
from parabench.part import Course


def course_of(order: Order, traces: Path) -> Course:
    """What this node's ranks do of the order; those that write traces leave them in `traces`, on their own node."""
    case = order.case
    if isinstance(case, CollectiveCase):
        return collective_course(case, order.protocol)
    assert isinstance(case, Case)
    if isinstance(order.protocol, LinkProtocol):
        return link_course(case, order.protocol)
    return training_course(case, order.protocol, traces)
