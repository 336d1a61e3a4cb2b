"""DistributedDataParallel: a replica on every rank; gradients are all-reduced in buckets during backward."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parabench.models.model import Model
from parabench.plan.case import Case
from parabench.strategies.base import ParallelModel, StrategyContext


def ddp(model: Model, context: StrategyContext) -> ParallelModel:
    """Wrap the model. `bucket_mib` is the cap of a bucket; None keeps PyTorch's two-stage default."""
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
        device_ids=[device] if device.type == "cuda" else None,
        # PyTorch calls it MB and multiplies by 2^20.
        bucket_cap_mb=case.bucket_mib,
        find_unused_parameters=case.find_unused_parameters,
        static_graph=case.static_graph,
        gradient_as_bucket_view=case.gradient_as_bucket_view,
        **options,
    )


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
