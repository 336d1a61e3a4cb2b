"""DistributedDataParallel: a replica on every rank; gradients are all-reduced in buckets during backward."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parabench.models.model import Model
from parabench.strategies.recipe import Context, Parallel


def ddp(model: Model, context: Context) -> Parallel:
    """Wrap the model. `bucket_mib` is the cap of a bucket; None keeps PyTorch's two-stage default."""
    place = context.place
    module = replicate(model.module, context)
    return Parallel(
        module=module,
        data_rank=place.rank,
        data_ranks=place.world_size,
        last_reduces=lambda last: held_back(module, last or not context.case.no_sync),
        facts=lambda: bucket_facts(module),
    )


def replicate(module: nn.Module, context: Context, **options: Any) -> DistributedDataParallel:
    """DDP with the case's options; `options` are further ones of DDP's."""
    case, device = context.case, context.place.device
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


def held_back(module: DistributedDataParallel, reduces: bool) -> AbstractContextManager[Any]:
    """The context in which backward reduces gradients, or only adds them up."""
    return nullcontext() if reduces else module.no_sync()


def bucket_facts(module: DistributedDataParallel) -> dict[str, Any]:
    """The buckets that DDP really made, in bytes: a cap is no size."""
    logged: dict[str, Any] = module._get_ddp_logging_data()
    sizes = logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or ""
    return {"bucket_bytes": [int(size) for size in str(sizes).split(",") if size.strip()]}
