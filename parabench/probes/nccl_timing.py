"""NCCL's own clock: how long its kernels took, which c10d keeps only when it is asked to."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def is_nccl(group: Any, device: torch.device) -> bool:
    """Whether NCCL carries what `group` sends from `device`."""
    if device.type != "cuda":
        return False
    try:
        return "nccl" in group._get_backend(device).name().lower()
    except RuntimeError:  # the group has no backend for that device
        return False


def enable_timing(device: torch.device) -> None:
    """From now on NCCL's works know how long they took (`Work._get_duration`): c10d records a timed event before each.

    c10d has no way to switch it off again, so it must not be called before the last timed step.
    """
    for group in dist.distributed_c10d._world.pg_map:
        if is_nccl(group, device):
            group._enable_collectives_timing()  # type: ignore[attr-defined]
