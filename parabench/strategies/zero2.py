"""ZeRO stage 2 as FSDP2 has it: what was gathered for forward is kept for backward, and gradients are reduce-scattered.

Between steps parameters are sharded too, so that the optimizer works on shards alone; within a step every rank holds
all of them. Against `fsdp` one of two all-gathers is saved, and paid for in memory.
"""

from parabench.models.model import Model
from parabench.strategies.base import ParallelModel, StrategyContext
from parabench.strategies.fsdp import sharded
from parabench.strategies.mesh import line


def zero2(model: Model, context: StrategyContext) -> ParallelModel:
    """Shard over all ranks, and gather once a step."""
    return sharded(model, context, line(context), context.rank, context.world_size, reshard=False)
