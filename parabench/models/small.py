"""The small nets: `mlp`, `mnist` and `toy`, each initialised from torch's current seed.

No dropout and no norms, so that every way of parallelising computes the same numbers.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn import functional as F  # noqa: N812 - its usual name

from parabench.models import MLP_CLASSES, MLP_HIDDEN, MLP_WIDTH, ModelEntry
from parabench.models.base import Model, at_least_float32
from parabench.plan.case import Case

# Szegedy et al., "Rethinking the Inception architecture", 2016. A few seeded batches are soon known by heart; smoothed,
# their loss stays well above zero, where a comparison relative to it would be of rounding alone.
LABEL_SMOOTHING = 0.1

# Of MNIST's images, and how many digits there are.
SIDE, CLASSES = 28, 10


class Pair(nn.Module):
    """Up and down again, behind a residual: what tensor parallel splits column- then row-wise."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, width) to the same shape."""
        # Smooth: a ReLU near its kink turns another order of summation into another gradient.
        out: Tensor = x + self.down(F.gelu(self.up(x)))
        return out


class MLP(nn.Module):
    """Features (batch, features) to logits (batch, classes)."""

    def __init__(self, features: int, width: int, hidden: int, blocks: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, width)
        self.blocks = nn.ModuleList(Pair(width, hidden) for _ in range(blocks))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of every class."""
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


def class_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats with smoothed labels, in float32 or wider whatever the logits' type."""
    return F.cross_entropy(at_least_float32(logits), targets, label_smoothing=LABEL_SMOOTHING)


def mlp(entry: ModelEntry, case: Case) -> Model:
    """The perceptron: a first layer, residual pairs of linear layers, a head. It is for all three ways to split data:
    its first layer takes plain features, so that they can be divided between ranks."""
    features = entry.features
    assert features is not None
    module = MLP(features, MLP_WIDTH, MLP_HIDDEN, entry.blocks, MLP_CLASSES)

    def batch(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Noise, raised in the group of features that tells the class."""
        inputs = torch.randn(n, features, generator=generator, device="cpu")
        classes = torch.randint(MLP_CLASSES, (n,), generator=generator, device="cpu")
        inputs.view(n, MLP_CLASSES, -1)[torch.arange(n, device="cpu"), classes] += 1
        return inputs, classes

    return Model(
        module=module,
        loss=class_loss,
        batch=batch,
        blocks=list(module.blocks),
        stem=module.first,
        head=module.head,
        tensor_parallel={
            "first": RowwiseParallel(input_layouts=Replicate()),
            "blocks.*.up": ColwiseParallel(),
            "blocks.*.down": RowwiseParallel(),
        },
        first="first",
    )


def mnist(entry: ModelEntry, case: Case) -> Model:
    """The convolution net of PyTorch's MNIST example: images (batch, 1, 28, 28) to logits (batch, 10).

    Layers as in https://github.com/pytorch/examples/blob/main/mnist/main.py, without its two dropouts.
    """
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


def toy(entry: ModelEntry, case: Case) -> Model:
    """The smallest net that has something to split, 10-10-1 with ReLU: features (batch, 10) to a number (batch, 1)."""
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
