"""Describe a watched training run as a configuration, from its model, its optimizer and its first batch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from parabench.machine import accelerator
from parabench.models import IEEE, PRECISIONS, TF32
from parabench.plan.case import BACKENDS, NAME, slug
from parabench.probes.ddp import only_ddp
from parabench.store.record import BATCH_UNSEEN, MIB, Finding

# A strategy that is not in STRATEGIES, and the data of a watched loop.
OWN_STRATEGY, OWN_DATA = "own:strategy", "own"

UNSEEN = Finding(
    BATCH_UNSEEN,
    "Samples per second are unknown: the batches of the loop hold no tensor whose first dimension counts samples.",
    "Give the number of samples of a step over all ranks: watch(..., global_batch=64).",
)


def uncalled(module: nn.Module) -> Finding:
    """Return the warning for a loop that never called the watched model."""
    kind = type(module).__name__
    return Finding(
        "model_uncalled",
        f"The loop never called the watched {kind}, and its parameters have no gradients: it is not the model that is "
        "trained.",
        "Give watch the module that the loop calls.",
    )


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the user's module without the wrappers of DDP, DataParallel and torch.compile."""
    while True:
        inner = getattr(module, "_orig_mod", None) or (
            module.module if isinstance(module, (DistributedDataParallel, nn.DataParallel)) else None
        )
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def name_of(module: nn.Module) -> str:
    """Return `module:Class` of a model: the last part of its module's name, or the script's name for `__main__`."""
    own = type(unwrapped(module))
    home = own.__module__.rpartition(".")[2]
    if home == "__main__":
        home = Path(getattr(sys.modules["__main__"], "__file__", None) or "script").stem
    name = f"{slug(home) or 'script'}:{slug(own.__name__)}"
    return name if NAME.fullmatch(name) else "own:Model"


def strategy_of(module: nn.Module, optimizer: Any, ranks: int) -> str:
    """Return the key of STRATEGIES if the model certainly uses this strategy, else OWN_STRATEGY."""
    meshes = {parameter.device_mesh.ndim for parameter in module.parameters() if isinstance(parameter, DTensor)}
    sharded = any(isinstance(each, FSDPModule) for each in module.modules())
    replicated = any(isinstance(each, DistributedDataParallel) for each in module.modules())
    if sharded:
        return "fsdp" if meshes == {1} else OWN_STRATEGY
    if meshes:
        return "tp" if meshes == {1} and not replicated else OWN_STRATEGY
    if replicated:
        return "zero1" if type(optimizer).__name__ == "ZeroRedundancyOptimizer" else "ddp"
    return "single" if ranks == 1 else OWN_STRATEGY


def bucket_cap_mib(module: nn.Module) -> float | None:
    """Return the bucket cap of the model's DDP in MiB; `None` without DDP, or if it is PyTorch's default."""
    replicas = only_ddp(module)
    if replicas is None or getattr(replicas, "bucket_bytes_cap_default", False):
        return None
    # DDP rounds the given cap down to whole bytes, so 0.2 MiB become 0.1999998.
    return round(replicas.bucket_bytes_cap / MIB, 5)


def size_of(batch: Any) -> tuple[int, int] | None:
    """Return (samples, tokens per sample) of a rank's batch, which may be nested; `None` if no tensor has a dimension.

    They are the dimensions of the first tensor. The tokens are 1 unless it has two dimensions and holds integers.
    """
    leaves = pytree.tree_leaves(dict(batch) if isinstance(batch, Mapping) else batch)
    first = next((each for each in leaves if isinstance(each, Tensor) and each.dim() and each.shape[0]), None)
    if first is None:
        return None
    words = first.dim() == 2 and not first.is_floating_point() and first.dtype != torch.bool
    return int(first.shape[0]), int(first.shape[1]) if words else 1


def device_of(module: nn.Module) -> torch.device:
    """Return the device of the model's parameters."""
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))


def precision_of(module: nn.Module, autocast: torch.dtype | None) -> str:
    """Return the key of PRECISIONS for a model. `autocast` is the dtype of autocast during forward, if it was on."""
    parameters = next((str(p.dtype).removeprefix("torch.") for p in module.parameters()), "float32")
    wanted = None if autocast is None else str(autocast).removeprefix("torch.")
    for name, each in PRECISIONS.items():
        if name not in (IEEE, TF32) and each.autocast == wanted and each.parameters == parameters:
            return name
    on_device = device_of(module).type == accelerator.TYPE
    return TF32 if on_device and torch.backends.cuda.matmul.fp32_precision == "tf32" else IEEE


def backend_of(device: str) -> str:
    """Return the name of the default process group's backend for a type of device."""
    backends = dist.get_backend().split(",") if dist.is_initialized() else []
    named = {of or device: backend for of, _, backend in (each.rpartition(":") for each in backends)}  # "cpu:gloo"
    return named[device] if named.get(device) in BACKENDS else "auto"
