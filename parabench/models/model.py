"""What the trainer and the strategies need to know of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ParallelStyle

Loss = Callable[[Tensor, Tensor], Tensor]
MakeBatch = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]


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
