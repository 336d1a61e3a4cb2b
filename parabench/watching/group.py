"""The ranks of a watched loop: who they are, and how they hand what they saw to rank 0, over the process group's own
store, so that nothing else listens."""

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

# How long a rank waits for the others: at the beginning all are there within moments, at the end one may still write a
# checkpoint. Where this rank failed, others that failed with it have said so long before.
ENTER_S, LEAVE_S, FAILED_S = 60.0, 120.0, 5.0
LOOK_S = 0.02

# Torch's TCP store drops the connection of whoever brings more than 8 MiB at once (TCPStoreLibUvBackend.cpp,
# MAX_PAYLOAD_LEN), which is what 70,000 steps take as text.
PIECE_BYTES = 4 * 2**20

# Each use in a process has keys of its own; all ranks count alike.
_uses = itertools.count()


@dataclass(frozen=True, slots=True)
class Group:
    """The processes that train together, in order of ranks: `hosts` has the host's name of each. `store` is None of one
    process alone."""

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
        """The default process group, whose ranks all call this. Raises UsageError where one does not, or where hosts
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
        each = group.ranks_per_node
        alike = all(len(set(hosts[first : first + each])) == 1 for first in range(0, size, each))
        if not alike or each * group.nodes != size:
            on = ", ".join(hosts)
            raise UsageError(f"watch: ranks are on the hosts {on}; every host must have as many, and those in a row")
        return group

    def clock_offset(self) -> dict[str, float] | None:
        """How this host's clock differs from node 0's, as `RendezvousPoint.clock_offset` tells it; a call of all
        ranks."""
        if self.nodes == 1:
            return None
        return RendezvousPoint("", 0, "", self.nodes, self.ranks_per_node).clock_offset(self.store, self.rank)

    def publish(self, what: str, told: Mapping[str, Any]) -> None:
        """Leave for other ranks what JSON can hold."""
        if self.store is None:
            return
        text = zlib.compress(json.dumps(told).encode(), level=1)
        pieces = [text[at : at + PIECE_BYTES] for at in range(0, len(text), PIECE_BYTES)]
        name = f"{what}/{self.rank}"
        for at, piece in enumerate(pieces):
            self.store.set(f"{name}/{at}", piece)
        self.store.set(name, str(len(pieces)))

    def _read(self, name: str) -> Any:
        """What a rank left, all of whose pieces are there."""
        pieces = range(int(self.store.get(name)))
        return json.loads(zlib.decompress(b"".join(self.store.get(f"{name}/{at}") for at in pieces)))

    def agree(self, what: str, own: str) -> str:
        """What the first rank to call this gave: all ranks get the same, and nobody waits."""
        return own if self.store is None else self.store.compare_set(f"{what}/agreed", "", own).decode()

    def collect(
        self, what: str, own: Mapping[str, Any], timeout_s: float, hurried: Callable[[], bool] = lambda: False
    ) -> list[Mapping[str, Any] | None]:
        """What each rank handed over, in order; None of one that did not within that time, or FAILED_S once it is
        `hurried`."""
        found: list[Mapping[str, Any] | None] = [own] * self.size
        if self.store is None:
            return found
        names = [f"{what}/{rank}" for rank in range(self.size) if rank != self.rank]
        missing = await_keys(self.store, names, timeout_s, hurried)
        for rank in range(self.size):
            name = f"{what}/{rank}"
            if rank != self.rank:
                found[rank] = None if name in missing else self._read(name)
        return found


def await_keys(
    store: Any, names: list[str], timeout_s: float, hurried: Callable[[], bool] = lambda: False
) -> list[str]:
    """Wait until all keys are in a store; which still are not after `timeout_s`, or FAILED_S once it is `hurried`. It
    asks again and again, because a wait of the store's own hears no signal."""
    until = time.monotonic() + timeout_s
    missing = list(names)
    while True:
        missing = [name for name in missing if not store.check([name])]
        if not missing or time.monotonic() > until:
            return missing
        if hurried():
            until = min(until, time.monotonic() + FAILED_S)
            hurried = bool  # once
        time.sleep(LOOK_S)
