"""Hybrid sharding: FSDP2 inside each node, replicas across nodes.

Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", 2023, section 3.2.2. Gathering
stays on the fast links inside a node; only each rank's gradient shard is all-reduced across nodes.
"""

from parabench.models.model import Model
from parabench.strategies.base import Context, Parallel
from parabench.strategies.fsdp import sharded
from parabench.strategies.mesh import grid


def hsdp(model: Model, context: Context) -> Parallel:
    """Shard over the `ranks_per_node` consecutive ranks of a node, and replicate over the nodes."""
    place = context.place
    inside = context.case.ranks_per_node or place.world_size
    return sharded(model, context, grid(place, inside, ("replicate", "shard")), place.rank, place.world_size)
