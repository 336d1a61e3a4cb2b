"""What the trainer and the strategies need to know of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.distributed.tensor.parallel import ParallelStyle


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A module and how to train it.

    `loss(output, targets)` is the mean over the batch. `vocabulary` bounds synthetic tokens. `blocks` are the
    repeated parts in order: what FSDP shards as units. `tensor_parallel` maps names inside a block to their style;
    empty when the model has no such plan.
    """

    module: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    vocabulary: int
    blocks: Sequence[nn.Module] = ()
    tensor_parallel: Mapping[str, ParallelStyle] = field(default_factory=dict)
