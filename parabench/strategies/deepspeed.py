"""DeepSpeed's ZeRO, stages 1 to 3 (Rajbhandari et al., 2020). The package is optional."""

from __future__ import annotations

from functools import reduce
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
from deepspeed.utils import safe_get_full_grad
from torch import Tensor

from parabench.models.base import Model, loss_of, output_of
from parabench.models.batches import Batch, split
from parabench.strategies.base import ParallelModel, StepMarker, StrategyContext, norm_of, optimizer_for


def zero(model: Model, context: StrategyContext) -> ParallelModel:
    """Use ZeRO of the stage in the strategy's name: 1 splits optimizer states, 2 also gradients, 3 also parameters."""
    case, parts = context.case, context.case.grad_accumulation
    engine, *_ = deepspeed.initialize(
        # By default the engine takes device LOCAL_RANK, which does not exist if each rank has one visible device.
        args=SimpleNamespace(device_rank=context.device.index or 0),
        model=model.module,
        optimizer=optimizer_for(model, model.module.parameters(), case),
        dist_init_required=False,  # the group exists
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
    # The engine's step clears its gradients.
    wrapped = engine.optimizer
    optimizer: Any = SimpleNamespace(
        param_groups=wrapped.param_groups, state=wrapped.state, step=engine.step, zero_grad=lambda: None
    )

    def compute(batch: Batch, clock: StepMarker) -> Tensor:
        """Run forward and backward with the engine, which reduces gradients."""
        if parts > 1:
            clock.skip()
        losses: list[Tensor] = []
        for i, part in enumerate(split(batch, parts), start=1):
            loss = loss_of(model, output_of(model, engine, part), part)
            if parts == 1:
                clock.mark()
            engine.backward(loss)  # divides by the number of parts
            if i < parts:
                engine.step()  # counts the part
            losses.append(loss.detach() / parts)
        return reduce(torch.add, losses, torch.zeros((), device=context.device)) if parts > 1 else losses[0]

    return ParallelModel(
        module=engine,
        data_rank=context.rank,
        data_ranks=context.world_size,
        compute=compute,
        optimizer=optimizer,
        gradient_norm=lambda: norm_of(each for p in parameters if (each := safe_get_full_grad(p)) is not None),
        counted=False,  # the engine keeps separate shards
    )
