"""A model and its process set to the case's precision, and what the process says of it afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from parabench.models.model import Model
from parabench.models.precision import TF32
from parabench.plan.case import Case

# Read by cuBLAS and cuDNN themselves, behind torch's back ("NVIDIA_TF32_OVERRIDE" in their documentation).
OVERRIDES = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")


def set_arithmetic(model: Model, case: Case) -> None:
    """Give the model the case's dtype, and let float32 products use TF32 or not: by default torch lets cuDNN's
    convolutions use it, and matrix products not.

    These two setters keep torch's older and newer settings of TF32 in agreement; torch.compile reads the older.
    """
    wanted = case.arithmetic
    torch.set_float32_matmul_precision("high" if wanted.matmul == TF32 else "highest")
    torch.backends.cudnn.allow_tf32 = wanted.matmul == TF32
    parameters = getattr(torch, wanted.parameters)
    if parameters is not torch.float32:
        model.module.to(parameters)


def arithmetic_of(left_out: int | None) -> dict[str, Any]:
    """{"arithmetic": ...}: which arithmetic this process allows float32 products at the end of a training, after
    the user's own code; how many steps a scaled loss left out, where it was scaled."""
    told: dict[str, Any] = {
        "matmul": _asked(torch.get_float32_matmul_precision),
        "cudnn_tf32": _asked(lambda: torch.backends.cudnn.allow_tf32),
        "overrides": {name: os.environ[name] for name in OVERRIDES if name in os.environ},
    }
    return {"arithmetic": told | ({} if left_out is None else {"steps_left_out": left_out})}


def _asked(setting: Callable[[], Any]) -> Any:
    """What torch says; it refuses where a user's code set the same thing in its older and its newer way."""
    try:
        return setting()
    except RuntimeError:
        return "mixed settings"
