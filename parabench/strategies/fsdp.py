"""FSDP2: every parameter is sharded over the ranks; a unit is gathered before use and its gradient reduce-scattered."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from parabench.models.model import Model
from parabench.store.record import MIB
from parabench.strategies.base import ParallelModel, StrategyContext, local_part
from parabench.strategies.mesh import line


def fsdp(model: Model, context: StrategyContext) -> ParallelModel:
    """Shard over all ranks, and give a unit's parameters back after its forward."""
    return sharded(model, context, line(context), context.rank, context.world_size)


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
    units = group_blocks(model.blocks, context.case.bucket_mib)
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
    """Consecutive blocks, as many to a unit as fit into `bucket_mib`, at least one; None: one block a unit."""
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
