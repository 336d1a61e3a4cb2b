"""Training in float16: the loss is scaled before backward, and steps with overflowing gradients are skipped.

Unlike torch.amp.GradScaler, all ranks skip a step together, also with sharded parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from parabench.strategies.base import OptimizerLike, local_part

# torch.amp.GradScaler starts with 2^16 and skips the first steps until there is no overflow. With 2^12, gradients of a
# mean loss do not overflow, so the first step counts. Its gradient is verified.
FIRST_SCALE = 2.0**12
GROWTH_INTERVAL = 2000


class LossScale:
    """An optimizer for gradients of a scaled loss. All ranks step, or no rank. Each step waits for the device."""

    def __init__(self, optimizer: OptimizerLike, device: torch.device) -> None:
        self._optimizer, self._device = optimizer, device
        self.scale = FIRST_SCALE
        self.left_out = 0
        self._since = 0

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._optimizer.param_groups

    @property
    def state(self) -> Mapping[Any, Any]:
        return self._optimizer.state

    @property
    def optim(self) -> OptimizerLike:
        """The optimizer with this rank's state, like `ZeroRedundancyOptimizer.optim`."""
        return getattr(self._optimizer, "optim", self._optimizer)

    def zero_grad(self) -> None:
        self._optimizer.zero_grad()

    def step(self) -> None:
        """Step with unscaled gradients. If one is not finite on a rank, skip the step and halve the scale."""
        gradients = [local_part(p.grad) for group in self.param_groups for p in group["params"] if p.grad is not None]
        largest = torch.zeros(1, device=self._device)
        if filled := [each for each in gradients if each.numel()]:
            largest += torch.stack(torch._foreach_norm(filled, float("inf"))).max()
        overflowed = (~torch.isfinite(largest)).float()
        if dist.is_initialized():
            dist.all_reduce(overflowed, dist.ReduceOp.MAX)
        if overflowed.item():
            self.left_out += 1
            self.scale /= 2
            self._since = 0
            return
        if gradients:
            torch._foreach_mul_(gradients, 1 / self.scale)
        self._optimizer.step()
        self._since += 1
        if self._since == GROWTH_INTERVAL:
            self.scale *= 2
            self._since = 0
