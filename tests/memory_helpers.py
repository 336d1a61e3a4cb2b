"""A model that takes memory at a known step and keeps it."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from parabench import Model

GRABS_IN = 8
GRABBED_BYTES = 256 * 2**20
# Several of a sampler's periods lie in a few steps.
STEP_S = 0.06


class Grabbing(nn.Module):
    """A layer whose ninth forward pass fills 256 MiB, which stay."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 4)
        self.passes = 0
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.passes == GRABS_IN:
            self.kept.append(torch.ones(GRABBED_BYTES, dtype=torch.uint8))
        self.passes += 1
        time.sleep(STEP_S)
        return self.layer(x)


def grabbing() -> Model:
    def batch(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(n, 12, generator=generator)
        return inputs, inputs[:, :4].argmax(1)

    return Model(module=Grabbing(), loss=nn.CrossEntropyLoss(), batch=batch)
