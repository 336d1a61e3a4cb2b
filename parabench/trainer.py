"""The step loop, in sight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch import Tensor, nn

from parabench.probes.footprint import Footprint
from parabench.strategies.recipe import Clock, Compute, Steps


@dataclass(slots=True, kw_only=True)
class Training:
    """What a loop needs; `losses` (one scalar a step, on the device), `grad_norm` and `footprint` are its results.

    A rank that sees no loss leaves `losses` empty, one that cannot know the gradient's norm leaves it None; `footprint`
    stays empty where `counted` is False.
    """

    module: nn.Module
    compute: Compute
    optimizer: Steps
    batches: Iterator[tuple[Tensor, Tensor]]
    gradient_norm: Callable[[], float | None]
    counted: bool = True
    losses: list[Tensor] = field(default_factory=list)
    grad_norm: float | None = None
    footprint: dict[str, int] = field(default_factory=dict)


def train(training: Training, clock: Clock, steps: range) -> None:
    """Take the training steps `steps`. Each is timed by five marks and carries nothing else."""
    compute, optimizer = training.compute, training.optimizer
    footprint = Footprint(training.module, optimizer) if training.counted and steps.start == 0 else None
    for step in steps:
        clock.mark()
        inputs, targets = next(training.batches)
        clock.mark()
        loss = compute(inputs, targets, clock)  # marks where forward ends and backward begins
        clock.mark()
        if step == 0:  # a warm-up step: it may carry more
            # AdamW hides a gradient that is wrong by a factor, so losses alone would not show it; its norm does.
            training.grad_norm = training.gradient_norm()
            if footprint:
                footprint.after_backward()
        optimizer.step()
        if step == 0 and footprint:
            training.footprint = footprint.after_step()
        optimizer.zero_grad()
        clock.mark()
        if loss is not None:
            training.losses.append(loss)
