"""A model whose compute is a timer, so that more ranks than cores do not compete for cores.

    parabench run strategies --model benchmarks.prediction.timed_model:factory --data synthetic

Each block sleeps in forward and backward, in proportion to its samples and to this rank's share of the layers. A sample
is a short sequence: the messages of tensor parallelism take time on a link, but little arithmetic. The model is a real
net with 8 MiB of parameters, so its training is verified.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn import functional as F  # noqa: N812 - its usual name

from parabench import Model

BLOCKS, TOKENS, WIDTH, HIDDEN, CLASSES = 8, 8, 256, 512, 8

# Per block and sample, on a rank that has the whole block.
FORWARD_S, BACKWARD_S = 0.003, 0.006


class Timer(torch.autograd.Function):
    """The identity, which sleeps in forward and backward. It delays the gradients of all earlier layers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        time.sleep(ctx.backward_s)
        return gradients[0], None, None


def timed(x: Tensor, forward_s: float, backward_s: float, held: float = 1.0) -> Tensor:
    """Return `x` after a timer of the given seconds per sample, times this rank's share of the layer."""
    samples = len(x) * held
    out: Tensor = Timer.apply(x, forward_s * samples, backward_s * samples)  # type: ignore[no-untyped-call]
    return out


class TimedBlock(nn.Module):
    """Two linear layers with a residual connection and a timer."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, TOKENS, WIDTH) to the same shape."""
        x = x + self.down(F.gelu(self.up(x)))
        return timed(x, FORWARD_S, BACKWARD_S, held(self.up.weight))


class MeanHead(nn.Linear):
    """Logits of the mean over a sample's tokens."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, WIDTH) to (batch, CLASSES)."""
        return super().forward(x.mean(1))


def held(weight: Tensor) -> float:
    """Return this rank's share of a layer, which is below 1 with tensor parallelism."""
    return weight.to_local().numel() / weight.numel() if isinstance(weight, DTensor) else 1.0


def batch(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return noise, and the index of the largest of the first CLASSES features in the mean over tokens."""
    inputs = torch.randn(n, TOKENS, WIDTH, generator=generator)
    return inputs, inputs.mean(1)[:, :CLASSES].argmax(1)


def factory() -> Model:
    blocks, head = nn.Sequential(*(TimedBlock() for _ in range(BLOCKS))), MeanHead(WIDTH, CLASSES)
    return Model(
        module=nn.Sequential(OrderedDict(blocks=blocks, head=head)),
        loss=nn.CrossEntropyLoss(label_smoothing=0.1),
        batch=batch,
        blocks=list(blocks),
        head=head,
        tensor_parallel={"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()},
    )
