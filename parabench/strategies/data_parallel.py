"""Strategies whose ranks have the whole model and a part of the batch: `ddp`, `zero1`, `dp`, `local_only`, `single`."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parabench.machine import accelerator
from parabench.models.base import Model
from parabench.strategies.base import ParallelModel, StrategyContext, optimizer_for


def single(model: Model, context: StrategyContext) -> ParallelModel:
    """Use one device and the unchanged model."""
    return ParallelModel(module=model.module, data_rank=0, data_ranks=1)


def local_only(model: Model, context: StrategyContext) -> ParallelModel:
    """Train a separate copy of the model on each rank's part of the batch, without communication.

    This shows the step time with free communication. It is never the fastest, because the copies differ.
    """
    return ParallelModel(
        module=model.module,
        data_rank=context.rank,
        data_ranks=context.world_size,
        gradient_norm=lambda: None,
    )


def dp(model: Model, context: StrategyContext) -> ParallelModel:
    """Use DataParallel: in every step, one process copies the module to its CUDA devices and scatters the batch.

    PyTorch recommends DistributedDataParallel instead.
    """
    module = nn.DataParallel(model.module, device_ids=list(range(context.case.world_size)))
    return ParallelModel(module=module, data_rank=0, data_ranks=1)


def ddp(model: Model, context: StrategyContext) -> ParallelModel:
    """Use DistributedDataParallel: a replica on every rank; gradients are all-reduced in buckets during backward.

    `bucket_mib` is the cap of a bucket, or a list of caps in the order of reduction. None is PyTorch's default.
    """
    return replicated(model.module, context, context.rank, context.world_size)


def replicated(
    module: nn.Module, context: StrategyContext, data_rank: int, data_ranks: int, **options: Any
) -> ParallelModel:
    """Wrap `module` in DDP with the case's options, and further `options` of DDP."""
    case, device = context.case, context.device
    # PyTorch's MB are MiB, and its list accepts fractions.
    caps = {"bucket_cap_mb_list": list(case.bucket_caps)} if case.bucket_caps else {"bucket_cap_mb": case.bucket_cap}
    replica = DistributedDataParallel(
        module,
        device_ids=[device] if device.type == accelerator.TYPE else None,
        find_unused_parameters=case.find_unused_parameters,
        static_graph=case.static_graph,
        gradient_as_bucket_view=case.gradient_as_bucket_view,
        **caps,
        **options,
    )
    # DDP learns a static graph in the first backward. If it does not reduce, torch 2.13 fails an assertion.
    learned = not case.static_graph

    def gradient_sync(last: bool) -> AbstractContextManager[Any]:
        nonlocal learned
        reduces = last or not case.no_sync or not learned
        learned = True
        return nullcontext() if reduces else replica.no_sync()

    def facts() -> dict[str, Any]:
        """Return the sizes of DDP's buckets in bytes."""
        logged: dict[str, Any] = replica._get_ddp_logging_data()
        sizes = logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or ""
        return {"bucket_bytes": [int(size) for size in str(sizes).split(",") if size.strip()]}

    return ParallelModel(
        module=replica, data_rank=data_rank, data_ranks=data_ranks, gradient_sync=gradient_sync, facts=facts
    )


def zero1(model: Model, context: StrategyContext) -> ParallelModel:
    """Use DDP and an optimizer whose state is split between ranks (ZeRO stage 1).

    Each rank updates some parameters, with similar total sizes, and broadcasts them (Rajbhandari et al., 2020).
    """
    # This import uses torch.jit.script, and torch 2.13 warns of it. Other strategies do not need it.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    # `parameters_as_bucket_view` moves the parameters to contiguous memory, so the optimizer is created before DDP.
    # Else DDP's buckets would keep the strides of a transposed parameter, and permute its gradient.
    trained = [each for each in model.module.parameters() if each.requires_grad]
    made = optimizer_for(model, trained, context.case)
    optimizer = ZeroRedundancyOptimizer(
        made.param_groups, optimizer_class=type(made), parameters_as_bucket_view=True, **_settings(made)
    )
    return replace(ddp(model, context), optimizer=optimizer)


def _settings(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the defaults of an optimizer that are arguments of its class."""
    taken: set[str] = set()
    for each in type(optimizer).__mro__:
        parameters = inspect.signature(each).parameters.values()
        taken |= {parameter.name for parameter in parameters}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break  # it does not pass arguments to its base class
    return {name: value for name, value in optimizer.defaults.items() if name in taken}
