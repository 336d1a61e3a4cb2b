"""DistributedDataParallel: a replica on every rank; gradients are all-reduced in buckets during backward."""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel

from parabench.models.model import Model
from parabench.strategies.recipe import Context, Parallel


def ddp(model: Model, context: Context) -> Parallel:
    """Wrap the model. `bucket_mib` is the cap of a bucket; None keeps PyTorch's two-stage default."""
    place = context.place
    module = DistributedDataParallel(
        model.module,
        device_ids=[place.device] if place.device.type == "cuda" else None,
        # PyTorch calls it MB and multiplies by 2^20.
        bucket_cap_mb=context.case.bucket_mib,
    )

    def facts() -> dict[str, Any]:
        logged: dict[str, Any] = module._get_ddp_logging_data()
        sizes = logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or ""
        # A cap is no size: these are the buckets that DDP really made, in bytes.
        return {"bucket_bytes": [int(size) for size in str(sizes).split(",") if size.strip()]}

    return Parallel(module=module, data_rank=place.rank, data_ranks=place.world_size, facts=facts)
