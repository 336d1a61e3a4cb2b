"""ZeRO stage 1: DDP, and an optimizer whose state is split between ranks.

Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020. Each rank updates
the parameters that it owns, whole ones, dealt out so that all own about as many bytes; then every owner
broadcasts what it updated, packed into one message.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from parabench.models.model import Model
from parabench.strategies.base import ParallelModel, StrategyContext
from parabench.strategies.ddp import ddp
from parabench.strategies.optimizer import SETTINGS


def zero1(model: Model, context: StrategyContext) -> ParallelModel:
    """DDP as it is, with each parameter's optimizer state on one rank only."""
    parallel = ddp(model, context)
    optimizer = ZeroRedundancyOptimizer(
        model.module.parameters(),
        optimizer_class=torch.optim.AdamW,
        parameters_as_bucket_view=True,
        fused=context.case.fused,
        **SETTINGS,
    )
    return replace(parallel, optimizer=optimizer)
