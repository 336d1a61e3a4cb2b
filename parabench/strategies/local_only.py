"""No exchange at all: each rank trains its own copy on its part of the batch.

It shows the headroom: what a step would take if communication were free. The copies drift apart, so it is no answer.
"""

from parabench.models.model import Model
from parabench.strategies.base import ParallelModel, StrategyContext


def local_only(model: Model, context: StrategyContext) -> ParallelModel:
    """The module as it is. No rank knows the whole gradient."""
    return ParallelModel(
        module=model.module,
        data_rank=context.rank,
        data_ranks=context.world_size,
        gradient_norm=lambda: None,
    )
