"""Model: a module and how to train it. Its forward and loss, size, buffers, and suspect properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ParallelStyle
from torch.nn.modules.batchnorm import _NormBase

from parabench.errors import UsageError
from parabench.models import BATCH_NORM, BUFFER, DROPOUT, EXACT, IGNORED, MODELS
from parabench.models.batches import Batch, call, inputs_of, targets_of, tensors_of
from parabench.plan.case import Case
from parabench.registry import find

Loss = Callable[[Any, Any], Tensor]
MakeBatch = Callable[..., Batch]


def at_least_float32(values: Tensor) -> Tensor:
    """Convert `values` to float32, because a mean needs its digits. float64 is not changed."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A module and how to train it.

    Data:
        A batch is a pair `(inputs, targets)`, or another structure of tensors (tuple, dict, dataclass). The first
        dimension of each tensor is the samples. `batch(n, generator)` or `batch(n, generator, seq_len)` returns n
        synthetic samples on the CPU, or is None. `collate(items)` returns a batch of a Dataset's items; None is torch's
        `default_collate`. `vocabulary` is the number of tokens, or None for a model without tokens. `context` is the
        length of the longest sequence, or None.

    Forward and loss:
        `forward(module, batch)` returns the output. None calls the module with the inputs of a pair, or with the whole
        batch. The items of a tuple are passed by position, and the fields of a dict or dataclass by name.
        `loss(output, targets)` returns a scalar, the mean over the samples. If a batch is not a pair, it receives the
        whole batch. None uses `loss` of the output, as in Hugging Face's models.

    Optimizer:
        `optimizer(parameters)` returns a torch optimizer for the list of parameters that a rank trains; None is AdamW
        (`strategies.base.SETTINGS`). `scheduler(optimizer)` returns a torch learning rate scheduler, which steps after
        each step. `clip_norm` is the largest L2 norm of the gradient.

    Verification:
        `verification` is the reference of each launch: `exact`, `same_split` for models whose loss depends on how the
        batch is split, or `first_loss`.

    For some strategies:
        `blocks` are the repeated parts in order. FSDP shards them, pipelines distribute them, and activation
        checkpointing recomputes them. For a pipeline, `head(blocks(stem(x)))` must be `module(x)`; None is the
        identity. `tensor_parallel` maps names in the module ("blocks.*.up") to their styles, and `sequence_parallel`
        does so if activations are split along the sequence. `first` is the name of the linear layer for the features,
        if data is split by dimension; its output is summed over ranks. `why_missing` maps missing fields to reasons,
        for messages.
    """

    module: nn.Module
    loss: Loss | None = None
    batch: MakeBatch | None = None
    collate: Callable[[list[Any]], Batch] | None = None
    forward: Callable[[nn.Module, Batch], Any] | None = None
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None
    scheduler: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None
    clip_norm: float | None = None
    verification: str = EXACT
    vocabulary: int | None = None
    context: int | None = None
    blocks: Sequence[nn.Module] = ()
    stem: nn.Module | None = None
    head: nn.Module | None = None
    tensor_parallel: Mapping[str, ParallelStyle] = field(default_factory=dict)
    sequence_parallel: Mapping[str, ParallelStyle] = field(default_factory=dict)
    first: str | None = None
    why_missing: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def from_transformers(config: Any) -> Model:
        """Build a language model with random weights from a Hugging Face `config`, without downloads.

        Dropout is 0, and weights are float32. To change a field, use `dataclasses.replace`.

        Raises UsageError if transformers is not installed, or has no language model for the config.
        """
        from parabench.models.hugging_face import fields_of

        return Model(**fields_of(config))


def output_of(model: Model, module: nn.Module, batch: Batch) -> Any:
    """Run the forward pass of `module`: the model's module, possibly wrapped by a strategy."""
    return call(module, inputs_of(batch)) if model.forward is None else model.forward(module, batch)


def loss_of(model: Model, output: Any, batch: Batch) -> Tensor:
    """Return the loss of a batch. Raises UsageError if there is no `Model.loss` and the output has no loss."""
    if model.loss is not None:
        return model.loss(output, targets_of(batch))
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if not isinstance(loss, Tensor):
        raise UsageError(f"the model's output, {type(output).__name__}, has no loss; give Model.loss, or the labels")
    return loss


def sizes(model: Model) -> dict[str, int]:
    """Return the size of a model: `bytes`, `tensor_parallel_bytes`, `parameters` and `embedding_parameters`.

    Only split parameters count as `tensor_parallel_bytes`. Embeddings that are tied to a head do not count as
    embeddings, because they take part in a matrix product.
    """
    parameters = {id(p): p for p in model.module.parameters()}
    split: set[int] = set()
    looked_up: set[int] = set()
    multiplied: set[int] = set()
    for name, module in model.module.named_modules():
        if any(fnmatch(name, pattern) for pattern in model.tensor_parallel):
            split |= {id(p) for p in module.parameters()}
        kind = looked_up if isinstance(module, nn.Embedding) else multiplied
        kind |= {id(p) for p in module.parameters(recurse=False)}
    return {
        "bytes": sum(p.nbytes for p in parameters.values()),
        "tensor_parallel_bytes": sum(parameters[each].nbytes for each in split),
        "parameters": sum(p.numel() for p in parameters.values()),
        "embedding_parameters": sum(parameters[each].numel() for each in looked_up - multiplied),
    }


def attention_of(case: Case) -> dict[str, int]:
    """Return {"layers", "heads", "head_dim"} of a built-in decoder's attention; empty for other models."""
    entry = find(MODELS, "model", case.model)
    if entry is None or entry.heads is None or entry.width is None:
        return {}
    return {"layers": entry.blocks, "heads": entry.heads, "head_dim": entry.width // entry.heads}


# ---- suspects: properties that change correct training runs, relative to one device


def suspects_of(module: nn.Module) -> list[str]:
    """Return which of `models.DROPOUT` and `models.BATCH_NORM` the module has in training mode."""
    found = set()
    for each in module.modules():
        dropout = 0.0
        if isinstance(each, nn.modules.dropout._DropoutNd):
            dropout = each.p
        elif isinstance(each, (nn.RNNBase, nn.MultiheadAttention)):
            dropout = each.dropout
        if each.training and dropout > 0:
            found.add(DROPOUT)
        normalizes = isinstance(each, nn.modules.batchnorm._BatchNorm) and not isinstance(each, nn.SyncBatchNorm)
        if each.training and normalizes:
            found.add(BATCH_NORM)
    return sorted(found)


def ignores_labels(batch: Any) -> bool:
    """Return whether a batch has targets that torch's cross_entropy ignores by default (label -100)."""
    targets = (each for each in tensors_of(targets_of(batch)) if each.dtype == torch.int64)
    return any(bool(torch.any(each == IGNORED)) for each in targets)


def buffer_suspect(names: Sequence[str]) -> list[str]:
    """Return the suspect for changing buffers, such as ["buffer:ema.mean"]; empty without names."""
    return [f"{BUFFER}:{first_names(names)}"] if names else []


def first_names(names: Sequence[str]) -> str:
    """Join the first three names and the number of further ones: 'a, b, c and 2 more'."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def copies_of_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of a module's buffers by name."""
    return {name: each.detach().clone() for name, each in module.named_buffers()}


def set_buffers(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Set the module's buffers to these values, in place."""
    with torch.no_grad():
        for name, each in module.named_buffers():
            if name in values:
                each.copy_(values[name])


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of a module's buffers, except the statistics of norms, which training does not read."""
    norms = {id(each) for part in module.modules() if isinstance(part, _NormBase) for each in part.buffers()}
    return {name: each.clone() for name, each in module.named_buffers() if id(each) not in norms}


def changed_buffers(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[str]:
    """Return the names of buffers whose bits differ, or that are missing in `before` or `after`."""
    return [
        name
        for name in dict.fromkeys((*before, *after))
        if name not in before or name not in after or not same_bits(before[name], after[name])
    ]


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same shape, dtype and bits. Equal NaN are the same."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return one.contiguous().view(-1).view(torch.uint8).equal(other.contiguous().view(-1).view(torch.uint8))
