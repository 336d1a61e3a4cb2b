"""The session's rendezvous store: node 0 keeps it from the first launch to the last, and all others connect to it."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch._C._distributed_c10d import TCPStore

from parabench.cluster.network import LOOPBACK, Route, addresses_of, is_ours, listen_route, route_to
from parabench.cluster.secret import Secret
from parabench.cluster.topology import RUN_ID_LETTERS, Topology
from parabench.cluster.waiting import Waiting
from parabench.errors import UsageError
from parabench.launch.rendezvous import LaunchContext, RendezvousPoint
from parabench.launch.spec import LaunchSpec
from parabench.launch.store_client import CONNECT, StoreClient, StoreLost

# The key of the session's name.
ID_PREFIX, ID_KEY = "parabench", "id"

# The longest attempt to connect to the store, and the time between two, in seconds.
TRY_S, TRY_EVERY_S = 3.0, 0.25

WARNING = (
    "warning: c10d has no authentication: whoever reaches these ports can read and change what the ranks compute; keep "
    "them within a network that you trust"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStore:
    """The store at `address`:`port` with the keys of `session`, which this process reaches by `route`.

    Members sign their values with the `secret`, if they have one. On node 0, `server` is the store itself.
    """

    address: str
    port: int
    session: str
    route: Route
    secret: Secret | None = None
    server: Any = None

    def client(self) -> StoreClient:
        """Return a new connection."""
        return StoreClient(self.address, self.port, f"{ID_PREFIX}/{self.session}")

    def context(self, spec: LaunchSpec, number: int, node_rank: int, tell: Callable[[str], None]) -> LaunchContext:
        """Return the context of node `node_rank` in launch `number`."""
        prefix = f"{ID_PREFIX}/{self.session}/launch/{number}"
        return LaunchContext(
            node_rank=node_rank,
            num_nodes=spec.nodes,
            local_world_size=spec.ranks_per_node,
            environment=self.route.environment(),
            rendezvous=RendezvousPoint(self.address, self.port, prefix, spec.nodes, spec.ranks_per_node),
            tell=tell,
        )


def open_store(topology: Topology, log: Callable[[str], None]) -> SharedStore | None:
    """Open the store if this is node 0, and log what listens where; return `None` on other nodes.

    Raises UsageError if the port is not available.
    """
    if topology.node or (topology.node is None and not is_ours(topology.host)):
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
    at = route.address, topology.port
    server = TCPStore(*at, None, True, CONNECT, wait_for_workers=False, master_listen_fd=listening.detach())
    server.set(f"{ID_PREFIX}/{ID_KEY}", topology.run_id)
    if route.interface != LOOPBACK:
        where = f"interface {route.interface}" if route.interface else "every interface"
        log(f"node 0 listens on {route.address} port {topology.port} (rendezvous), and each rank on ports of {where}")
        log(WARNING)
    return SharedStore(address=route.address, port=topology.port, session=topology.run_id, route=route, server=server)


def reach_store(topology: Topology, waiting: Waiting) -> SharedStore:
    """Return the store as soon as it answers, and log the reasons now and then.

    Raises StoreLost with the last reason when the time is up, UsageError if the store is another session's.
    """
    while True:
        why = f"{topology.host} resolves to no address"
        for address in addresses_of(topology.host):
            # torch would print a warning for each failure.
            try:
                socket.create_connection((address, topology.port), timeout=TRY_S).close()
            except OSError as error:
                why = f"{address} port {topology.port}: {error.strerror or error}"
                continue
            client, listens = StoreClient(address, topology.port, ID_PREFIX), f"what listens at {topology.endpoint}"
            try:
                there = client.call("get", ID_KEY, timeout_s=TRY_S).decode(errors="replace")[:RUN_ID_LETTERS]
            except StoreLost as lost:
                # Node 0 may be paused, or about to start.
                why = f"{listens} ({address}) does not answer as a session of parabench does: {lost}"
                continue
            finally:
                client.end()
            if there != topology.run_id:
                raise UsageError(
                    f"{listens} has --rdzv-id {there!a}, and this node {topology.run_id}; give all nodes the same"
                )
            route = route_to(address, topology.port, topology.interface, topology.local_addr)
            return SharedStore(address=address, port=topology.port, session=topology.run_id, route=route)
        line = f"waiting for node 0 at {topology.endpoint}, {waiting.left_s:.0f} s at most ({why})"
        waiting.still(line)
        if not waiting.left_s:
            raise StoreLost(why)
        time.sleep(TRY_EVERY_S)
