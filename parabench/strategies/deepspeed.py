"""DeepSpeed's ZeRO, stages 1 to 3, through the same interface; the package is optional.

Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import deepspeed
import torch
from deepspeed.utils import safe_get_full_grad
from torch import Tensor, nn

from parabench.models.base import Loss, Model
from parabench.strategies.base import ParallelModel, StepMarker, StrategyContext, adamw, squares_of


def stage1(model: Model, context: StrategyContext) -> ParallelModel:
    """Optimizer state split."""
    return _zero(model, context, 1)


def stage2(model: Model, context: StrategyContext) -> ParallelModel:
    """Gradients split too."""
    return _zero(model, context, 2)


def stage3(model: Model, context: StrategyContext) -> ParallelModel:
    """Parameters split too."""
    return _zero(model, context, 3)


def _zero(model: Model, context: StrategyContext, stage: int) -> ParallelModel:
    case = context.case
    engine, *_ = deepspeed.initialize(
        model=model.module,
        optimizer=adamw(model.module.parameters(), fused=case.fused),
        dist_init_required=False,  # the group is there
        config={
            "train_micro_batch_size_per_gpu": case.global_batch // case.batch_parts,
            "gradient_accumulation_steps": case.grad_accumulation,
            "zero_optimization": {"stage": stage},
            "gradient_clipping": 0.0,
            "zero_allow_untested_optimizer": True,
            "torch_autocast": {"enabled": case.arithmetic.autocast is not None, "dtype": "bfloat16"},
        },
    )
    parameters = list(model.module.parameters())
    return ParallelModel(
        module=engine,
        data_rank=context.rank,
        data_ranks=context.world_size,
        compute=_Compute(engine, model.loss, case.grad_accumulation),
        optimizer=_Step(engine),
        gradient_norm=lambda: _norm(parameters),
        counted=False,  # the engine keeps shards of its own
    )


class _Compute:
    """Forward and backward by the engine, which reduces gradients itself."""

    def __init__(self, engine: Any, loss: Loss, parts: int) -> None:
        self._engine, self._loss, self._parts = engine, loss, parts

    def __call__(self, inputs: Tensor, targets: Tensor, clock: StepMarker) -> Tensor:
        if self._parts == 1:
            loss = self._loss(self._engine(inputs), targets)
            clock.mark()
            self._engine.backward(loss)
            return loss.detach()
        clock.skip()
        total = torch.zeros((), device=inputs.device)
        for i, (part_inputs, part_targets) in enumerate(
            zip(inputs.chunk(self._parts), targets.chunk(self._parts), strict=True)
        ):
            loss = self._loss(self._engine(part_inputs), part_targets)
            self._engine.backward(loss)  # which divides by the parts
            if i < self._parts - 1:
                self._engine.step()  # counts the part
            total += loss.detach() / self._parts
        return total


class _Step:
    """The engine's step under an optimizer's names."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of the optimizer that the engine wraps."""
        groups: list[dict[str, Any]] = self._engine.optimizer.param_groups
        return groups

    @property
    def state(self) -> Mapping[Any, Any]:
        state: Mapping[Any, Any] = self._engine.optimizer.state
        return state

    def step(self) -> None:
        self._engine.step()

    def zero_grad(self) -> None:
        """The engine has done it."""


def _norm(parameters: list[nn.Parameter]) -> float:
    """L2 norm of the whole gradient, which the engine keeps in parts."""
    squares = 0.0
    for parameter in parameters:
        gradient = safe_get_full_grad(parameter)
        if gradient is not None:
            squares += float(squares_of(gradient))
    return math.sqrt(squares)
