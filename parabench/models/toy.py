"""The smallest net that has something to split: 10-10-1 with ReLU, 121 parameters, squared error."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn import functional as F  # noqa: N812 - its usual name

from parabench.models import ModelEntry
from parabench.models.model import Model, at_least_float32
from parabench.plan.case import Case


def toy(entry: ModelEntry, case: Case) -> Model:
    """Features (batch, 10) to a number (batch, 1), initialised from torch's current seed."""
    module = nn.Sequential(nn.Sequential(nn.Linear(10, 10), nn.ReLU()), nn.Linear(10, 1))
    return Model(
        module=module,
        loss=squared_error,
        batch=means,
        blocks=list(module),
        tensor_parallel={"0.0": ColwiseParallel(), "1": RowwiseParallel()},
    )


def squared_error(output: Tensor, targets: Tensor) -> Tensor:
    """Mean over the samples, in float32 or wider whatever the output's type."""
    return F.mse_loss(at_least_float32(output), targets)


def means(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Numbers from 0 to 1, and their mean, far from what the fresh net says: the loss falls from batch to batch."""
    inputs = torch.rand(n, 10, generator=generator, device="cpu")
    return inputs, inputs.mean(1, keepdim=True) + 4
