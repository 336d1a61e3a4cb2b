"""One device: the reference that every other strategy must agree with."""

from parabench.models.model import Model
from parabench.strategies.base import ParallelModel, StrategyContext


def single(model: Model, context: StrategyContext) -> ParallelModel:
    """The model as it is."""
    return ParallelModel(module=model.module, data_rank=0, data_ranks=1)
