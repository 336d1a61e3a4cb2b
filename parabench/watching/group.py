"""The ranks of a watched loop. They hand their results to rank 0 over the process group's own store, so that nothing
else listens."""

from __future__ import annotations

import itertools
import json
import socket
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from parabench.errors import UsageError
from parabench.launch.rendezvous import RendezvousPoint

# How long a rank waits for the others: at the start they are all there soon, at the end one may still write a
# checkpoint. If this rank failed, others that failed with it have sent their results long before.
ENTER_S, LEAVE_S, FAILED_S = 60.0, 120.0, 5.0
LOOK_S = 0.02

# Torch's TCP store drops the connection of a client that sends more than 8 MiB at once (TCPStoreLibUvBackend.cpp,
# MAX_PAYLOAD_LEN), the size of 70,000 steps as text.
PIECE_BYTES = 4 * 2**20

# Each use of `watch` in a process has its own keys; all ranks count alike.
_uses = itertools.count()


@dataclass(frozen=True, slots=True)
class Group:
    """The processes that train together: `hosts` has the host's name of each, in order of ranks. `store` is None if
    there is only one process."""

    store: Any
    rank: int
    hosts: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def nodes(self) -> int:
        return len(dict.fromkeys(self.hosts))

    @property
    def ranks_per_node(self) -> int:
        return self.size // self.nodes

    @property
    def node(self) -> int:
        return self.rank // self.ranks_per_node

    @property
    def local_rank(self) -> int:
        return self.rank % self.ranks_per_node

    @classmethod
    def enter(cls) -> Group:
        """Return the default process group, whose ranks all call this. Raises UsageError if one does not, or if hosts
        have different numbers of ranks."""
        number = next(_uses)
        if not (dist.is_available() and dist.is_initialized()):
            return cls(None, 0, (socket.gethostname(),))
        store = c10d.PrefixStore(f"parabench/watch/{number}", c10d._get_default_store())
        rank, size = dist.get_rank(), dist.get_world_size()
        store.set(f"host/{rank}", socket.gethostname())
        names = [f"host/{each}" for each in range(size)]
        missing = await_keys(store, names, ENTER_S)
        if missing:
            absent = ", ".join(name.rpartition("/")[2] for name in missing)
            raise UsageError(
                f"watch: of {size} ranks {absent} did not enter it within {ENTER_S:g} s; every rank has to"
            )
        hosts = tuple(store.get(name).decode() for name in names)
        group = cls(store, rank, hosts)
        runs = [len([*run]) for _, run in itertools.groupby(hosts)]
        if len(runs) != group.nodes or len(set(runs)) > 1:
            on = ", ".join(hosts)
            raise UsageError(f"watch: ranks are on the hosts {on}; every host must have as many, and those in a row")
        return group

    def clock_offset(self) -> dict[str, float] | None:
        """Return how this host's clock differs from node 0's (`RendezvousPoint.clock_offset`). All ranks call this."""
        if self.nodes == 1:
            return None
        return RendezvousPoint("", 0, "", self.nodes, self.ranks_per_node).clock_offset(self.store, self.rank)

    def send(self, found: Mapping[str, Any]) -> None:
        """Send `found`, which JSON can hold, to rank 0."""
        text = zlib.compress(json.dumps(found).encode(), level=1)
        pieces = [text[at : at + PIECE_BYTES] for at in range(0, len(text), PIECE_BYTES)]
        for at, piece in enumerate(pieces):
            self.store.set(f"found/{self.rank}/{at}", piece)
        self.store.set(f"found/{self.rank}", str(len(pieces)))

    def collect(self, own: Mapping[str, Any], timeout_s: float, hurried: Callable[[], bool]) -> list[Any]:
        """Return at rank 0 what each rank sent, in order; `None` for a rank that did not within that time, or
        within FAILED_S once it is `hurried`."""
        missing = await_keys(self.store, [f"found/{rank}" for rank in range(1, self.size)], timeout_s, hurried)
        return [own, *(None if f"found/{rank}" in missing else self._of(rank) for rank in range(1, self.size))]

    def _of(self, rank: int) -> Any:
        pieces = range(int(self.store.get(f"found/{rank}")))
        return json.loads(zlib.decompress(b"".join(self.store.get(f"found/{rank}/{at}") for at in pieces)))


def await_keys(
    store: Any, names: list[str], timeout_s: float, hurried: Callable[[], bool] = lambda: False
) -> list[str]:
    """Wait until all keys are in a store. Return those that are not after `timeout_s`, or FAILED_S once it is
    `hurried`. It polls, because a wait of the store itself handles no signals."""
    until = time.monotonic() + timeout_s
    while names := [name for name in names if not store.check([name])]:
        if time.monotonic() > until:
            break
        if hurried():
            until = min(until, time.monotonic() + FAILED_S)
        time.sleep(LOOK_S)
    return names
