"""A model and how to train it, and what a case changes of any model: its arithmetic, activation checkpointing and
torch.compile, block by block."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ParallelStyle
from torch.utils.checkpoint import checkpoint

from parabench.models.precision import TF32
from parabench.plan.case import Case

Loss = Callable[[Tensor, Tensor], Tensor]
MakeBatch = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]

# Read by cuBLAS and cuDNN themselves, behind torch's back ("NVIDIA_TF32_OVERRIDE" in their documentation).
OVERRIDES = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")

# Inductor's own limit for a process.
MOST_COMPILE_THREADS = 32


def at_least_float32(values: Tensor) -> Tensor:
    """`values` for a loss: float32 where they are narrower, because a mean of many needs the digits; float64 stays."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A module and how to train it.

    `loss(output, targets)` is the mean over the samples. `batch(n, generator)` makes n synthetic samples (inputs,
    targets) on the CPU, first dimension n, from that generator alone; it may be missing where data comes from
    elsewhere. `vocabulary` is how many tokens it knows, None when it takes no tokens; `context` how many at most
    in a sequence, None when any number will do.

    What only some strategies need:
    `blocks` are the repeated parts in order: what FSDP shards as units, a pipeline deals out, and activation
    checkpointing computes again. For a pipeline `head(blocks(stem(x)))` must be `module(x)`; None is the identity.
    `tensor_parallel` maps names in the module ("blocks.*.up") to their style, `sequence_parallel` the same where
    activations between the layers are split along the sequence. `first` names the linear layer that takes the
    features, for data that is split by dimension; its output is summed over ranks, so what follows takes it whole.
    """

    module: nn.Module
    loss: Loss
    batch: MakeBatch | None = None
    vocabulary: int | None = None
    context: int | None = None
    blocks: Sequence[nn.Module] = ()
    stem: nn.Module | None = None
    head: nn.Module | None = None
    tensor_parallel: Mapping[str, ParallelStyle] = field(default_factory=dict)
    sequence_parallel: Mapping[str, ParallelStyle] = field(default_factory=dict)
    first: str | None = None


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
    facts: dict[str, Any] = {
        "matmul": _setting_or_mixed(torch.get_float32_matmul_precision),
        "cudnn_tf32": _setting_or_mixed(lambda: torch.backends.cudnn.allow_tf32),
        "overrides": {name: os.environ[name] for name in OVERRIDES if name in os.environ},
    }
    return {"arithmetic": facts | ({} if left_out is None else {"steps_left_out": left_out})}


def _setting_or_mixed(setting: Callable[[], Any]) -> Any:
    """What torch says; it refuses where a user's code set the same thing in its older and its newer way."""
    try:
        return setting()
    except RuntimeError:
        return "mixed settings"


def apply_options(model: Model, case: Case) -> None:
    """Change the model's blocks, or the whole module where it has none, in place: names and parameters stay."""
    blocks = model.blocks or [model.module]
    if case.compile:
        share_compile_threads()
    for block in blocks:
        # In this order: torch 2.13 fails to compile what is checkpointed over parameters that are DTensors.
        if case.compile:
            block.forward = torch.compile(block.forward)
        if case.activation_checkpointing:
            block.forward = checkpointed(block.forward)


def share_compile_threads() -> None:
    """Let the ranks of a node start as many compile workers together as it has cores, unless the user said how many.

    Inductor starts up to 32 for each rank (torch/_inductor/config.py, decide_compile_threads).
    """
    if "TORCHINDUCTOR_COMPILE_THREADS" in os.environ:
        return
    from torch._inductor import config

    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    config.compile_threads = max(1, min(MOST_COMPILE_THREADS, len(os.sched_getaffinity(0)) // ranks))


def checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """`forward`, whose activations are not kept but computed again in backward."""

    def again(*inputs: Any) -> Any:
        return checkpoint(forward, *inputs, use_reentrant=False)

    return again
