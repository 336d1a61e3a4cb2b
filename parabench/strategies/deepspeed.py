"""DeepSpeed's ZeRO, stages 1 to 3, through the same interface; the package is optional.

Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
from deepspeed.utils import safe_get_full_grad
from torch import Tensor, nn

from parabench.models.base import Model, loss_of, output_of
from parabench.models.batches import Batch, split
from parabench.strategies.base import ParallelModel, StepMarker, StrategyContext, optimizer_for, squares_of


def zero(model: Model, context: StrategyContext) -> ParallelModel:
    """The stage that the strategy's name ends with. 1 splits the optimizer state, 2 gradients too, 3 parameters too."""
    case, parts = context.case, context.case.grad_accumulation
    engine, *_ = deepspeed.initialize(
        # By default the engine takes device LOCAL_RANK, which does not exist if each rank has one visible device.
        args=SimpleNamespace(device_rank=context.device.index or 0),
        model=model.module,
        optimizer=optimizer_for(model, model.module.parameters(), case),
        dist_init_required=False,  # the group is there
        config={
            "train_micro_batch_size_per_gpu": case.global_batch // case.batch_parts,
            "gradient_accumulation_steps": parts,
            "zero_optimization": {"stage": int(case.strategy.removeprefix("deepspeed"))},
            "gradient_clipping": 0.0,
            "zero_allow_untested_optimizer": True,
            "torch_autocast": {"enabled": case.arithmetic.autocast is not None, "dtype": "bfloat16"},
        },
    )
    parameters = list(model.module.parameters())

    def compute(batch: Batch, clock: StepMarker) -> Tensor:
        """Forward and backward by the engine, which reduces gradients itself."""
        if parts > 1:
            clock.skip()
        losses: list[Tensor] = []
        for i, part in enumerate(split(batch, parts), start=1):
            loss = loss_of(model, output_of(model, engine, part), part)
            if parts == 1:
                clock.mark()
            engine.backward(loss)  # which divides by the parts
            if i < parts:
                engine.step()  # counts the part
            losses.append(loss.detach() / parts)
        return reduce(torch.add, losses, torch.zeros((), device=context.device)) if parts > 1 else losses[0]

    return ParallelModel(
        module=engine,
        data_rank=context.rank,
        data_ranks=context.world_size,
        compute=compute,
        optimizer=_Step(engine),
        gradient_norm=lambda: _norm(parameters),
        counted=False,  # the engine keeps shards of its own
    )


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
