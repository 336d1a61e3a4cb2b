"""Joining a process group whose collectives run through an algorithm, and leaving it so that the process can end."""

from __future__ import annotations

import gc
from collections.abc import Collection
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from parabench.collectives import is_backends
from parabench.collectives.algorithm import Algorithm, make
from parabench.collectives.process_group import BACKEND, AlgorithmGroup, groups
from parabench.errors import UsageError
from parabench.machine import accelerator


def join(
    *,
    algorithm: str,
    backend: str,
    rank: int,
    world_size: int,
    ranks_per_node: int | None,
    store: Store,
    timeout_s: float,
) -> None:
    """Make this process `rank` of the default group over `backend` ("gloo" or "nccl"), which uses `algorithm`.

    Every further group (`new_group`, the dimensions of a mesh) uses it too. Ranks meet in `store`. Raises UsageError
    for an algorithm that is not there.
    """
    compare_meshes_by_groups()
    name = backend
    if not is_backends(algorithm):
        use(algorithm, backend, ranks_per_node)
        name = BACKEND
    # No device_id, of NCCL's own either: a bound group makes every other one by splitting its communicator, DeviceMesh
    # past our algorithm, and has unbatched sends and receives wait for one another (ProcessGroupNCCL, eagerInit_).
    dist.init_process_group(name, store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout_s))


def use(algorithm: str, backend: str, ranks_per_node: int | None = None) -> None:
    """For a script of one's own: call it before `dist.init_process_group("parabench")`, which then makes a group over
    `backend` ("gloo" or "nccl") that uses `algorithm`, "ring" or "module:name"; DDP, FSDP2 and tensor parallel need no
    other change. `ranks_per_node` is for algorithms that know nodes. End with `leave()`, when the model is gone.

    Raises UsageError for an algorithm that is not there, or is the backend's own.
    """
    if is_backends(algorithm):
        raise UsageError(f"algorithm {algorithm!r} is the backend's own; use dist.init_process_group({backend!r})")
    register(make(algorithm, ranks_per_node), backend)


def register(algorithm: Algorithm, inner: str) -> None:
    """Make `algorithm` over backend `inner` the one behind backend "parabench" in this process."""

    def create(options: Any, _: object) -> AlgorithmGroup:
        rank, size, timeout = options.group_rank, options.group_size, options.timeout
        if inner == "nccl":
            nccl = dist.ProcessGroupNCCL(options.store, rank, size, nccl_options(options))
            return AlgorithmGroup(nccl, ProcessGroup.BackendType.NCCL, rank, size, algorithm)
        gloo = dist.ProcessGroupGloo(options.store, rank, size, timeout)
        return AlgorithmGroup(gloo, ProcessGroup.BackendType.GLOO, rank, size, algorithm)

    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", accelerator.TYPE])


def nccl_options(asked: Any) -> Any:
    """What c10d gives to a group of NCCL's own that is made as `asked`, so that ranks, names and the flight recorder's
    entries of sub-groups are told apart; and streams of high priority: short kernels of ours wait for each message."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = asked.timeout
    options.group_name = asked.group_id
    options.global_ranks_in_group = asked.global_ranks_in_group
    options.is_high_priority_stream = True
    return options


@cache
def compare_meshes_by_groups() -> None:
    """Make device meshes over different process groups unequal in this process.

    torch compares meshes by their ranks and names only, and DTensor caches the layout of an operation's result with the
    mesh. Without this, the second training run in a process would communicate by the algorithm of the first (torch
    2.13: DeviceMesh.__eq__, ShardingPropagator).
    """
    equal: Any = DeviceMesh.__eq__
    hash_of: Any = DeviceMesh.__hash__

    def groups_of(mesh: DeviceMesh) -> tuple[str, ...]:
        return tuple(getattr(mesh, "_dim_group_names", ()))

    def by_groups(mesh: DeviceMesh, other: object) -> bool:
        if not isinstance(other, DeviceMesh) or groups_of(mesh) != groups_of(other):
            return False
        return bool(equal(mesh, other))

    DeviceMesh.__eq__ = by_groups  # type: ignore[method-assign]
    DeviceMesh.__hash__ = lambda mesh: hash((hash_of(mesh), groups_of(mesh)))  # type: ignore[method-assign]


# More process groups than a case makes.
NAMES = 1_000_000


class WorldGroups:
    """The group of the first ranks once for each number of them and algorithm, over the default group's `backend`:
    cases that take turns in a process each find theirs as the default one."""

    def __init__(self, backend: str, timeout_s: float) -> None:
        self._backend, self._timeout = backend, timedelta(seconds=timeout_s)
        self._first = default_group()
        # Who waits over NCCL keeps a kernel on its device, and a core, busy.
        self._waiting = self._first if backend == "gloo" else dist.new_group(backend="gloo", timeout=self._timeout)
        self._made: dict[tuple[int, str, int | None], tuple[Algorithm | None, ProcessGroup]] = {}
        self._place: int | None = None
        self._names: dict[int | None, int] = {}

    def use(self, place: int, *, ranks: int, algorithm: str, ranks_per_node: int | None) -> None:
        """Make the group of the first `ranks` by `algorithm` the default one, and it that of every further group, for
        the case at `place`. All of these ranks must ask for it, and no other may. Raises UsageError for an algorithm
        that is not there."""
        self._name_from(place)
        if is_backends(algorithm) and ranks == self._first.size():
            self._set(self._first)
            return
        key = ranks, algorithm, ranks_per_node
        if key not in self._made:
            self._set(self._first)
            made, name = None, self._backend
            if not is_backends(algorithm):
                made, name = make(algorithm, ranks_per_node), BACKEND
                register(made, self._backend)
            self._made[key] = made, dist.new_group(range(ranks), backend=name, timeout=self._timeout)
        known, group = self._made[key]
        if known is not None:
            register(known, self._backend)
        self._set(group)

    def barrier(self) -> None:
        """Wait, asleep, for all ranks, whatever group they use; for what their devices still do it does not."""
        dist.barrier(self._waiting)

    def _name_from(self, place: int) -> None:
        """torch names groups by counting them, and ranks meet under these names: each case has its own numbers, for
        ranks do not make the groups of cases that they take no part in."""
        world = dist.distributed_c10d._world
        self._names[self._place] = world.group_count
        world.group_count = self._names.setdefault(place, (place + 1) * NAMES)
        self._place = place

    def close(self) -> None:
        """Make the group that was joined the default one again, as `leave` needs it."""
        self._made.clear()
        self._set(self._first)

    def _set(self, group: ProcessGroup) -> None:
        dist.distributed_c10d._update_default_pg(group)


def known_groups() -> set[ProcessGroup]:
    """Every group that this process is in."""
    return set(dist.distributed_c10d._world.pg_map)


def check_groups(device: torch.device, backend: str, algorithm: str, others: Collection[ProcessGroup] = ()) -> None:
    """Raise RuntimeError where a process group would not do on `device` what the case says: by `algorithm` over
    `backend`.

    A library may make groups of its own. Beside NCCL, gloo is let pass: it carries what lies in host memory, when a
    strategy asks for it by name, and torch makes no such group by itself. `others` are of other cases.
    """
    for group in known_groups().difference(others):
        try:
            found = group._get_backend(device).name()
        except RuntimeError:  # it serves no tensor of that device
            continue
        if found != backend and (found != "gloo" or group is dist.group.WORLD):
            raise RuntimeError(
                f"process group {group.group_name} ({group.group_desc}) of the strategy runs on {found}, and the case "
                f"says {backend}: make it with dist.new_group and no backend, and meshes with DeviceMesh.from_group"
            )
        if found == "nccl" and not is_backends(algorithm) and not isinstance(group, AlgorithmGroup):
            raise RuntimeError(
                f"process group {group.group_name} ({group.group_desc}) of the strategy runs {found}'s own algorithms, "
                f"and the case says {algorithm}: make it with dist.new_group, and give init_process_group no device_id"
            )


def default_group() -> ProcessGroup:
    """The group that a collective uses which is given none."""
    found: ProcessGroup = dist.distributed_c10d._get_default_group()
    return found


def calls(of: ProcessGroup | None = None) -> dict[str, dict[str, Any]]:
    """What this process' groups did, or one of them: {op: {"algorithm", "calls", "bytes"}}, with the algorithm that
    really ran. Over NCCL `enqueue_s` too, the seconds in which the callers' threads gave its kernels to the device."""
    total: dict[str, dict[str, Any]] = {}
    for group in groups if of is None else [each for each in groups if each is of]:
        for op, count in group.calls.items():
            sums = total.setdefault(op, {"algorithm": count["algorithm"], "calls": 0, "bytes": 0})
            sums["calls"] += count["calls"]
            sums["bytes"] += count["bytes"]
            if "enqueue_s" in count:
                sums["enqueue_s"] = sums.get("enqueue_s", 0.0) + count["enqueue_s"]
    return total


def barrier(backend: str, device: torch.device) -> None:
    """Wait for all ranks of the default group over `backend`; `device` is this rank's.

    NCCL's is an all-reduce of one element, and on which device it has to be told: else it takes the first one that it
    was used with, or guesses from the rank (ProcessGroupNCCL.cpp, guessDeviceId), and ranks of another node may wait
    on a communicator that nobody else makes.
    """
    if backend == "nccl":
        dist.barrier(device_ids=[device.index])
    else:
        dist.barrier()


def leave() -> None:
    """Destroy the process groups and everything that would still use them; without it the process aborts at exit."""
    for group in groups:
        group.stop()
    groups.clear()
    dist.destroy_process_group()
    gc.collect()
