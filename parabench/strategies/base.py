"""The interface of strategies, and the parts of an ordinary step: forward, loss, backward, clipping and AdamW."""

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
from parabench.models.base import Model, copies_of_buffers, loss_of, output_of, set_buffers
from parabench.models.batches import Batch, split
from parabench.models.factory import own_optimizer
from parabench.plan.case import Case

# Brown et al., "Language models are few-shot learners", 2020, appendix B; the rate is similar to nanoGPT's.
SETTINGS: dict[str, Any] = {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}

# The number of parts of batches with different seeds, before the seeds of the next `Case.seed`.
SEEDS_APART = 10_000_019

# The number of elements that are squared at once. `torch.linalg.vector_norm(dtype=float64)` copies a float32 tensor to
# float64, and this limits the copy to 8 MiB.
PIECE = 2**20


# torch.amp.GradScaler starts with 2^16 and skips the first steps until there is no overflow. With 2^12, gradients of a
# mean loss do not overflow, so the first step counts. Its gradient is verified.
FIRST_SCALE = 2.0**12
GROWTH_INTERVAL = 2000


@dataclass(frozen=True, slots=True)
class RankInfo:
    """The rank of this process, the number of ranks, and the device."""

    rank: int
    world_size: int
    device: torch.device


@dataclass(frozen=True, slots=True)
class StrategyContext(RankInfo):
    """The arguments of a strategy in addition to the model: the rank, its device, and the case."""

    case: Case

    def autocast(self) -> torch.autocast:
        """Return a new context for operations in the case's precision."""
        narrow = self.case.arithmetic.autocast
        dtype = None if narrow is None else getattr(torch, narrow)
        return torch.autocast(self.device.type, dtype, enabled=narrow is not None)


class StepMarker(Interface):
    """The interface of a clock that marks the parts of a step, such as `probes.step_clock.StepClock`."""

    def mark(self) -> None: ...
    def skip(self) -> None: ...


class OptimizerLike(Interface):
    """The part of torch's optimizer interface that the step loop and its instruments use."""

    @property
    def param_groups(self) -> list[dict[str, Any]]: ...
    @property
    def state(self) -> Mapping[Any, Any]: ...
    def step(self) -> Any: ...
    def zero_grad(self) -> None: ...


# A function that computes forward and backward of a rank's batch, and returns the loss; None if this rank does not have
# it. It marks the end of forward on the clock, or skips this mark if forward and backward alternate.
Compute = Callable[[Batch, StepMarker], Tensor | None]


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a DTensor. Other tensors are returned unchanged."""
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
    """Return a context that changes nothing, so that each part of a batch reduces its gradients."""
    return nullcontext()


def full_tensor(parameter: nn.Parameter, tensor: Tensor) -> Tensor:
    """Gather and return the whole tensor of a DTensor. Other tensors are returned unchanged. A collective call."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelModel:
    """A parallel model. This rank takes part `data_rank` of `data_ranks` of each global batch.

    The other fields replace parts of the ordinary step: forward, loss, backward, AdamW over all parameters.
    """

    module: nn.Module
    data_rank: int
    data_ranks: int
    compute: Compute | None = None  # instead of forward and backward
    # The context for a part of an accumulated batch, given whether it is the last part. Only the last must reduce.
    gradient_sync: Callable[[bool], AbstractContextManager[Any]] = always_sync
    optimizer: OptimizerLike | None = None  # instead of AdamW
    # {the model's name: parameter} of this rank; None for all parameters.
    parameters: Mapping[str, nn.Parameter] | None = None
    # A collective call that returns the whole of a parameter or its gradient.
    full_tensor: Callable[[nn.Parameter, Tensor], Tensor] = full_tensor
    # A collective call that returns the L2 norm of the whole gradient after backward; None if this rank cannot have it.
    # By default, `norm_of` computes it.
    gradient_norm: Callable[[], float | None] | None = None
    # Whether the model states can be counted. Not if they are in tensors that torch does not show.
    counted: bool = True
    # A collective call after training: details of the run, such as bucket sizes.
    facts: Callable[[], dict[str, Any]] = field(default=dict)
    # {metric: value} of this rank, after `facts`.
    numbers: Callable[[], dict[str, float]] = field(default=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBackward:
    """Compute forward, loss and backward of a rank's batch, in equal parts with gradient accumulation.

    `module` is the model with the strategy's wrapper. `scale` returns the factor that multiplies the loss before
    backward.
    """

    # With verification `same_split`, each part of the global batch has a separate seed, so that dropout is the same on
    # all ranks. If one device computes the parts of several ranks (`Case.reference`), each rank's parts start from the
    # buffers at the start of the step, and rank 0's buffers are kept, as with DDP.

    module: nn.Module
    model: Model
    context: StrategyContext
    gradient_sync: Callable[[bool], AbstractContextManager[Any]] = always_sync
    scale: Callable[[], float] | None = None
    data_rank: int = 0
    steps: Iterator[int] = field(default_factory=count)

    def __call__(self, batch: Batch, clock: StepMarker) -> Tensor:
        """Return the batch's mean loss, and accumulate its gradients in the parameters."""
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
    """Return AdamW with one group for each kind of tensor, because a fused step cannot mix them."""
    groups: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(mesh, []).append(parameter)
    # A fused step supports only real numbers.
    fused = fused and not any(each.is_complex() for group in groups.values() for each in group)
    # torch accepts an empty group, but not an empty list. A pipeline stage may be frozen.
    return torch.optim.AdamW([{"params": each} for each in groups.values() or [[]]], fused=fused, **SETTINGS)


def optimizer_for(model: Model, parameters: Iterable[nn.Parameter], case: Case) -> torch.optim.Optimizer:
    """Return the model's optimizer, or AdamW, for the trainable parameters.

    Raises UsageError unless the model returns a torch optimizer that steps without a closure.
    """
    trained = [each for each in parameters if each.requires_grad]
    if model.optimizer is None or not trained:
        return adamw(trained, fused=case.fused)
    return own_optimizer(model, case, trained)


class LossScale:
    """Wrap an optimizer for float16: unscale the gradients, and skip steps whose gradients overflow.

    Unlike with torch.amp.GradScaler, all ranks skip a step together. Each step waits for the device.
    """

    def __init__(self, optimizer: OptimizerLike, device: torch.device) -> None:
        self._optimizer, self._device = optimizer, device
        self.scale = FIRST_SCALE
        self.left_out = 0
        self._since = 0

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._optimizer.param_groups

    @property
    def state(self) -> Mapping[Any, Any]:
        return self._optimizer.state

    @property
    def optim(self) -> OptimizerLike:
        """The optimizer with this rank's state, like `ZeroRedundancyOptimizer.optim`."""
        return getattr(self._optimizer, "optim", self._optimizer)

    def zero_grad(self) -> None:
        self._optimizer.zero_grad()

    def step(self) -> None:
        """Step with unscaled gradients. If one is not finite on a rank, skip the step and halve the scale."""
        gradients = [local_part(p.grad) for group in self.param_groups for p in group["params"] if p.grad is not None]
        largest = torch.zeros(1, device=self._device)
        if filled := [each for each in gradients if each.numel()]:
            largest += torch.stack(torch._foreach_norm(filled, float("inf"))).max()
        overflowed = (~torch.isfinite(largest)).float()
        if dist.is_initialized():
            dist.all_reduce(overflowed, dist.ReduceOp.MAX)
        if overflowed.item():
            self.left_out += 1
            self.scale /= 2
            self._since = 0
            return
        if gradients:
            torch._foreach_mul_(gradients, 1 / self.scale)
        self._optimizer.step()
        self._since += 1
        if self._since == GROWTH_INTERVAL:
            self.scale *= 2
            self._since = 0


def clip_gradients(parameters: Iterable[nn.Parameter], norm: Tensor | float | None, most: float) -> None:
    """Scale the gradients so that their `norm` is at most `most`, like `torch.nn.utils.clip_grad_norm_`.

    If the norm is unknown on this rank, nothing changes.
    """
    gradients = [local_part(each.grad) for each in parameters if each.grad is not None]
    if norm is None or not gradients:
        return
    factor = torch.clamp(most / (torch.as_tensor(norm, device=gradients[0].device) + 1e-6), max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.to(gradient.dtype))


def squares_of(tensor: Tensor) -> Tensor:
    """Return the sum of squares of a plain tensor, as a float64 scalar on its device.

    It is computed in pieces, because it must not increase the peak memory of the step.
    """
    total = torch.zeros((), dtype=torch.float64, device=tensor.device)
    tensor = tensor.detach()
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.dim() == 0:
        tensor = tensor.reshape(1)
    # Rows need no copy.
    rows = max(1, PIECE // max(1, math.prod(tensor.shape[1:])))
    for piece in tensor.split(rows):
        total += torch.linalg.vector_norm(piece, dtype=torch.float64).square()
    return total


def norm_of(gradients: Iterable[Tensor]) -> float:
    """Return the L2 norm of all gradients, which may be sharded. With DTensors, this is a collective call.

    Nothing is gathered. Each rank adds the squares of its parts, and the sum is reduced.
    """
    # A shard is on several ranks if a mesh dimension replicates it, or if there are several meshes. Each rank adds only
    # its fraction of the squares.
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
