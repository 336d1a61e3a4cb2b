"""FSDP2: every parameter is sharded over the ranks; a unit is gathered before use and its gradient reduce-scattered."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from parabench.models.model import Model
from parabench.record import MIB
from parabench.strategies.recipe import Context, Parallel


def fsdp(model: Model, context: Context) -> Parallel:
    """Shard unit by unit, then what is left (embeddings, final norm) as the root's."""
    place = context.place
    mesh = init_device_mesh(place.device.type, (place.world_size,))
    units = group_blocks(model.blocks, context.case.bucket_mib)
    unit_bytes = [sum(_bytes(block) for block in unit) for unit in units]
    root_bytes = _bytes(model.module) - sum(unit_bytes)
    for unit in units:
        fully_shard(unit, mesh=mesh)
    fully_shard(model.module, mesh=mesh)
    return Parallel(
        module=model.module,
        data_rank=place.rank,
        data_ranks=place.world_size,
        facts=lambda: {"unit_bytes": [*unit_bytes, root_bytes]},
    )


def group_blocks(blocks: Sequence[nn.Module], bucket_mib: float | None) -> list[list[nn.Module]]:
    """Consecutive blocks, as many to a unit as fit into `bucket_mib`, at least one; None: one block a unit."""
    units: list[list[nn.Module]] = []
    filled = 0
    for block in blocks:
        size = _bytes(block)
        if units and bucket_mib is not None and filled + size <= bucket_mib * MIB:
            units[-1].append(block)
            filled += size
        else:
            units.append([block])
            filled = size
    return units


def _bytes(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())
