"""Forward and backward of one rank's batch, in one go or in parts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from parabench.models.model import Loss
from parabench.strategies.base import StepMarker, StrategyContext, always_sync


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBackward:
    """The ordinary way. With gradient accumulation the batch is cut in equal parts, and the gradients add up to the
    mean over all of them; each part is computed in the context `gradient_sync(whether it is the last)`. `scale` says by
    what the loss is multiplied before backward."""

    module: nn.Module
    loss: Loss
    context: StrategyContext
    gradient_sync: Callable[[bool], AbstractContextManager[Any]] = always_sync
    scale: Callable[[], float] | None = None

    def __call__(self, inputs: Tensor, targets: Tensor, clock: StepMarker) -> Tensor:
        """Leave the gradients of the batch's mean loss; returns it."""
        parts = self.context.case.grad_accumulation
        if parts == 1:
            with self.context.autocast():
                loss = self.loss(self.module(inputs), targets)
            clock.mark()
            self._backward(loss)
            return loss.detach()
        clock.skip()
        total = torch.zeros((), device=inputs.device)
        for i, (some, theirs) in enumerate(zip(inputs.chunk(parts), targets.chunk(parts), strict=True)):
            with self.gradient_sync(i == parts - 1):
                with self.context.autocast():
                    loss = self.loss(self.module(some), theirs) / parts
                self._backward(loss)
            total += loss.detach()
        return total

    def _backward(self, loss: Tensor) -> None:
        (loss if self.scale is None else loss * self.scale()).backward()
