"""A model whose compute is a timer: more ranks than cores train it honestly, because ranks that sleep share no core.

    parabench run strategies --model benchmarks.foresight.timed_model:factory --data synthetic

Each block sleeps in its forward and in its backward, in proportion to the samples that it is given and to the share of
the layers that this rank holds, as a device would compute. A sample is a short sequence, so that what tensor parallel
and pipelines send between layers takes a link some time, while its arithmetic stays small. Beside that it is a small
net that computes what it says, so that its training is verified like any other; its gradients are as large as its
parameters, about 8 MiB together.
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

BLOCKS, TOKENS, WIDTH, HIDDEN, CLASSES = 8, 8, 256, 512, 8

# Of a block, a sample and a rank that holds the whole block.
FORWARD_S, BACKWARD_S = 0.003, 0.006


class Timer(torch.autograd.Function):
    """The identity, which takes so many seconds forward and backward. Behind a part of a model it delays the gradients
    of all that is before it."""

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
    """`x` behind a timer of so many seconds for each sample of it, by the share of the layer that is held here."""
    samples = len(x) * held
    out: Tensor = Timer.apply(x, forward_s * samples, backward_s * samples)  # type: ignore[no-untyped-call]
    return out


class TimedBlock(nn.Module):
    """Up and down again, behind a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, TOKENS, WIDTH) to the same shape."""
        x = x + self.down(F.gelu(self.up(x)))
        return timed(x, FORWARD_S, BACKWARD_S, held(self.up.weight))


class MeanHead(nn.Module):
    """Logits of the mean over a sample's tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, WIDTH) to (batch, CLASSES)."""
        logits: Tensor = self.linear(x.mean(1))
        return logits


class TimedNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(TimedBlock() for _ in range(BLOCKS)))
        self.head = MeanHead()

    def forward(self, x: Tensor) -> Tensor:
        """Features (batch, TOKENS, WIDTH) to logits (batch, CLASSES)."""
        logits: Tensor = self.head(self.blocks(x))
        return logits


def held(weight: Tensor) -> float:
    """The share of a layer that this rank computes with: all of it, but for tensor parallel."""
    return weight.to_local().numel() / weight.numel() if isinstance(weight, DTensor) else 1.0


def batch(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noise, and which of the first CLASSES features is the largest in the mean over the tokens."""
    inputs = torch.randn(n, TOKENS, WIDTH, generator=generator)
    return inputs, inputs.mean(1)[:, :CLASSES].argmax(1)


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
