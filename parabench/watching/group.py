"""Connect the ranks of a watched loop, and join the records of their hosts.

A batch system may show each rank only its device and cores, so rank 0 assembles the record of each host.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from parabench.errors import UsageError
from parabench.launch.rendezvous import RendezvousPoint
from parabench.machine import gpus, host
from parabench.machine.accelerator import Gpu
from parabench.machine.machine import Machine, environment

# The seconds that a rank waits for the others: at the start, at the end, and if this rank failed. At the end, another
# rank may still write a checkpoint. If this rank failed, others have usually failed before.
ENTER_S, LEAVE_S, FAILED_S = 60.0, 120.0, 5.0
LOOK_S = 0.02

# torch's TCPStore disconnects a client that sends more than 8 MiB at once (TCPStoreLibUvBackend.cpp, MAX_PAYLOAD_LEN),
# the size of 70,000 steps as text.
PIECE_BYTES = 4 * 2**20

# Each use of `watch` in a process has separate keys. All ranks count the same uses.
_uses = itertools.count()


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of a training run, and the number of this rank.

    `hosts` has the host name of each rank. `store` is the rendezvous store, `None` for a single process.
    """

    store: Any
    rank: int
    hosts: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def nodes(self) -> int:
        return len(set(self.hosts))

    @property
    def ranks_per_node(self) -> int:
        return self.size // self.nodes

    @property
    def local_rank(self) -> int:
        return self.rank % self.ranks_per_node

    @classmethod
    def enter(cls) -> Group:
        """Return the ranks of torch's default process group. All ranks must call this.

        Raises UsageError if one does not call it within ENTER_S, or if hosts have different numbers of ranks.
        """
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
                f"watch: ranks {absent} of {size} did not enter the `with` block within {ENTER_S:g} s; every rank must"
            )
        hosts = tuple(store.get(name).decode() for name in names)
        group = cls(store, rank, hosts)
        runs = [len([*run]) for _, run in itertools.groupby(hosts)]
        if len(runs) != group.nodes or len(set(runs)) > 1:
            on = ", ".join(hosts)
            raise UsageError(f"watch: ranks are on the hosts {on}; each host must have equally many consecutive ranks")
        return group

    def clock_offset(self) -> dict[str, float] | None:
        """Return the offset of this host's clock to node 0, as `RendezvousPoint.clock_offset` does; `None` on one host.

        All ranks must call this.
        """
        if self.nodes == 1:
            return None
        return RendezvousPoint("", 0, self.nodes, self.ranks_per_node).clock_offset(self.store, self.rank)

    def send(self, value: Any) -> None:
        """Send a value of JSON to rank 0."""
        text = zlib.compress(json.dumps(value).encode(), level=1)
        pieces = [text[at : at + PIECE_BYTES] for at in range(0, len(text), PIECE_BYTES)]
        for at, piece in enumerate(pieces):
            self.store.set(f"found/{self.rank}/{at}", piece)
        self.store.set(f"found/{self.rank}", str(len(pieces)))

    def collect(self, timeout_s: float, hurried: Callable[[], bool]) -> list[Any]:
        """Return the values that ranks 1, 2, ... have sent to rank 0; `None` for a rank that sent none in time.

        Waits for `timeout_s`. As soon as `hurried` returns true, waits for FAILED_S more at most.
        """
        missing = await_keys(self.store, [f"found/{rank}" for rank in range(1, self.size)], timeout_s, hurried)
        return [None if f"found/{rank}" in missing else self._received(rank) for rank in range(1, self.size)]

    def _received(self, rank: int) -> Any:
        pieces = range(int(self.store.get(f"found/{rank}")))
        return json.loads(zlib.decompress(b"".join(self.store.get(f"found/{rank}/{at}") for at in pieces)))


def await_keys(
    store: Any, names: list[str], timeout_s: float, hurried: Callable[[], bool] = lambda: False
) -> list[str]:
    """Wait until a store has all keys, as long as `collect` does, and return the keys that are still missing.

    This polls, because Python does not handle signals while the store waits.
    """
    until = time.monotonic() + timeout_s
    while names := [name for name in names if not store.check([name])]:
        if time.monotonic() > until:
            break
        if hurried():
            until = min(until, time.monotonic() + FAILED_S)
        time.sleep(LOOK_S)
    return names


# -- the hosts --------------------------------------------------------------------------------------------------------

# The values that `describe_rank` returns.
About = Mapping[str, Any]


def describe_rank(group: Group, machine: Machine) -> dict[str, Any]:
    """Return the cores and the device of this rank. The first rank of a host adds the environment of the host."""
    about: dict[str, Any] = {"cores": sorted(os.sched_getaffinity(0)), "core_limit": host.core_limit()}
    about["devices_reason"] = machine.gpus_reason
    if machine.gpus:
        used = machine.gpus[group.local_rank % len(machine.gpus)]  # as `rank.device_of` does
        record = gpus.describe([used])
        about["used"] = asdict(used)
        about["record"] = {"reasons": record["driver"]["reasons"], **record["gpus"][0]}
    if group.local_rank == 0:
        shown = machine.gpus[: group.ranks_per_node]
        about["environment"] = environment(replace(machine, gpus=shown))
        about["shown"] = [_address(gpu) for gpu in shown]
    return about


def machine_of(abouts: Sequence[About], machine: Machine, group: Group) -> Machine:
    """Return `machine`, rank 0's host, with the cores and devices of all its ranks, which `abouts` describe."""
    used = used_devices(abouts)
    unread = next((each["devices_reason"] for each in abouts if "used" in each and each["devices_reason"]), None)
    return replace(
        machine,
        cores=cores_of(abouts),
        gpus=tuple(gpu for gpu, _ in used),
        gpus_reason=unread if used else machine.gpus_reason,
        nodes=group.nodes,
        ranks_per_node=group.ranks_per_node,
    )


def environment_of(abouts: Sequence[About]) -> dict[str, Any]:
    """Return the environment of a host, with the cores and devices of all its ranks, which `abouts` describe."""
    found: dict[str, Any] = dict(abouts[0]["environment"]) | {"cores": cores_of(abouts)}
    used = used_devices(abouts)
    if used and [_address(gpu) for gpu, _ in used] != abouts[0]["shown"]:
        found["gpus"] = [record | {"index": gpu.index} for gpu, record in used]
        found["links"] = {"matrix": None, "reasons": {"all": "the ranks of this host have different devices"}}
    return found


def cores_of(abouts: Sequence[About]) -> int:
    """Return the number of cores that the ranks of a host use together. mpirun and srun bind each rank to some."""
    bound, limit = len({core for about in abouts for core in about["cores"]}), abouts[0]["core_limit"]
    return bound if limit is None else max(1, min(bound, round(limit)))


def used_devices(abouts: Sequence[About]) -> list[tuple[Gpu, dict[str, Any]]]:
    """Return the devices that the ranks of a host use, and the record of each, in the order of ranks.

    If NVML shows ranks different devices under the same number, they are numbered in the order of their addresses.
    """
    used: dict[str, tuple[Gpu, dict[str, Any]]] = {}
    for about in abouts:
        if "used" in about:
            gpu = Gpu(**about["used"])
            used[_address(gpu)] = gpu, about["record"]
    if len({gpu.index for gpu, _ in used.values()}) < len(used):
        addresses = sorted(used)
        used = {at: (replace(gpu, index=addresses.index(at)), record) for at, (gpu, record) in used.items()}
    return [*used.values()]


def _address(gpu: Gpu) -> str:
    """Return the PCI address of a device, or its number if the address is unknown."""
    return gpu.address or f"device {gpu.index}"
