"""The session's rendezvous store, which node 0 keeps from the first launch to the last."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import TCPStore

from parabench.cluster.network import Route, is_ours, listen_route
from parabench.cluster.topology import Topology
from parabench.errors import UsageError
from parabench.launch.store_client import CONNECT

# Where the store says whose it is, before any prefix.
ID_KEY = "parabench/id"

WARNING = (
    "warning: c10d has no authentication: whoever reaches these ports can read and change what the ranks compute; keep "
    "them within a network that you trust"
)


def host(site: Topology, say: Callable[[str], None]) -> tuple[Any, Route] | None:
    """Open the store when this is node 0, and say what listens where; None when it is another node.

    Raises UsageError when the port cannot be had.
    """
    if site.node is not None and site.node > 0:
        return None
    if site.node is None and not is_ours(site.host):
        return None
    way = listen_route(site)
    family = socket.AF_INET6 if ":" in way.address else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((way.address, site.port))
        listening.listen()
    except OSError as error:
        listening.close()
        if site.node is None and error.errno == errno.EADDRINUSE:
            return None  # another process of this host was first: that is node 0
        raise UsageError(
            f"node 0 cannot listen on {way.address} port {site.port}: {error.strerror}; give another port in "
            "--rdzv-endpoint, on every node"
        ) from error
    store = TCPStore(
        way.address,
        site.port,
        None,
        True,
        CONNECT,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )
    store.set(ID_KEY, site.run_id)
    if way.interface != "lo":
        where = f"interface {way.interface}" if way.interface else "every interface"
        say(f"node 0 listens on {way.address} port {site.port} (rendezvous), and each rank on ports of {where}")
        say(WARNING)
    return store, way
