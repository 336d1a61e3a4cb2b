"""Strategies in which each rank has the whole model and its part of the batch: `ddp`, `zero1`, `dp`, `local_only`; and
`single`, which every other strategy must agree with."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parabench.machine import accelerator
from parabench.models.base import Model
from parabench.plan.case import Case
from parabench.strategies.base import ParallelModel, StrategyContext, optimizer_for


def single(model: Model, context: StrategyContext) -> ParallelModel:
    """One device: the model as it is."""
    return ParallelModel(module=model.module, data_rank=0, data_ranks=1)


def local_only(model: Model, context: StrategyContext) -> ParallelModel:
    """No exchange at all: each rank trains its own copy on its part of the batch. No rank knows the whole gradient.

    It shows the headroom: what a step would take if communication were free. The copies drift apart, so it is no
    answer.
    """
    return ParallelModel(
        module=model.module,
        data_rank=context.rank,
        data_ranks=context.world_size,
        gradient_norm=lambda: None,
    )


def dp(model: Model, context: StrategyContext) -> ParallelModel:
    """DataParallel: one process loads the whole batch, and in every step copies the module to its CUDA devices,
    scatters the batch and gathers their outputs.

    PyTorch advises DistributedDataParallel instead; it is here because people still ask what that gives.
    """
    module = nn.DataParallel(model.module, device_ids=list(range(context.case.world_size)))
    return ParallelModel(module=module, data_rank=0, data_ranks=1)


def ddp(model: Model, context: StrategyContext) -> ParallelModel:
    """DistributedDataParallel: a replica on every rank; gradients are all-reduced in buckets during backward.

    `bucket_mib` is the cap of a bucket, or a list of caps, one for each in the order of reduction; None keeps PyTorch's
    two-stage default.
    """
    module = replicate(model.module, context)
    return ParallelModel(
        module=module,
        data_rank=context.rank,
        data_ranks=context.world_size,
        gradient_sync=gradient_sync(module, context.case),
        facts=lambda: bucket_facts(module),
    )


def replicate(module: nn.Module, context: StrategyContext, **options: Any) -> DistributedDataParallel:
    """DDP with the case's options; `options` are further ones of DDP's."""
    case, device = context.case, context.device
    return DistributedDataParallel(
        module,
        device_ids=[device] if device.type == accelerator.TYPE else None,
        **_caps(case),
        find_unused_parameters=case.find_unused_parameters,
        static_graph=case.static_graph,
        gradient_as_bucket_view=case.gradient_as_bucket_view,
        **options,
    )


def _caps(case: Case) -> dict[str, Any]:
    """Return DDP's option for the case's caps. PyTorch calls them MB and multiplies by 2^20. Its list takes fractions
    too, although it is declared as a list of integers."""
    return {"bucket_cap_mb_list": list(case.bucket_caps)} if case.bucket_caps else {"bucket_cap_mb": case.bucket_cap}


def gradient_sync(module: DistributedDataParallel, case: Case) -> Callable[[bool], AbstractContextManager[Any]]:
    """For `ParallelModel.gradient_sync`: the context in which backward reduces gradients, or only adds them up."""
    # A static graph is learnt in the very first backward; if that one reduces nothing, torch 2.13 fails an assertion.
    learnt = not case.static_graph

    def context(last: bool) -> AbstractContextManager[Any]:
        nonlocal learnt
        reduces = last or not case.no_sync or not learnt
        learnt = True
        return nullcontext() if reduces else module.no_sync()

    return context


def bucket_facts(module: DistributedDataParallel) -> dict[str, Any]:
    """The buckets that DDP really made, in bytes: a cap is no size."""
    logged: dict[str, Any] = module._get_ddp_logging_data()
    sizes = logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or ""
    return {"bucket_bytes": [int(size) for size in str(sizes).split(",") if size.strip()]}


def _settings(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the defaults of an optimizer that its class takes as arguments."""
    taken: set[str] = set()
    for each in type(optimizer).__mro__:
        parameters = inspect.signature(each).parameters.values()
        taken |= {parameter.name for parameter in parameters}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break  # it passes nothing on to its base class
    return {name: value for name, value in optimizer.defaults.items() if name in taken}


def zero1(model: Model, context: StrategyContext) -> ParallelModel:
    """ZeRO stage 1: DDP, and an optimizer whose state is split between ranks.

    Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020. Each rank updates
    the parameters that it owns, whole ones, dealt out so that all own about as many bytes; then every owner broadcasts
    what it updated, packed into one message.
    """
    # Not for who takes another strategy: it compiles with torch.jit.script, which torch 2.13 warns of.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    # `parameters_as_bucket_view` moves the parameters to contiguous memory. DDP must find them there: made before, its
    # buckets would keep the strides of a transposed parameter, and its gradient would come back permuted.
    trained = [each for each in model.module.parameters() if each.requires_grad]
    made = optimizer_for(model, trained, context.case)
    optimizer = ZeroRedundancyOptimizer(
        made.param_groups, optimizer_class=type(made), parameters_as_bucket_view=True, **_settings(made)
    )
    return replace(ddp(model, context), optimizer=optimizer)
