"""One device: the reference that every other strategy must agree with."""

from parabench.models.model import Model
from parabench.strategies.base import Context, Parallel


def single(model: Model, context: Context) -> Parallel:
    """The model as it is."""
    return Parallel(module=model.module, data_rank=0, data_ranks=1)
