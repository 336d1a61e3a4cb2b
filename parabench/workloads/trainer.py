"""The step loop, in sight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from parabench.probes import Probe
from parabench.strategies.base import Compute, OptimizerLike, StepMarker


class Losses:
    """One scalar a step, kept on its device without waiting for it: in blocks, for a tensor of its own would take 512
    bytes of a CUDA device."""

    BLOCK = 1024

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []
        self._count = 0

    def append(self, loss: Tensor) -> None:
        at = self._count % self.BLOCK
        if at == 0:
            self._blocks.append(torch.empty(self.BLOCK, dtype=loss.dtype, device=loss.device))
        self._blocks[-1][at] = loss
        self._count += 1

    def read(self) -> list[float]:
        """All of them; waits for the device."""
        values = [value for block in self._blocks for value in block.double().tolist()]
        return values[: self._count]


@dataclass(slots=True, kw_only=True)
class Training:
    """What a loop needs; `losses` and `grad_norm` are its results.

    A rank that sees no loss leaves `losses` empty, one that cannot know the gradient's norm leaves it None. `probes`
    look at the first step.
    """

    module: nn.Module
    compute: Compute
    optimizer: OptimizerLike
    batches: Iterator[tuple[Tensor, Tensor]]
    gradient_norm: Callable[[], float | None]
    probes: Sequence[Probe] = ()
    losses: Losses = field(default_factory=Losses)
    grad_norm: float | None = None


def train(training: Training, clock: StepMarker, steps: range) -> None:
    """Take the training steps `steps`. Each is timed by five marks and carries nothing else."""
    compute, optimizer = training.compute, training.optimizer
    for step in steps:
        clock.mark()
        inputs, targets = next(training.batches)
        clock.mark()
        loss = compute(inputs, targets, clock)  # marks where forward ends and backward begins
        clock.mark()
        if step == 0:  # a warm-up step: it may carry more
            # AdamW hides a gradient that is wrong by a factor, so losses alone would not show it; its norm does.
            training.grad_norm = training.gradient_norm()
            for probe in training.probes:
                probe.after_first_backward()
        optimizer.step()
        if step == 0:
            for probe in training.probes:
                probe.after_first_step()
        optimizer.zero_grad()
        clock.mark()
        if loss is not None:
            training.losses.append(loss)
