"""The optimizer of every training: AdamW with GPT-2's usual settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

# Brown et al., "Language models are few-shot learners", 2020, appendix B; the rate is nanoGPT's order of size.
SETTINGS: dict[str, Any] = {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}


def adamw(parameters: Iterable[nn.Parameter], *, fused: bool) -> torch.optim.Optimizer:
    """AdamW over `parameters`, one group for each kind of tensor: a fused step can't mix them."""
    groups: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(mesh, []).append(parameter)
    return torch.optim.AdamW([{"params": each} for each in groups.values()], fused=fused, **SETTINGS)
