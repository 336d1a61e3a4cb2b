"""The session's rendezvous store: member 0 keeps it from the first launch to the last, and all others reach it.

What torch elastic opens listens on every interface, does not say whose it is, and ends with one run.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch._C._distributed_c10d import TCPStore

from parabench.cluster.network import Route, addresses_of, is_ours, listen_route, route_to
from parabench.cluster.secret import Secret
from parabench.cluster.topology import Topology
from parabench.cluster.waiting import Waiting
from parabench.errors import UsageError
from parabench.launch.rendezvous import LaunchContext, RendezvousPoint
from parabench.launch.spec import LaunchSpec
from parabench.launch.store_client import CONNECT, StoreClient, StoreLost

# Where the store says whose it is.
ID_PREFIX, ID_KEY = "parabench", "id"

# How long one try to reach the store may take, and how often it is tried.
TRY_S, TRY_EVERY_S = 3.0, 0.25

WARNING = (
    "warning: c10d has no authentication: whoever reaches these ports can read and change what the ranks compute; keep "
    "them within a network that you trust"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStore:
    """The store at `address`:`port`, where the keys of `session` are, as this process reaches it by `route`; what its
    members hand over there they sign with the `secret`, if they have one. `server` lives as long as this does, where
    the store is kept here."""

    address: str
    port: int
    session: str
    route: Route
    secret: Secret | None = None
    server: Any = None

    @property
    def prefix(self) -> str:
        """Below which keys the session lives."""
        return f"{ID_PREFIX}/{self.session}"

    def client(self) -> StoreClient:
        """A connection of its own."""
        return StoreClient(self.address, self.port, self.prefix)

    def context(self, spec: LaunchSpec, number: int, node_rank: int, tell: Callable[[str], None]) -> LaunchContext:
        """Node `node_rank`'s view of launch `number`."""
        prefix = f"{self.prefix}/launch/{number}"
        return LaunchContext(
            node_rank=node_rank,
            num_nodes=spec.nodes,
            local_world_size=spec.ranks_per_node,
            environment=self.route.environment(),
            rendezvous=RendezvousPoint(self.address, self.port, prefix, spec.nodes, spec.ranks_per_node),
            tell=tell,
        )


def open_store(topology: Topology, log: Callable[[str], None]) -> SharedStore | None:
    """Open the store when this is node 0, and say what listens where; None when it is another node.

    Raises UsageError when the port cannot be had.
    """
    if topology.node is not None and topology.node > 0:
        return None
    if topology.node is None and not is_ours(topology.host):
        return None
    route = listen_route(topology.host, topology.interface, topology.local_addr)
    family = socket.AF_INET6 if ":" in route.address else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((route.address, topology.port))
        listening.listen()
    except OSError as error:
        listening.close()
        if topology.node is None and error.errno == errno.EADDRINUSE:
            return None  # another process of this host was first: that is node 0
        raise UsageError(
            f"node 0 cannot listen on {route.address} port {topology.port}: {error.strerror}; give another port in "
            "--rdzv-endpoint, on every node"
        ) from error
    server = TCPStore(
        route.address,
        topology.port,
        None,
        True,
        CONNECT,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )
    server.set(f"{ID_PREFIX}/{ID_KEY}", topology.run_id)
    if route.interface != "lo":
        where = f"interface {route.interface}" if route.interface else "every interface"
        log(f"node 0 listens on {route.address} port {topology.port} (rendezvous), and each rank on ports of {where}")
        log(WARNING)
    return SharedStore(address=route.address, port=topology.port, session=topology.run_id, route=route, server=server)


def reach_store(
    topology: Topology, waiting: Waiting, line: Callable[[str], str], check: Callable[[StoreClient], Any]
) -> SharedStore:
    """The store, as soon as it answers to `check(client)`. Meanwhile `line(why)` is said now and then, with the
    reason of the last try; with that StoreLost is raised when the time is up."""
    while True:
        why = f"{topology.host} resolves to no address"
        for address in addresses_of(topology.host):
            # A quiet try: torch would write a warning for each.
            try:
                socket.create_connection((address, topology.port), timeout=TRY_S).close()
            except OSError as error:
                why = f"{address} port {topology.port}: {error.strerror or error}"
                continue
            client = StoreClient(address, topology.port, ID_PREFIX)
            try:
                check(client)
            except StoreLost as lost:
                # It may be paused, or be about to begin.
                listens = f"what listens at {topology.endpoint} ({address})"
                why = f"{listens} does not answer as a session of parabench does: {lost}"
                continue
            finally:
                client.end()
            route = route_to(address, topology.port, topology.interface, topology.local_addr)
            return SharedStore(address=address, port=topology.port, session=topology.run_id, route=route)
        waiting.still(partial(line, why))
        if not waiting.left_s:
            raise StoreLost(why)
        time.sleep(TRY_EVERY_S)
