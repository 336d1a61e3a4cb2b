"""Two dimensions: tensor parallel inside groups of tp_size ranks, FSDP2 between the groups.

What torchtitan calls 2-D. Activations travel inside a group, where links are fast; each rank's part of the layers is
sharded again over the ranks that hold the same part in the other groups.
"""

from parabench.models.model import Model
from parabench.strategies.base import ParallelModel, StrategyContext
from parabench.strategies.fsdp import sharded
from parabench.strategies.tensor_parallel import grid, split_layers


def tp_fsdp(model: Model, context: StrategyContext) -> ParallelModel:
    """Split the layers first, then shard what each rank has of them."""
    mesh = grid(context)
    split_layers(model, context, mesh["tp"])
    data = mesh["dp"]
    return sharded(model, context, data, data.get_local_rank(), data.size())
