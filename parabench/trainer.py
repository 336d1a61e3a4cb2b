"""The step loop, in sight."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from parabench.models.model import Model
from parabench.probes.steps import StepClock


@dataclass(slots=True, kw_only=True)
class Training:
    """What a loop needs; `losses` (one scalar a step, on the device) and `grad_norm` are its results."""

    model: Model
    module: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Iterator[tuple[Tensor, Tensor]]
    autocast: torch.autocast
    losses: list[Tensor]
    grad_norm: float | None = None


def train(training: Training, clock: StepClock, steps: int) -> None:
    """Take `steps` training steps. Each is timed by five marks and carries nothing else."""
    module, loss_of, optimizer = training.module, training.model.loss, training.optimizer
    for step in range(steps):
        clock.mark()
        inputs, targets = next(training.batches)
        clock.mark()
        with training.autocast:
            loss = loss_of(module(inputs), targets)
        clock.mark()
        loss.backward()
        clock.mark()
        if step == 0:  # a warm-up step: it may carry one thing more
            training.grad_norm = gradient_norm(module)
        optimizer.step()
        optimizer.zero_grad()
        clock.mark()
        training.losses.append(loss.detach())


def gradient_norm(module: nn.Module) -> float:
    """L2 norm of the whole gradient, sharded parts gathered. A collective call: every rank must make it.

    AdamW hides a gradient that is wrong by a factor, so losses alone would not show it; this does.
    """
    squares = 0.0
    for parameter in module.parameters():
        gradient = parameter.grad
        if gradient is not None:
            whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
            squares += float(whole.double().square().sum())
    return math.sqrt(squares)


def make_optimizer(module: nn.Module) -> torch.optim.Optimizer:
    """AdamW with GPT-2's usual settings, fused, one group for each kind of tensor (a fused step can't mix them)."""
    groups: dict[object, list[nn.Parameter]] = {}
    for parameter in module.parameters():
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(mesh, []).append(parameter)
    return torch.optim.AdamW(
        [{"params": parameters} for parameters in groups.values()],
        lr=3e-4,
        betas=(0.9, 0.95),
        weight_decay=0.1,
        fused=True,
    )
