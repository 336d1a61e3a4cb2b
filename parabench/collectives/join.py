"""Join a process group whose collectives use an algorithm, and leave it so that the process can end."""

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

    All further groups use it, too. Raises UsageError if the algorithm does not exist.
    """
    compare_meshes_by_groups()
    name = backend
    if not is_backends(algorithm):
        use(algorithm, backend, ranks_per_node)
        name = BACKEND
    # Do not set device_id: further groups of a bound group are splits of its communicator, without the algorithm, and
    # its unbatched sends and receives block each other (ProcessGroupNCCL, eagerInit_).
    dist.init_process_group(name, store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout_s))


def use(algorithm: str, backend: str, ranks_per_node: int | None = None) -> None:
    """Let `dist.init_process_group("parabench")` of your script create a group over `backend` that uses `algorithm`.

    `algorithm` is "ring" or "module:name". At the end, delete the model and call `leave()`. Raises UsageError if the
    algorithm does not exist, or belongs to the backend.
    """
    if is_backends(algorithm):
        raise UsageError(f"algorithm {algorithm!r} belongs to the backend; use dist.init_process_group({backend!r})")
    register(make(algorithm, ranks_per_node), backend)


def register(algorithm: Algorithm, inner: str) -> None:
    """Let the backend "parabench" of this process use `algorithm` over `inner` ("gloo" or "nccl")."""

    def create(options: Any, _: object) -> AlgorithmGroup:
        rank, size = options.group_rank, options.group_size
        if inner == "gloo":
            gloo = dist.ProcessGroupGloo(options.store, rank, size, options.timeout)
            return AlgorithmGroup(gloo, ProcessGroup.BackendType.GLOO, rank, size, algorithm)
        given = dist.ProcessGroupNCCL.Options()
        given._timeout = options.timeout
        given.group_name = options.group_id
        given.global_ranks_in_group = options.global_ranks_in_group
        given.is_high_priority_stream = True
        nccl = dist.ProcessGroupNCCL(options.store, rank, size, given)
        return AlgorithmGroup(nccl, ProcessGroup.BackendType.NCCL, rank, size, algorithm)

    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", accelerator.TYPE])


@cache
def compare_meshes_by_groups() -> None:
    """Make device meshes over different process groups unequal in this process.

    torch compares only ranks and names, and DTensor caches layouts by mesh. Without this, the second training run in a
    process would use the algorithm of the first.
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


# A case creates fewer process groups than this.
NAMES = 1_000_000


class WorldGroups:
    """The process groups of interleaved cases over `backend`: one for each number of ranks and algorithm."""

    def __init__(self, backend: str, timeout_s: float) -> None:
        self._backend, self._timeout = backend, timedelta(seconds=timeout_s)
        self._first = default_group()
        # A wait over NCCL keeps a core and a kernel on the device busy.
        self._waiting = self._first if backend == "gloo" else dist.new_group(backend="gloo", timeout=self._timeout)
        self._made: dict[tuple[int, str, int | None], tuple[Algorithm | None, ProcessGroup]] = {}
        self._place: int | None = None
        self._names: dict[int | None, int] = {}

    def use(self, place: int, *, ranks: int, algorithm: str, ranks_per_node: int | None) -> None:
        """Make the group of the first `ranks` ranks with `algorithm` the default group.

        `place` is the index of the case in its launch. Exactly these ranks must call this. Raises UsageError if the
        algorithm does not exist.
        """
        # torch numbers groups, and ranks meet by number. A rank does not create groups of cases without this rank, so
        # the groups of each case have separate numbers.
        world = dist.distributed_c10d._world
        self._names[self._place] = world.group_count
        world.group_count = self._names.setdefault(place, (place + 1) * NAMES)
        self._place = place
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
        """Wait, without spinning, for all ranks, but not for their devices."""
        dist.barrier(self._waiting)

    def close(self) -> None:
        """Make the joined group the default group again, which `leave` requires."""
        self._made.clear()
        self._set(self._first)

    def _set(self, group: ProcessGroup) -> None:
        dist.distributed_c10d._update_default_pg(group)


def known_groups() -> set[ProcessGroup]:
    """Return all process groups of this process, the default group included."""
    return set(dist.distributed_c10d._world.pg_map)


def check_groups(device: torch.device, backend: str, algorithm: str, others: Collection[ProcessGroup] = ()) -> None:
    """Raise RuntimeError if a process group on `device` does not use `algorithm` over `backend`.

    Groups of gloo are allowed in addition to NCCL, for data in host memory. `others` are groups of other cases.
    """
    for group in known_groups().difference(others):
        try:
            found = group._get_backend(device).name()
        except RuntimeError:  # it does not support this device
            continue
        if found != backend and (found != "gloo" or group is dist.group.WORLD):
            raise RuntimeError(
                f"process group {group.group_name} ({group.group_desc}) of the strategy runs on {found}, and the "
                f"configuration has {backend}: make it with dist.new_group and no backend, and meshes "
                "with DeviceMesh.from_group"
            )
        if found == "nccl" and not is_backends(algorithm) and not isinstance(group, AlgorithmGroup):
            raise RuntimeError(
                f"process group {group.group_name} ({group.group_desc}) of the strategy runs {found}'s own algorithms, "
                f"and the configuration has {algorithm}: make it with dist.new_group, and give "
                "init_process_group no device_id"
            )


def default_group() -> ProcessGroup:
    """Return the default group."""
    found: ProcessGroup = dist.distributed_c10d._get_default_group()
    return found


def calls(of: ProcessGroup | None = None) -> dict[str, dict[str, Any]]:
    """Return {operation: {"algorithm", "calls", "bytes"}} of all groups of this process, or of one group.

    Over NCCL, `enqueue_s` is the time that callers needed to enqueue kernels.
    """
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
    """Wait for all ranks of the default group over `backend`. `device` is this rank's device."""
    # NCCL's barrier would guess a device, and ranks of another node may wait forever (ProcessGroupNCCL, guessDeviceId).
    if backend == "nccl":
        dist.barrier(device_ids=[device.index])
    else:
        dist.barrier()


def leave() -> None:
    """Stop all groups of this process and destroy them. Without this, the process aborts at exit."""
    for group in groups:
        group.stop()
    groups.clear()
    dist.destroy_process_group()
    gc.collect()
