"""A model and how to train it, and its size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ParallelStyle

from parabench.errors import UsageError
from parabench.models import EXACT, MODELS
from parabench.models.batches import Batch, call, inputs_of, targets_of
from parabench.plan.case import Case
from parabench.registry import find

Loss = Callable[[Any, Any], Tensor]
MakeBatch = Callable[..., Batch]


def at_least_float32(values: Tensor) -> Tensor:
    """Convert `values` for a loss to float32, because a mean needs the digits. float64 stays."""
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
    """Run forward of `module`, the model's module with the wrapper of a strategy."""
    return call(module, inputs_of(batch)) if model.forward is None else model.forward(module, batch)


def loss_of(model: Model, output: Any, batch: Batch) -> Tensor:
    """Return the loss of a batch. Raises UsageError if neither `Model.loss` nor the output has one."""
    if model.loss is not None:
        return model.loss(output, targets_of(batch))
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if not isinstance(loss, Tensor):
        raise UsageError(f"the model's output, {type(output).__name__}, has no loss; give Model.loss, or the labels")
    return loss


def sizes(model: Model) -> dict[str, int]:
    """Return the bytes of all parameters and of split ones, and the numbers of all parameters and of embeddings.

    Embeddings that are tied to a head do not count as embeddings, because they are multiplied.
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
