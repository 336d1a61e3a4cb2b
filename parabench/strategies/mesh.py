"""The meshes of the recipes, made of process groups as `new_group` makes them: over the default group's own backend.

`init_device_mesh` makes others. Where the default group is gloo and CUDA is there, a dimension of all ranks gets a new
group `cpu:gloo,cuda:nccl` in torch 2.11 and 2.12, so that what is called gloo runs on NCCL. And where the default group
is bound to a device, NCCL's communicator is split into plain groups, past whatever algorithm the default group has
(torch/distributed/device_mesh.py, _init_one_process_group).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from parabench.strategies.base import RankInfo


def line(rank_info: RankInfo) -> DeviceMesh:
    """All ranks in one dimension. A collective call, as `grid` is."""
    return DeviceMesh.from_group(_world(), rank_info.device.type)


def grid(rank_info: RankInfo, inside: int, names: tuple[str, str]) -> DeviceMesh:
    """Groups of `inside` consecutive ranks, which are the second dimension; the first goes across them."""
    rows = torch.arange(rank_info.world_size).view(-1, inside)
    groups = [_mine(ranks.tolist(), name) for ranks, name in zip((rows.T, rows), names, strict=True)]
    return DeviceMesh.from_group(groups, rank_info.device.type, rows, mesh_dim_names=names)


def _mine(every: Sequence[list[int]], name: str) -> ProcessGroup:
    """This rank's of the groups of these ranks."""
    if len(every) == 1:
        return _world()
    group, _ = dist.new_subgroups_by_enumeration(list(every), group_desc=f"mesh_{name}")
    assert isinstance(group, ProcessGroup)
    return group


def _world() -> ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group
