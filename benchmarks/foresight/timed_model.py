"""A model whose compute is a timer: more ranks than cores train it honestly, because ranks that sleep share no core.

    parabench run strategies --model benchmarks.foresight.timed_model:factory --data synthetic

Each block sleeps in its forward and in its backward, in proportion to the samples that it is given and to the share of
the layers that this rank holds, as a device would compute. Beside that it is a small net that computes what it says,
so that its training is verified like any other; its gradients are as large as its parameters, about 8 MiB together.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn import functional as F  # noqa: N812 - its usual name

from parabench import Model

BLOCKS, WIDTH, HIDDEN, CLASSES = 8, 256, 512, 8

# Of a block, a sample and a rank that holds the whole block.
FORWARD_S, BACKWARD_S = 0.003, 0.006


class Timer(torch.autograd.Function):
    """The identity, which takes its time both ways. Behind a block it delays the gradients of all that is before it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, samples_here: float) -> Tensor:
        ctx.samples_here = samples_here
        time.sleep(FORWARD_S * samples_here)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        time.sleep(BACKWARD_S * ctx.samples_here)
        return gradients[0], None


class TimedBlock(nn.Module):
    """Up and down again, behind a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, WIDTH) to the same shape."""
        x = x + self.down(F.gelu(self.up(x)))
        out: Tensor = Timer.apply(x, len(x) * held(self.up.weight))  # type: ignore[no-untyped-call]
        return out


class TimedNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(TimedBlock() for _ in range(BLOCKS)))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Features (batch, WIDTH) to logits (batch, CLASSES)."""
        logits: Tensor = self.head(self.blocks(x))
        return logits


def held(weight: Tensor) -> float:
    """The share of a layer that this rank computes with: all of it, but for tensor parallel."""
    return weight.to_local().numel() / weight.numel() if isinstance(weight, DTensor) else 1.0


def batch(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noise, and which of its first CLASSES features is the largest."""
    inputs = torch.randn(n, WIDTH, generator=generator)
    return inputs, inputs[:, :CLASSES].argmax(1)


def factory() -> Model:
    net = TimedNet()
    return Model(
        module=net,
        loss=nn.CrossEntropyLoss(label_smoothing=0.1),
        batch=batch,
        blocks=list(net.blocks),
        head=net.head,
        tensor_parallel={"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()},
    )
