"""The team of one launch on several nodes: whom this node's ranks and agents meet, and below which keys."""

from __future__ import annotations

from collections.abc import Callable

from parabench.cluster.network import Route
from parabench.cluster.topology import Topology
from parabench.launch.context import Abort, LaunchContext
from parabench.launch.meeting import RendezvousPoint
from parabench.launch.spec import LaunchSpec
from parabench.launch.store_client import StoreClient


def team_of(
    order: LaunchSpec,
    number: int,
    *,
    node: int,
    site: Topology,
    address: str,
    way: Route,
    word: Abort,
    tell: Callable[[str], None],
) -> LaunchContext:
    """Node `node`'s view of the launch that is order `number`. The store is at `address`, and this node in the network
    by `way`. The team has a line of its own, to be ended with the launch."""
    prefix = f"launch/{number}/"
    return LaunchContext(
        node=node,
        nodes=order.nodes,
        ranks_per_node=order.ranks_per_node,
        environment=way.environment(),
        meeting=RendezvousPoint(address, site.port, f"{site.prefix}/{prefix}", order.nodes, order.ranks_per_node),
        line=StoreClient(address, site.port, site.prefix),
        prefix=prefix,
        word=word,
        tell=tell,
    )
