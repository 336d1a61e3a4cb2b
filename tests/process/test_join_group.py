"""The process groups of a rank: their backend, their meshes, and the comparison of replicas in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from parabench.collectives import join
from parabench.collectives.algorithm import make
from parabench.collectives.process_group import AlgorithmGroup
from parabench.errors import UsageError
from parabench.plan.case import Case
from parabench.plan.validate import check
from parabench.probes.replicas import fingerprints, replicas_apart
from parabench.strategies.base import RankInfo
from parabench.strategies.fsdp import flat_mesh, grid_mesh
from ranks_helpers import complaints_of_ranks, one_by_one
from trained_helpers import cpu_case


class Served:
    """A fake process group that has a backend for each device type."""

    group_name, group_desc = "7", "mesh_dim_0"

    def __init__(self, **backends: str) -> None:
        self._backends = backends

    def _get_backend(self, device: torch.device) -> Served:
        if device.type not in self._backends:
            raise RuntimeError(f"No backend type associated with device type {device.type}")
        self.found = self._backends[device.type]
        return self

    def name(self) -> str:
        return self.found


GLOO, NCCL, MIXED = {"cpu": "gloo", "cuda": "gloo"}, {"cuda": "nccl"}, {"cpu": "gloo", "cuda": "nccl"}
ON = r"7 \(mesh_dim_0\) of the strategy runs on {}, and the configuration has {}"


@pytest.mark.parametrize(
    ("first", "more", "device", "backend", "message"),
    [
        (GLOO, MIXED, "cuda:1", "gloo", ON.format("nccl", "gloo")),
        (GLOO, GLOO, "cuda:0", "nccl", "runs on gloo, and the configuration has nccl"),
        (GLOO, GLOO, "cuda:0", "gloo", None),
        (GLOO, MIXED, "cpu", "gloo", None),  # a CPU case on a machine with a device uses only the CPU
        (NCCL, MIXED, "cuda:0", "nccl", None),
        (NCCL, GLOO, "cuda:0", "nccl", None),  # made by name, for tensors in host memory
    ],
)
def test_groups_must_use_the_backend_of_the_case(first, more, device, backend, message, monkeypatch):
    groups = [Served(**first), Served(**more)]
    monkeypatch.setattr(dist.distributed_c10d, "_pg_map", dict.fromkeys(groups))
    monkeypatch.setattr(dist.distributed_c10d._world, "default_pg", groups[0])
    with nullcontext() if message is None else pytest.raises(RuntimeError, match=message):
        join.check_groups(torch.device(device), backend, "native")


def two_dimensions(rank: int, size: int) -> Iterator[str]:
    """Check that meshes of one and two dimensions use the same kind of group as the default group."""
    made: list[object] = []
    # Some versions of torch give the groups of a mesh another backend than the default group.
    setattr(DeviceMesh, "_init_process_groups", staticmethod(lambda *layout: made.append(layout)))  # noqa: B010
    here = RankInfo(rank, size, torch.device("cpu"))
    whole, split = flat_mesh(here), grid_mesh(here, 2, ("outer", "inner"))
    flat = grid_mesh(here, size, ("a", "b"))
    if whole.get_group() is not dist.group.WORLD or flat.get_group("b") is not dist.group.WORLD:
        yield "all ranks in one dimension are another group than the default one"
    expected = {"outer": [rank % 2, rank % 2 + 2], "inner": [rank // 2 * 2, rank // 2 * 2 + 1]}
    found = {name: dist.get_process_group_ranks(split.get_group(name)) for name in expected}
    if found != expected or (split["inner"].get_local_rank(), split["outer"].size()) != (rank % 2, 2):
        yield f"ranks are in {found}, not {expected}"
    alike = {type(each) for each in (dist.group.WORLD, split.get_group("outer"), split.get_group("inner"))}
    if alike != {AlgorithmGroup}:
        yield f"kinds of groups: {alike}"
    if made:
        yield f"groups that torch made by itself: {made}"
    join.check_groups(here.device, "gloo", "ring")


def replicas_of_shards(rank: int, size: int) -> Iterator[str]:
    """Check that replicas of a shard are compared, and that a shard without replicas has no checksum."""
    here = RankInfo(rank, size, torch.device("cpu"))
    mesh = grid_mesh(here, size // 2, ("replicate", "shard"))
    replicated = distribute_tensor(torch.arange(8.0), mesh, [Replicate(), Shard(0)])
    sharded = distribute_tensor(torch.arange(8.0), flat_mesh(here), [Shard(0)])
    if rank == size - 1:
        replicated.to_local()[0] += 1e-3
    every: list[Any] = [None] * size
    dist.all_gather_object(every, fingerprints({"replicated": replicated, "sharded": sharded}))
    names = [[*each] for each in every]
    if names != 2 * [["replicated (shard 1 of 2)"], ["replicated (shard 2 of 2)"]]:
        yield f"the checksums are named {names}"
    apart = {"parameter": "replicated (shard 2 of 2)", "ranks": [size - 1], "parameters": 1}
    if replicas_apart(every) != {"replicas_apart": apart}:
        yield f"{replicas_apart(every)} instead of {apart}"


def test_meshes_use_the_algorithm_and_replicas_are_compared(tmp_path: Path) -> None:
    case = Case(algorithm="ring", world_size=4, device="cpu", backend="gloo")
    checks = [(two_dimensions, ()), (replicas_of_shards, ())]
    assert complaints_of_ranks(one_by_one, case, tmp_path, checks) == [[]] * 4


@pytest.mark.parametrize("strategy", ["tp", "tp_ddp"])
def test_sequence_parallel_is_refused_for_cuda_over_gloo(strategy: str) -> None:
    case = cpu_case(strategy=strategy, world_size=4, sequence_parallel=True).replace(device="cuda")
    with pytest.raises(UsageError, match="gloo gathers no CUDA tensors; use backend nccl"):
        check(case)
    for changes in ({"backend": "nccl"}, {"algorithm": "ring"}, {"device": "cpu"}):
        check(case.replace(**changes))


def test_nccl_group_has_its_name_and_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them, sub-groups share a name, and use ranks of the group as global ranks."""
    made: list[Any] = []

    class Made:
        Options = SimpleNamespace

        def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
            made.append((rank, size, vars(options)))

    monkeypatch.setattr(dist, "ProcessGroupNCCL", Made, raising=False)
    monkeypatch.setattr(join, "AlgorithmGroup", lambda *arguments: arguments)
    created: list[Any] = []
    monkeypatch.setattr(dist.Backend, "register_backend", lambda name, create, **options: created.append(create))
    join.register(make("ring", None), "nccl")
    minute = timedelta(seconds=60)
    asked = SimpleNamespace(
        store=None, group_rank=1, group_size=2, timeout=minute, group_id="9", global_ranks_in_group=[1, 3]
    )
    created[0](asked, None)
    options = {"_timeout": minute, "group_name": "9", "global_ranks_in_group": [1, 3], "is_high_priority_stream": True}
    assert made == [(1, 2, options)]
