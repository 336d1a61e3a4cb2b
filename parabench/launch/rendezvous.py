"""The nodes of one launch, the rendezvous store where its ranks meet, and aborts."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from time import perf_counter
from typing import Any

from torch._C._distributed_c10d import HashStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

BACKEND = "parabench"

# The ranks of one node communicate over loopback. NCCL would take a name without "=" for the beginning of a name.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}

# The longest attempt to connect to a rendezvous store.
CONNECT = timedelta(seconds=10)

# The reasons to abort a launch.
FAILED, HUNG, STOP, LOST = "failed", "hung", "stop", "lost"
# The same texts, to check a reason from another node.
REASONS = {each: each for each in (FAILED, HUNG, STOP, LOST)}

# The number of requests for the time of node 0. The request with the fastest reply gives the best estimate of a clock
# (Cristian, "Probabilistic clock synchronization", 1989).
ROUNDS = 8


def open_store(address: str) -> TCPStore:
    """Return a new rendezvous store that listens on a free port of an address."""
    listening = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    listening.bind((address, 0))
    listening.listen()
    port = listening.getsockname()[1]
    return TCPStore(address, port, None, True, CONNECT, wait_for_workers=False, master_listen_fd=listening.detach())


@dataclass(frozen=True, slots=True)
class RendezvousPoint:
    """The address of the rendezvous store of one launch, and the numbers of nodes and ranks that use it."""

    address: str
    port: int
    nodes: int
    ranks_per_node: int

    def store(self, timeout_s: float) -> Any:
        """Connect a rank to the rendezvous store."""
        store = TCPStore(self.address, self.port, None, False, CONNECT, wait_for_workers=False)
        store.set_timeout(timedelta(seconds=timeout_s))
        return store

    def context(self, node: int, environment: Mapping[str, str], tell: Callable[[str], None]) -> LaunchContext:
        """Return the context of a node in this launch."""
        return LaunchContext(
            node_rank=node,
            num_nodes=self.nodes,
            local_world_size=self.ranks_per_node,
            environment=environment,
            rendezvous=self,
            tell=tell,
        )

    def clock_offset(self, store: Any, rank: int) -> dict[str, float] | None:
        """Return {"offset_s": seconds to add to this node's clock to get node 0's, "error_s": its largest error}.

        Each rank calls this, but only the first rank of each node takes part; None on the others. The error is half of
        the shortest round trip.
        """
        node, local_rank = divmod(rank, self.ranks_per_node)
        if local_rank:
            return None
        if node == 0:
            for other in range(1, self.nodes):
                for round_ in range(ROUNDS):
                    store.get(f"clock/{other}/{round_}/asked")
                    store.set(f"clock/{other}/{round_}/told", json.dumps(perf_counter()))
            return {"offset_s": 0.0, "error_s": 0.0}
        best = (float("inf"), 0.0)
        for round_ in range(ROUNDS):
            asked = perf_counter()
            store.set(f"clock/{node}/{round_}/asked", "")
            theirs = json.loads(store.get(f"clock/{node}/{round_}/told"))
            came = perf_counter()
            best = min(best, ((came - asked) / 2, theirs - (asked + came) / 2))
        return {"offset_s": best[1], "error_s": best[0]}


@dataclass(slots=True, kw_only=True)
class LaunchContext:
    """The part of one node in a launch. Another thread of the driver or the agent may abort it."""

    node_rank: int = 0
    num_nodes: int = 1
    local_world_size: int  # the number of ranks on each node
    environment: Mapping[str, str] = field(default_factory=lambda: LOOPBACK)  # environment variables of the ranks
    rendezvous: RendezvousPoint | None = None  # None if the launch has one node
    tell: Callable[[str], None] = lambda reason: None  # informs the other nodes why this node's ranks have failed
    aborted_by: str | None = None  # the reason of the first abort
    _act: Callable[[str], None] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def first_rank(self) -> int:
        """The number of this node's first rank among all ranks of the launch."""
        return self.node_rank * self.local_world_size

    def abort(self, reason: str) -> None:
        """End this node's ranks because of `reason`. Only the first abort counts."""
        with self._lock:
            if self.aborted_by is not None:
                return
            self.aborted_by, act = reason, self._act
        if act is not None:
            act(reason)

    @contextmanager
    def on_abort(self, act: Callable[[str], None]) -> Iterator[None]:
        """Let an abort call `act(reason)` during the block, in the thread that aborts; at once after an abort."""
        with self._lock:
            self._act, reason = act, self.aborted_by
        if reason is not None:
            act(reason)
        try:
            yield
        finally:
            with self._lock:
                self._act = None


class NoBarrier(HashStore):
    """A store without waits, so that torch elastic's agents do not wait for one another after their ranks have ended.

    The coordinator collects the results of all nodes, and its wait reacts to signals and aborts.
    """

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        pass


# torch elastic's dynamic rendezvous would number the nodes again in every launch, and its wait ignores signals. Here,
# the agents of torch elastic receive the node numbers of the session.
class AgreedRendezvous(StaticTCPRendezvous):
    """torch elastic's static rendezvous without its store, so that no process listens on a port for it."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        context: LaunchContext = parameters.config["context"]
        point = context.rendezvous
        address, port = (point.address, point.port) if point else ("127.0.0.1", 0)
        super().__init__(address, port, context.node_rank, context.num_nodes, parameters.run_id, timeout=0)

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        where = RendezvousStoreInfo(self.master_addr, self.master_port)
        return RendezvousInfo(NoBarrier(), self.rank, self.world_size, where)
