"""What a strategy is given and what it gives back, and the ordinary step: forward, loss, backward, then AdamW; and the
gradient's norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from typing import Protocol as Interface

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from parabench.models import SAME_SPLIT
from parabench.models.base import Model, loss_of, output_of
from parabench.models.batches import Batch, split
from parabench.models.factory import own_optimizer
from parabench.models.suspects import copies_of_buffers, set_buffers
from parabench.plan.case import Case

# Brown et al., "Language models are few-shot learners", 2020, appendix B; the rate is nanoGPT's order of size.
SETTINGS: dict[str, Any] = {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}

# Parts of batches that have different seeds; those of the next `Case.seed` follow.
SEEDS_APART = 10_000_019

# Elements that are squared at once. `torch.linalg.vector_norm(dtype=float64)` first copies a float32 tensor to float64
# (ATen/native/ReduceOpsUtils.h, make_reduction), so this bounds the copy: 8 MiB.
PIECE = 2**20


@dataclass(frozen=True, slots=True)
class RankInfo:
    """Which rank of how many this process is, and its device."""

    rank: int
    world_size: int
    device: torch.device


@dataclass(frozen=True, slots=True)
class StrategyContext(RankInfo):
    """What a strategy may look at besides the model."""

    case: Case

    def autocast(self) -> torch.autocast:
        """A fresh context in which operations run in the case's precision."""
        narrow = self.case.arithmetic.autocast
        dtype = None if narrow is None else getattr(torch, narrow)
        return torch.autocast(self.device.type, dtype, enabled=narrow is not None)


class StepMarker(Interface):
    """Marks the moments of a step; `probes.step_clock.StepClock` is the real one."""

    def mark(self) -> None: ...
    def skip(self) -> None: ...


class OptimizerLike(Interface):
    """What the loop and its instruments ask of an optimizer; torch's have it."""

    @property
    def param_groups(self) -> list[dict[str, Any]]: ...
    @property
    def state(self) -> Mapping[Any, Any]: ...
    def step(self) -> Any: ...
    def zero_grad(self) -> None: ...


class Compute(Interface):
    """Forward and backward of one rank's batch: leaves gradients, gives the loss, None where this rank sees none.

    It marks once, when forward ends and backward begins, or skips that mark where the two take turns.
    """

    def __call__(self, batch: Batch, clock: StepMarker) -> Tensor | None: ...


def local_part(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor that may be sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def stored_parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the dense tensors that store `tensor`: its indices and its values if it is sparse, else itself."""
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)


def always_sync(last: bool) -> AbstractContextManager[Any]:
    """What a strategy without anything to hold back does for every part of a batch."""
    return nullcontext()


def full_tensor(parameter: nn.Parameter, tensor: Tensor) -> Tensor:
    """All of a tensor that is a parameter, or the gradient of one, from this rank's part. A collective call."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelModel:
    """A model made parallel. `data_rank` of `data_ranks` says which part of each global batch this rank takes.

    The rest is for strategies that differ from: forward, loss, backward, then AdamW over all parameters.
    `compute` takes the place of forward and backward. `gradient_sync(last)` is the context in which a part of an
    accumulated batch is computed; gradients need to be reduced only for the last. `optimizer` is used instead of
    AdamW. `parameters` are those that this rank holds, by the model's own names; None: all of them.
    `full_tensor(parameter, tensor)` is all of what this rank has a part of: `tensor` is the parameter or its gradient,
    and the call a collective one. `gradient_norm` gives the L2 norm of the whole gradient after backward, None where
    this rank cannot know it; a collective call. Without it `norm_of` reads plain gradients and DTensors as they are, or
    what a `full_tensor` of the strategy's own makes of them. `counted` is False where tensors that torch does not show
    hold part of the training state, so that it can't be counted.
    After training `facts` is read, a collective call too: how the strategy really ran (bucket sizes, units); then
    `numbers`, what this rank saw of itself: {metric of metrics.METRICS: value}.
    """

    module: nn.Module
    data_rank: int
    data_ranks: int
    compute: Compute | None = None
    gradient_sync: Callable[[bool], AbstractContextManager[Any]] = always_sync
    optimizer: OptimizerLike | None = None
    parameters: Mapping[str, nn.Parameter] | None = None
    full_tensor: Callable[[nn.Parameter, Tensor], Tensor] = full_tensor
    gradient_norm: Callable[[], float | None] | None = None
    counted: bool = True
    facts: Callable[[], dict[str, Any]] = field(default=dict)
    numbers: Callable[[], dict[str, float]] = field(default=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBackward:
    """Forward, loss and backward of a rank's batch.

    With gradient accumulation the batch is split into equal parts, and the gradients add up to the mean over all of
    them; each part is computed in the context `gradient_sync(whether it is the last)`. `scale` returns the factor of
    the loss before backward. `module` is the model's, as the strategy wrapped it; `data_rank` is the rank's place among
    those that split the batch.

    With verification `same_split`, each part of the global batch has its own seed, so that dropout draws the same
    numbers wherever the part is computed. If one device computes the parts of several ranks (`Case.reference`), each
    rank's parts start from the buffers that the step started with, and the buffers of rank 0 are kept, as DDP does.
    """

    module: nn.Module
    model: Model
    context: StrategyContext
    gradient_sync: Callable[[bool], AbstractContextManager[Any]] = always_sync
    scale: Callable[[], float] | None = None
    data_rank: int = 0
    steps: Iterator[int] = field(default_factory=count)

    def __call__(self, batch: Batch, clock: StepMarker) -> Tensor:
        """Leave the gradients of the batch's mean loss, and return the loss."""
        case, step = self.context.case, next(self.steps)
        parts = case.batch_parts // case.data_ranks
        first = step * case.batch_parts + self.data_rank * parts
        if parts == 1:
            loss = self._loss(batch, first)
            clock.mark()
            self._backward(loss)
            return loss.detach()
        clock.skip()
        total = torch.zeros((), device=self.context.device)
        of_a_rank = parts if case.microbatches is None else case.microbatches
        start: dict[str, Tensor] = copies_of_buffers(self.module) if of_a_rank < parts else {}
        kept = start
        for i, part in enumerate(split(batch, parts)):
            if i and i % of_a_rank == 0:
                if i == of_a_rank:
                    kept = copies_of_buffers(self.module)
                set_buffers(self.module, start)
            with self.gradient_sync(i == parts - 1):
                loss = self._loss(part, first + i) / parts
                self._backward(loss)
            total += loss.detach()
        set_buffers(self.module, kept)
        return total

    def _loss(self, batch: Batch, number: int) -> Tensor:
        """Return the loss of a part of the global batch; `number` counts the parts of all steps and ranks."""
        case = self.context.case
        if case.verification == SAME_SPLIT:
            torch.manual_seed(case.seed * SEEDS_APART + number)
        with self.context.autocast():
            loss = loss_of(self.model, output_of(self.model, self.module, batch), batch)
        return loss.reshape(()) if loss.dim() else loss

    def _backward(self, loss: Tensor) -> None:
        (loss if self.scale is None else loss * self.scale()).backward()


def adamw(parameters: Iterable[nn.Parameter], *, fused: bool) -> torch.optim.Optimizer:
    """Make AdamW, with one group for each kind of tensor, because a fused step cannot mix them."""
    groups: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(mesh, []).append(parameter)
    # A fused step takes real numbers only.
    fused = fused and not any(each.is_complex() for group in groups.values() for each in group)
    # torch accepts no empty list, but an empty group: a pipeline stage may be frozen.
    return torch.optim.AdamW([{"params": each} for each in groups.values() or [[]]], fused=fused, **SETTINGS)


def optimizer_for(model: Model, parameters: Iterable[nn.Parameter], case: Case) -> torch.optim.Optimizer:
    """Make the model's optimizer, or AdamW, for the trainable parameters. Raises UsageError if the model makes anything
    but a torch optimizer that steps without a closure."""
    trained = [each for each in parameters if each.requires_grad]
    if model.optimizer is None or not trained:
        return adamw(trained, fused=case.fused)
    return own_optimizer(model, case, trained)


def clip_gradients(parameters: Iterable[nn.Parameter], norm: Tensor | float | None, most: float) -> None:
    """Scale the gradients so that their `norm` is at most `most`, as `torch.nn.utils.clip_grad_norm_` does. Without a
    norm, on a rank that cannot know it, nothing is changed."""
    gradients = [local_part(each.grad) for each in parameters if each.grad is not None]
    if norm is None or not gradients:
        return
    factor = torch.clamp(most / (torch.as_tensor(norm, device=gradients[0].device) + 1e-6), max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.to(gradient.dtype))


def squares_of(tensor: Tensor) -> Tensor:
    """The sum of squares of a plain tensor, as a float64 scalar on its device.

    Piece by piece: the norm is read in a warm-up step, and it must not be what the step's memory was largest for, nor
    leave torch's allocator with blocks that training never asks for.
    """
    total = torch.zeros((), dtype=torch.float64, device=tensor.device)
    tensor = tensor.detach()
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.dim() == 0:
        tensor = tensor.reshape(1)
    # By rows, which no layout has to be copied for.
    rows = max(1, PIECE // max(1, math.prod(tensor.shape[1:])))
    for piece in tensor.split(rows):
        total += torch.linalg.vector_norm(piece, dtype=torch.float64).square()
    return total


def norm_of(gradients: Iterable[Tensor]) -> float:
    """L2 norm of all gradients together: plain ones, which every rank has whole, and DTensors, of which it has parts.

    Nothing is gathered: each rank adds up its own, then one number is reduced.

    With DTensors among them it is a collective call of all ranks. Each shard is on as many ranks as there are over the
    number of shards, whether by a mesh dimension that replicates it or by other meshes beside it, so each of these
    ranks adds that fraction of its squares.
    """
    whole: Tensor | float = 0.0
    parts: Tensor | None = None
    for gradient in gradients:
        if not isinstance(gradient, DTensor):
            whole = whole + squares_of(gradient)
            continue
        summed = [Replicate() if each.is_partial() else each for each in gradient.placements]
        if summed != list(gradient.placements):
            gradient = gradient.redistribute(placements=summed)
        mesh = gradient.device_mesh
        shards = math.prod(mesh.size(at) for at, each in enumerate(summed) if not each.is_replicate())
        partial_sum = squares_of(gradient.to_local()) * (shards / dist.get_world_size())
        parts = partial_sum if parts is None else parts + partial_sum
    if parts is not None:
        dist.all_reduce(parts)
        whole = whole + parts
    return math.sqrt(float(whole))


def norm_over_ranks(gradients: Iterable[Tensor], device: torch.device) -> float:
    """L2 norm of the gradients that all ranks hold, each counted by one of them. A collective call."""
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for gradient in gradients:
        squares += squares_of(gradient)
    dist.all_reduce(squares)
    return math.sqrt(float(squares))
