"""A multi-layer perceptron for classification: a first layer, eight residual pairs of linear layers, a head.

The model of the three ways to split data: its first layer takes plain features, so that they can be divided between
ranks. No dropout and no norms, so that every way of parallelising computes the same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn import functional as F  # noqa: N812 - its usual name

from parabench.models import MLP_CLASSES, MLP_HIDDEN, MLP_WIDTH, ModelEntry
from parabench.models.model import Model, at_least_float32
from parabench.plan.case import Case


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


# Szegedy et al., "Rethinking the Inception architecture", 2016. A few seeded batches are soon known by heart; smoothed,
# their loss stays well above zero, where a comparison relative to it would be of rounding alone.
LABEL_SMOOTHING = 0.1


def class_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats with smoothed labels, in float32 or wider whatever the logits' type."""
    return F.cross_entropy(at_least_float32(logits), targets, label_smoothing=LABEL_SMOOTHING)


def mlp(entry: ModelEntry, case: Case) -> Model:
    """The reference perceptron, initialised from torch's current seed."""
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
