"""Hybrid sharding: FSDP2 inside each node, replicas across nodes.

Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", 2023, section 3.2.2. Gathering
stays on the fast links inside a node; only each rank's gradient shard is all-reduced across nodes.
"""

from parabench.models.model import Model
from parabench.strategies.base import ParallelModel, StrategyContext
from parabench.strategies.fsdp import sharded
from parabench.strategies.mesh import grid


def hsdp(model: Model, context: StrategyContext) -> ParallelModel:
    """Shard over the `ranks_per_node` consecutive ranks of a node, and replicate over the nodes."""
    inside = context.case.ranks_per_node or context.world_size
    return sharded(model, context, grid(context, inside, ("replicate", "shard")), context.rank, context.world_size)
