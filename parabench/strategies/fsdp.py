"""FSDP2: all parameters are sharded. Each unit is gathered before use, and its gradient is reduce-scattered."""

# Meshes are made from groups of `new_group`, which use the backend and algorithm of the default group.
# `init_device_mesh` may use NCCL although the default group is gloo (torch 2.11 and 2.12), and groups without the
# algorithm if the default group is bound to a device.

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from parabench.collectives.join import default_group
from parabench.models.base import Model
from parabench.store.record import MIB
from parabench.strategies.base import ParallelModel, RankInfo, StrategyContext, local_part


def fsdp(model: Model, context: StrategyContext) -> ParallelModel:
    """Shard all parameters over all ranks, and free the gathered parameters of a unit after its forward."""
    return sharded(model, context, flat_mesh(context), context.rank, context.world_size)


def zero2(model: Model, context: StrategyContext) -> ParallelModel:
    """Shard all parameters like `fsdp`, but keep gathered parameters until backward (ZeRO stage 2).

    This needs one all-gather instead of two, and more memory. Between steps, parameters are sharded, too.
    """
    return sharded(model, context, flat_mesh(context), context.rank, context.world_size, reshard=False)


def hsdp(model: Model, context: StrategyContext) -> ParallelModel:
    """Shard all parameters inside each node of `ranks_per_node` consecutive ranks, with replicas across nodes.

    Only gradient shards are all-reduced across nodes (hybrid sharding: Zhao et al., "PyTorch FSDP", 2023, section
    3.2.2).
    """
    mesh = grid_mesh(context, context.case.ranks_per_node, ("replicate", "shard"))
    return sharded(model, context, mesh, context.rank, context.world_size)


def sharded(
    model: Model, context: StrategyContext, mesh: DeviceMesh, data_rank: int, data_ranks: int, *, reshard: bool = True
) -> ParallelModel:
    """Shard the model with FSDP2 over `mesh`: each unit of blocks, then the rest (embeddings, final norm).

    In mixed precision, parameters are cast before they are gathered, and gradients are summed in float32.
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

    def gradient_sync(last: bool) -> AbstractContextManager[Any]:
        root.set_requires_gradient_sync(last or not context.case.no_sync)
        return nullcontext()

    return ParallelModel(
        module=model.module,
        data_rank=data_rank,
        data_ranks=data_ranks,
        gradient_sync=gradient_sync,
        facts=lambda: {"unit_bytes": [*unit_bytes, root_bytes]},
    )


def group_blocks(blocks: Sequence[nn.Module], bucket_mib: float | None) -> list[list[nn.Module]]:
    """Group consecutive blocks into units of at most `bucket_mib` MiB, and return the units.

    A larger block is a unit by itself. With None, each block is a unit.
    """
    units: list[list[nn.Module]] = []
    filled = 0
    for block in dict.fromkeys(blocks):  # a repeated block is sharded once
        size = _bytes(block)
        if units and bucket_mib is not None and filled + size <= bucket_mib * MIB:
            units[-1].append(block)
            filled += size
        else:
            units.append([block])
            filled = size
    return units


def _bytes(module: nn.Module) -> int:
    """Return the bytes of a module's parameters. For sharded parameters, only this rank's shards count."""
    return sum(local_part(parameter).nbytes for parameter in module.parameters())


def flat_mesh(rank_info: RankInfo) -> DeviceMesh:
    """Return a mesh of all ranks with one dimension. A collective call."""
    return DeviceMesh.from_group(default_group(), rank_info.device.type)


def grid_mesh(rank_info: RankInfo, inside: int | None, names: tuple[str, str]) -> DeviceMesh:
    """Return a mesh whose second dimension has `inside` consecutive ranks; None is all. A collective call."""
    rows = torch.arange(rank_info.world_size).view(-1, inside or rank_info.world_size)
    groups = []
    for name, lines in zip(names, (rows.T.tolist(), rows.tolist()), strict=True):
        group: Any = default_group()
        if len(lines) > 1:
            group, _ = dist.new_subgroups_by_enumeration(lines, group_desc=f"mesh_{name}")
        groups.append(group)
    return DeviceMesh.from_group(groups, rank_info.device.type, rows, mesh_dim_names=names)
