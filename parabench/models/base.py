"""A model and how to train it; a case's model, built, and what a case changes of any model: its arithmetic, activation
checkpointing and torch.compile, block by block."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ParallelStyle
from torch.utils.checkpoint import checkpoint

from parabench.errors import UsageError
from parabench.models import MODELS
from parabench.models.compiled import compile_blocks
from parabench.plan.case import Case
from parabench.registry import call_factory, find, load, load_factory, users_code

Loss = Callable[[Tensor, Tensor], Tensor]
MakeBatch = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]

# Read by cuBLAS and cuDNN themselves, behind torch's back ("NVIDIA_TF32_OVERRIDE" in their documentation).
OVERRIDES = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")

# Enough that no batch repeats within the steps that are verified, little enough to be made at once.
SYNTHETIC_BATCHES = 8


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


def build_model(case: Case) -> Model:
    """Build the case's model from torch's current seed. Raises UsageError if its factory does not return a Model."""
    entry = find(MODELS, "model", case.model)
    if entry is not None:
        made: Model = load(MODELS, "model", case.model)(entry, case)
        return made
    model = call_factory(load_factory(MODELS, "model", case.model, "Model"), case)
    if not isinstance(model, Model):
        raise UsageError(f"model {case.model!r} gives {type(model).__name__}; return a parabench.Model from it")
    if not isinstance(model.module, nn.Module):
        raise UsageError(f"model {case.model!r}: module is {what_is(model.module)}; it must be an nn.Module")
    return model


def move_model(model: Model, device: torch.device) -> None:
    """Move the model's modules to `device`, in place."""
    # The parameters of a stem and a head are the module's, but their buffers can be separate, as a loss's weights are.
    for part in (model.module, model.stem, model.head, model.loss):
        if isinstance(part, nn.Module):
            part.to(device)


def what_is(value: Any) -> str:
    """A wrong value in few words; a class is often meant to be called first."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return repr(value) if value is None or isinstance(value, (int, float, str)) else type(value).__name__


def sizes(model: Model) -> dict[str, int]:
    """Bytes of all parameters, and of those that tensor parallel would split; how many numbers they are, and how many
    of them are only looked up: embeddings that no other layer multiplies with, as a tied head does."""
    parameters = {id(p): p for p in model.module.parameters()}
    split = {
        id(p): p.nbytes
        for name, module in model.module.named_modules()
        if any(fnmatch(name, pattern) for pattern in model.tensor_parallel)
        for p in module.parameters()
    }
    looked_up: set[int] = set()
    multiplied: set[int] = set()
    for module in model.module.modules():
        kind = looked_up if isinstance(module, nn.Embedding) else multiplied
        kind |= {id(p) for p in module.parameters(recurse=False)}
    return {
        "bytes": sum(p.nbytes for p in parameters.values()),
        "tensor_parallel_bytes": sum(split.values()),
        "parameters": sum(p.numel() for p in parameters.values()),
        "embedding_parameters": sum(parameters[each].numel() for each in looked_up - multiplied),
    }


def attention_of(case: Case) -> dict[str, int]:
    """{"layers", "heads", "head_dim"} of our decoders' attention; empty for other models, whose shape is not known."""
    entry = find(MODELS, "model", case.model)
    if entry is None or entry.heads is None or entry.width is None:
        return {}
    return {"layers": entry.blocks, "heads": entry.heads, "head_dim": entry.width // entry.heads}


def make_samples(batch: MakeBatch, case: Case) -> tuple[Tensor, Tensor]:
    """The case's synthetic samples. Raises UsageError where a user's `batch` fails, or gives something else than it
    was asked for."""
    rows = SYNTHETIC_BATCHES * case.global_batch
    with users_code(f"model {case.model!r} cannot make {rows} samples", "fix its batch"):
        made: Any = batch(rows, torch.Generator().manual_seed(case.seed))
    asked = f"asked for {rows} samples; give a pair (inputs, targets) of tensors on the CPU with {rows} rows each"
    if not isinstance(made, (tuple, list)) or not all(isinstance(each, Tensor) for each in made):
        kind = type(made).__name__
        inside = f" of {', '.join(type(each).__name__ for each in made[:3])}" if isinstance(made, (tuple, list)) else ""
        raise UsageError(f"model {case.model!r}: batch gives {kind}{inside}, {asked}")
    wrong = [each for each in made if each.device.type != "cpu" or each.shape[:1] != (rows,)]
    if len(made) != 2 or wrong:
        shapes = ", ".join(f"{tuple(each.shape)} on {each.device}" for each in made[:3])
        raise UsageError(f"model {case.model!r}: batch gives {len(made)} tensors, {shapes}, {asked}")
    return made[0], made[1]


def set_arithmetic(model: Model, case: Case) -> None:
    """Convert the model to the case's dtype, and set whether float32 products of this process may use TF32.

    By default, torch allows TF32 in cuDNN's convolutions but not in matrix products. Both settings hold for the whole
    process, so cases that need different ones never share a launch (`plan.cohorts`). These two setters keep torch's
    older and newer settings of TF32 in agreement; torch.compile reads the older one.
    """
    wanted = case.arithmetic
    torch.set_float32_matmul_precision("high" if wanted.allows_tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = wanted.allows_tf32
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
    """Change the model's blocks, or the whole module if it has none, in place: names and parameters stay."""
    blocks = model.blocks or [model.module]
    if case.compile:
        compile_blocks(blocks)
    if case.activation_checkpointing:
        # After compiling: torch 2.13 fails to compile what is checkpointed over parameters that are DTensors.
        for block in blocks:
            block.forward = checkpointed(block.forward)


def checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """`forward`, whose activations are not kept but computed again in backward."""

    def again(*inputs: Any) -> Any:
        return checkpoint(forward, *inputs, use_reentrant=False)

    return again
