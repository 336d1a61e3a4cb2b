"""The small convolution net of PyTorch's MNIST example: 1,199,882 parameters.

Layers as in https://github.com/pytorch/examples/blob/main/mnist/main.py, but without its two dropouts, so that every
way of parallelising computes the same numbers.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from parabench.models import ModelEntry
from parabench.models.mlp import class_loss
from parabench.models.model import Model
from parabench.plan.case import Case

SIDE, CLASSES = 28, 10


def mnist(entry: ModelEntry, case: Case) -> Model:
    """Images (batch, 1, 28, 28) to logits (batch, 10), initialised from torch's current seed."""
    module = nn.Sequential(
        OrderedDict(
            conv1=nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU()),
            conv2=nn.Sequential(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            fc1=nn.Sequential(nn.Linear(9216, 128), nn.ReLU()),
            fc2=nn.Linear(128, CLASSES),
        )
    )
    return Model(
        module=module,
        loss=class_loss,
        batch=striped,
        blocks=list(module),
        tensor_parallel={"fc1.0": ColwiseParallel(), "fc2": RowwiseParallel()},
    )


def striped(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noise with a bright stripe, at a height that tells the digit."""
    images = torch.randn(n, 1, SIDE, SIDE, generator=generator, device="cpu")
    digits = torch.randint(CLASSES, (n,), generator=generator, device="cpu")
    images[torch.arange(n, device="cpu"), 0, 2 * digits + 4] += 2
    return images, digits
