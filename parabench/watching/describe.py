"""What is trained in a loop that is not ours, as a case: read from the model, its optimizer and its first batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
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
from parabench.plan.case import BACKENDS, NAME, Case, slug
from parabench.probes.ddp import compiled_in_place, only_ddp
from parabench.store.record import BATCH_UNSEEN, MIB, Finding
from parabench.strategies import data_ranks

# What a watched training is called where nothing tells: a strategy that none of ours is, data that is the loop's own.
OWN_STRATEGY, OWN_DATA = "own:strategy", "own"

UNSEEN = Finding(
    BATCH_UNSEEN,
    "Samples per second are unknown: the batches of the loop hold no tensor whose first dimension counts samples.",
    "Give the number of samples of a step over all ranks: watch(..., global_batch=64).",
)


def uncalled(module: nn.Module) -> Finding:
    """Return the warning that the loop never called the watched model."""
    kind = type(module).__name__
    return Finding(
        "model_uncalled",
        f"The loop never called the watched {kind}, and its parameters have no gradients: it is not the model that is "
        "trained.",
        "Give watch the module that the loop calls.",
    )


def others(steps_of: Mapping[str, int], steps: int) -> Finding:
    """Return the warning that other optimizers, by class, stepped within the watched one's steps."""
    counts = ", ".join(f"{name} {count:,}" for name, count in steps_of.items())
    return Finding(
        "other_optimizer",
        f"Other optimizers stepped between forward and backward of the {steps:,} watched steps ({counts} times). Their "
        "models' time is part of forward and backward here; their batches do not count as gradient accumulation.",
        "To see where the other model's time goes, watch it with its own optimizer in another run.",
    )


def unwrapped(module: nn.Module) -> nn.Module:
    """The user's own module in what parallelises or compiles it."""
    while True:
        inner = getattr(module, "_orig_mod", None) or (
            module.module if isinstance(module, (DistributedDataParallel, nn.DataParallel)) else None
        )
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def name_of(module: nn.Module) -> str:
    """`module:Class` of a model, the last part of its module's name, a script's own name for `__main__`."""
    own = type(unwrapped(module))
    home = own.__module__.rpartition(".")[2]
    if home == "__main__":
        home = Path(getattr(sys.modules["__main__"], "__file__", None) or "script").stem
    name = f"{slug(home) or 'script'}:{slug(own.__name__)}"
    return name if NAME.fullmatch(name) else "own:Model"


def strategy_of(module: nn.Module, optimizer: Any, ranks: int) -> str:
    """How the model is made parallel: a key of STRATEGIES where it is one of these for certain, else OWN_STRATEGY."""
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


def caps_of(module: nn.Module) -> float | None:
    """DDP's bucket cap in MiB; None where there is none, or where it is PyTorch's own default."""
    replicas = only_ddp(module)
    if replicas is None or getattr(replicas, "bucket_bytes_cap_default", False):
        return None
    # DDP keeps whole bytes: what it was given is the shortest number that makes as many.
    held = int(replicas.bucket_bytes_cap)
    given = (float(f"{held / MIB:.{digits}g}") for digits in range(1, 18))
    return next((each for each in given if int(each * MIB) == held), held / MIB)


def tensors_of(batch: Any) -> Iterator[Tensor]:
    """Every tensor in a batch, however it is nested."""
    leaves = pytree.tree_leaves(dict(batch) if isinstance(batch, Mapping) else batch)
    return (leaf for leaf in leaves if isinstance(leaf, Tensor))


def size_of(batch: Any) -> tuple[int, int] | None:
    """(samples, tokens of a sample) of one rank's batch: of its first tensor the first dimension, and the second where
    it is of integers. None where no tensor has a dimension."""
    first = next((each for each in tensors_of(batch) if each.dim() and each.shape[0]), None)
    if first is None:
        return None
    words = first.dim() == 2 and not first.is_floating_point() and first.dtype != torch.bool
    return int(first.shape[0]), int(first.shape[1]) if words else 1


def device_of(module: nn.Module) -> torch.device:
    """Where the model's parameters are."""
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))


def precision_of(module: nn.Module, autocast: torch.dtype | None) -> str:
    """The name of the arithmetic in PRECISIONS; `autocast` is the type that the forward ran with, None without."""
    parameters = next((str(p.dtype).removeprefix("torch.") for p in module.parameters()), "float32")
    wanted = None if autocast is None else str(autocast).removeprefix("torch.")
    for name, each in PRECISIONS.items():
        own = each.parameters or "float32"
        if name not in (IEEE, TF32) and each.autocast == wanted and own == parameters:
            return name
    on_device = device_of(module).type == accelerator.TYPE
    return TF32 if on_device and torch.backends.cuda.matmul.fp32_precision == "tf32" else IEEE


def describe(
    module: nn.Module,
    optimizer: Any,
    *,
    name: str | None,
    ranks: int,
    nodes: int,
    samples: int,
    tokens: int,
    global_batch: int | None,
    batches: int,
    autocast: torch.dtype | None,
) -> Case:
    """The case of a watched training. `samples` are those of one rank in a step, in `batches`, of `tokens` each;
    `global_batch` those of all ranks where the user tells. The seed of the loop is not known: the case has the
    default's."""
    device = device_of(module).type
    strategy = strategy_of(module, optimizer, ranks)
    backend = dist.get_backend() if dist.is_initialized() else "auto"
    for each in backend.split(","):  # "cpu:gloo,cuda:nccl"
        of, _, own = each.rpartition(":")
        backend = own if of == device else backend
    return Case(
        strategy=strategy,
        bucket_mib=caps_of(module),
        world_size=ranks,
        nodes=nodes,
        model=name or name_of(module),
        data=OWN_DATA,
        global_batch=global_batch or samples * data_ranks(strategy, ranks, None),
        seq_len=tokens,
        precision=precision_of(module, autocast),
        device=device if device in ("cpu", accelerator.TYPE) else "auto",
        backend=backend if backend in BACKENDS else "auto",
        threads=torch.get_num_threads(),
        grad_accumulation=batches,
        compile=any(hasattr(each, "_orig_mod") or compiled_in_place(each) for each in module.modules()),
    )
