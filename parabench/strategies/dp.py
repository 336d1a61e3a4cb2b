"""DataParallel: one process copies the module to its CUDA devices in every step and gathers their outputs.

PyTorch advises DistributedDataParallel instead; it is here because people still ask what that gives.
"""

from torch import nn

from parabench.models.model import Model
from parabench.strategies.base import ParallelModel, StrategyContext


def dp(model: Model, context: StrategyContext) -> ParallelModel:
    """Wrap the model; the process loads the whole batch, DataParallel scatters it."""
    module = nn.DataParallel(model.module, device_ids=list(range(context.case.world_size)))
    return ParallelModel(module=module, data_rank=0, data_ranks=1)
