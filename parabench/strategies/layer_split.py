"""The naive vertical split: the same stages as a pipeline's, and the whole batch at once.

One rank computes at a time, and all others wait, (n - 1)/n of the time: a pipeline of a single micro-batch. It trains
what fits on no single device, n times as slowly as n devices could.
"""

from parabench.models.model import Model
from parabench.strategies.base import ParallelModel, StrategyContext
from parabench.strategies.pipeline import pipelined


def layer_split(model: Model, context: StrategyContext) -> ParallelModel:
    """Forward from the first rank to the last, then backward."""
    return pipelined(model, context, schedule="gpipe", microbatches=1, called="layer_split")
