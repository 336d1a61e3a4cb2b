"""FSDP2: every parameter is sharded over ranks; a unit is gathered before use and its gradient reduce-scattered.

Meshes are made of process groups as `new_group` makes them: over the default group's own backend. `init_device_mesh`
makes others. Where the default group is gloo and CUDA is there, a dimension of all ranks gets a new group
`cpu:gloo,cuda:nccl` in torch 2.11 and 2.12, so that what is called gloo runs on NCCL. And where the default group is
bound to a device, NCCL's communicator is split into plain groups, past whatever algorithm the default group has
(torch/distributed/device_mesh.py, _init_one_process_group).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from parabench.models.base import Model
from parabench.store.record import MIB
from parabench.strategies.base import ParallelModel, RankInfo, StrategyContext, local_part


def fsdp(model: Model, context: StrategyContext) -> ParallelModel:
    """Shard over all ranks, and free a unit's gathered parameters after its forward."""
    return sharded(model, context, flat_mesh(context), context.rank, context.world_size)


def zero2(model: Model, context: StrategyContext) -> ParallelModel:
    """ZeRO stage 2 as FSDP2 has it: what was gathered for forward is kept for backward, and gradients are
    reduce-scattered.

    Between steps parameters are sharded too, so that the optimizer works on shards alone; within a step every rank
    holds all of them. Against `fsdp` one of two all-gathers is saved, and paid for in memory.
    """
    return sharded(model, context, flat_mesh(context), context.rank, context.world_size, reshard=False)


def hsdp(model: Model, context: StrategyContext) -> ParallelModel:
    """Hybrid sharding: FSDP2 inside each node of `ranks_per_node` consecutive ranks, replicas across nodes.

    Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", 2023, section 3.2.2. Gathering
    stays on the fast links inside a node; only each rank's gradient shard is all-reduced across nodes.
    """
    mesh = grid_mesh(context, context.case.ranks_per_node or context.world_size, ("replicate", "shard"))
    return sharded(model, context, mesh, context.rank, context.world_size)


def sharded(
    model: Model, context: StrategyContext, mesh: DeviceMesh, data_rank: int, data_ranks: int, *, reshard: bool = True
) -> ParallelModel:
    """Shard unit by unit over `mesh`, then what is left (embeddings, final norm) as the root's.

    In mixed precision parameters are cast before they are gathered, so that half the bytes travel, and gradients
    are summed in float32.
    """
    policy = MixedPrecisionPolicy()
    if narrow := context.case.arithmetic.autocast:
        policy = MixedPrecisionPolicy(param_dtype=getattr(torch, narrow), reduce_dtype=torch.float32)
    units = group_blocks(model.blocks, context.case.bucket_cap)
    unit_bytes = [sum(_bytes(block) for block in unit) for unit in units]
    root_bytes = _bytes(model.module) - sum(unit_bytes)
    for unit in units:
        fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    root = fully_shard(model.module, mesh=mesh, mp_policy=policy, reshard_after_forward=None if reshard else False)
    return ParallelModel(
        module=model.module,
        data_rank=data_rank,
        data_ranks=data_ranks,
        gradient_sync=lambda last: _reducing(root, last or not context.case.no_sync),
        facts=lambda: {"unit_bytes": [*unit_bytes, root_bytes]},
    )


def _reducing(module: FSDPModule, reduces: bool) -> AbstractContextManager[Any]:
    module.set_requires_gradient_sync(reduces)
    return nullcontext()


def group_blocks(blocks: Sequence[nn.Module], bucket_mib: float | None) -> list[list[nn.Module]]:
    """Consecutive blocks, as many to a unit as fit into `bucket_mib`, at least one; None: one block per unit."""
    units: list[list[nn.Module]] = []
    filled = 0
    for block in dict.fromkeys(blocks):  # one that is used twice is sharded once
        size = _bytes(block)
        if units and bucket_mib is not None and filled + size <= bucket_mib * MIB:
            units[-1].append(block)
            filled += size
        else:
            units.append([block])
            filled = size
    return units


def _bytes(module: nn.Module) -> int:
    """Of what this rank has: under tensor parallel, its part of the layers."""
    return sum(local_part(parameter).nbytes for parameter in module.parameters())


def flat_mesh(rank_info: RankInfo) -> DeviceMesh:
    """All ranks in one dimension. A collective call, as `grid_mesh` is."""
    return DeviceMesh.from_group(_world(), rank_info.device.type)


def grid_mesh(rank_info: RankInfo, inside: int, names: tuple[str, str]) -> DeviceMesh:
    """Groups of `inside` consecutive ranks, which are the second dimension; the first goes across them."""
    rows = torch.arange(rank_info.world_size).view(-1, inside)
    groups = [_group_of_this_rank(ranks.tolist(), name) for ranks, name in zip((rows.T, rows), names, strict=True)]
    return DeviceMesh.from_group(groups, rank_info.device.type, rows, mesh_dim_names=names)


def _group_of_this_rank(every: Sequence[list[int]], name: str) -> ProcessGroup:
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
