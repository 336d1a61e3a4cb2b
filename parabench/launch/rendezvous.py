"""The participants of one launch, the place where its ranks and agents meet, and its end from outside.

torch elastic's dynamic rendezvous would number the nodes again in every launch, and its wait ignores signals. Here,
agents receive the numbers on which the nodes have agreed.
"""

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

# All traffic of ranks of one node stays on loopback. NCCL takes a bare name for the beginning of one.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}

# The longest attempt to connect to a rendezvous store.
CONNECT = timedelta(seconds=10)

# Why the ranks of a launch are ended before their time.
FAILED, HUNG, STOP, LOST = "failed", "hung", "stop", "lost"
# By the same text: only these come from another node.
REASONS = {each: each for each in (FAILED, HUNG, STOP, LOST)}

# The number of questions to node 0. The one with the fastest answer gives the best estimate of a clock (Cristian,
# "Probabilistic clock synchronization", 1989).
ROUNDS = 8


@dataclass(slots=True)
class Abort:
    """What ends a launch on this node from outside; the first reason counts."""

    reason: str | None = None
    _act: Callable[[str], None] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def set(self, reason: str) -> None:
        """End this node's ranks because of `reason`, once."""
        with self._lock:
            if self.reason is not None:
                return
            self.reason, act = reason, self._act
        if act is not None:
            act(reason)

    @contextmanager
    def on_abort(self, act: Callable[[str], None]) -> Iterator[None]:
        """Call `act(reason)` on an abort while the block runs, in the thread that aborts; at once after an abort."""
        with self._lock:
            self._act, reason = act, self.reason
        if reason is not None:
            act(reason)
        try:
            yield
        finally:
            with self._lock:
                self._act = None


def open_store(address: str) -> TCPStore:
    """Open a rendezvous store on a free port of an address."""
    listening = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    listening.bind((address, 0))
    listening.listen()
    port = listening.getsockname()[1]
    return TCPStore(address, port, None, True, CONNECT, wait_for_workers=False, master_listen_fd=listening.detach())


@dataclass(frozen=True, slots=True)
class RendezvousPoint:
    """The rendezvous store of one launch."""

    address: str
    port: int
    nodes: int
    ranks_per_node: int

    def store(self, timeout_s: float) -> Any:
        """Return the rendezvous store for one rank."""
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
        """Return {"offset_s", "error_s"}: the time to add to this host's clock for node 0's, and its largest error.

        Only the first rank of each node takes part; None for the others. The error is half of the shortest round trip.
        """
        node, local_rank = divmod(rank, self.ranks_per_node)
        if local_rank:
            return None
        if node == 0:
            for asking in range(1, self.nodes):
                for round_ in range(ROUNDS):
                    store.get(f"clock/{asking}/{round_}/asked")
                    store.set(f"clock/{asking}/{round_}/told", json.dumps(perf_counter()))
            return {"offset_s": 0.0, "error_s": 0.0}
        best = (float("inf"), 0.0)
        for round_ in range(ROUNDS):
            asked = perf_counter()
            store.set(f"clock/{node}/{round_}/asked", "")
            theirs = json.loads(store.get(f"clock/{node}/{round_}/told"))
            came = perf_counter()
            best = min(best, ((came - asked) / 2, theirs - (asked + came) / 2))
        return {"offset_s": best[1], "error_s": best[0]}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """A node's view of a launch. Without other nodes, `rendezvous` is None.

    `tell(reason)` reports a failure of this node's ranks to the other nodes.
    """

    node_rank: int = 0
    num_nodes: int = 1
    local_world_size: int
    environment: Mapping[str, str] = field(default_factory=lambda: LOOPBACK)
    rendezvous: RendezvousPoint | None = None
    abort: Abort = field(default_factory=Abort)
    tell: Callable[[str], None] = lambda reason: None

    @property
    def first_rank(self) -> int:
        """The first of this node's ranks."""
        return self.node_rank * self.local_world_size


class NoBarrier(HashStore):
    """A store without waits. In torch elastic's store, agents wait for one another after their ranks have ended. Here
    the coordinator gathers their results, and its wait reacts to signals and aborts."""

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        pass


class AgreedRendezvous(StaticTCPRendezvous):
    """torch elastic's static rendezvous without its store, so that nothing listens for it."""

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
