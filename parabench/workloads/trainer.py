"""Build the training run of a case in one rank, and take its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parabench.data.loader import Loading
from parabench.errors import UsageError
from parabench.launch.rank import loaded_nccl
from parabench.metrics import METRICS
from parabench.models import IGNORED_LABELS, RANDOM_DATA
from parabench.models.base import (
    Model,
    attention_of,
    buffer_suspect,
    buffers_of,
    changed_buffers,
    ignores_labels,
    sizes,
    suspects_of,
)
from parabench.models.batches import Batch
from parabench.models.factory import build_model, own_scheduler
from parabench.models.options import CompileCounts, apply_options, arithmetic_of, move_model, set_arithmetic
from parabench.plan.case import Case
from parabench.probes import CaseReport, Probe
from parabench.probes.replicas import checksums
from parabench.registry import load
from parabench.strategies import STRATEGIES, base
from parabench.strategies.base import (
    Compute,
    ForwardBackward,
    LossScale,
    OptimizerLike,
    ParallelModel,
    RankInfo,
    StepMarker,
    StrategyContext,
    clip_gradients,
    norm_of,
    optimizer_for,
)


class Losses:
    """The loss of each step, on its device, so that a step does not wait for it.

    They are in blocks, because a separate tensor takes 512 bytes of a CUDA device.
    """

    BLOCK = 1024

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []
        self._count = 0

    def append(self, loss: Tensor) -> None:
        """Add the loss of a step, without waiting for it."""
        at = self._count % self.BLOCK
        if at == 0:
            self._blocks.append(torch.empty(self.BLOCK, dtype=loss.dtype, device=loss.device))
        self._blocks[-1][at] = loss
        self._count += 1

    def read(self) -> list[float]:
        """Return the losses of all steps. This waits for the device."""
        values = [value for block in self._blocks for value in block.double().tolist()]
        return values[: self._count]


@dataclass(slots=True, kw_only=True, eq=False)
class Training:
    """The training run of a case in one rank; `losses` and `grad_norm` are its results.

    `losses` stays empty on a rank without a loss, and `grad_norm` is None if it is unknown. `clip`, `scheduler` and
    `compiled` are None if they are not used.
    """

    case: Case
    parallel: ParallelModel
    compute: Compute
    optimizer: OptimizerLike
    batches: Iterator[Batch]
    gradient_norm: Callable[[], float | None]
    # Facts about the whole model.
    known: dict[str, Any] = field(default_factory=dict)
    clip: Callable[[], None] | None = None
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
    probes: Sequence[Probe] = ()
    compiled: CompileCounts | None = None
    losses: Losses = field(default_factory=Losses)
    grad_norm: float | None = None
    # The keys of `models.SUSPECTS` that were found, and copies of buffers that the first forward may change.
    suspects: list[str] = field(default_factory=list)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    # The number of steps so far.
    taken: int = 0

    def take(self, clock: StepMarker, steps: int) -> None:
        """Take further steps, and count the graphs and eager frames of torch.compile in them.

        The clock marks each step five times. Nothing else is recorded in a step, except in the first one.
        """
        with self.compiled or nullcontext():
            for step in range(self.taken, self.taken + steps):
                self._step(clock, first=step == 0)
        self.taken += steps

    def _step(self, clock: StepMarker, *, first: bool) -> None:
        """Take one step. The first one, a warm-up step, also records the gradient's norm and calls the probes."""
        clock.mark()
        batch = next(self.batches)
        clock.mark()
        loss = self.compute(batch, clock)  # marks the end of forward
        clock.mark()
        if first:
            # AdamW hides a gradient that is wrong by a factor, so losses alone would not show it, but its norm does.
            self.grad_norm = self.gradient_norm()
            if ignores_labels(batch):
                self.suspects.append(IGNORED_LABELS)
            if self.buffers:
                self.suspects += buffer_suspect(changed_buffers(self.buffers, buffers_of(self.parallel.module)))
                self.buffers = {}
            for probe in self.probes:
                probe.after_first_backward()
        if self.clip is not None:
            self.clip()
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        if first:
            for probe in self.probes:
                probe.after_first_step()
        self.optimizer.zero_grad()
        clock.mark()
        if loss is not None:
            self.losses.append(loss)

    def report(self) -> CaseReport:
        """Return the results of the finished training run, without the observations of its probes. A collective call.

        Raises:
            UsageError: If a strategy returns a number with an unknown name, or a value of another type.
        """
        facts = self.parallel.facts()
        numbers = self.parallel.numbers()
        for name, value in numbers.items():
            if name not in METRICS or not isinstance(value, (int, float)):
                raise UsageError(
                    f"strategy {self.case.strategy!r} tells {name} = {value!r}; give a number under a name of "
                    "metrics.METRICS"
                )
        arithmetic = arithmetic_of(getattr(self.optimizer, "left_out", None))
        return CaseReport(
            losses=self.losses.read(),
            grad_norm=self.grad_norm,
            facts={**self.known, **facts, **arithmetic, **loaded_nccl(self.case)},
            numbers=dict(numbers),
            checksums=checksums(self.parallel, self.case.world_size),
            rank_facts={} if self.compiled is None else {"compiled": self.compiled.facts()},
        )


def prepare(case: Case, rank_info: RankInfo) -> tuple[Model, Loading]:
    """Build the case's model from its seed, which is equal on all ranks, and start the workers that load its data.

    This part of a training run does not need other ranks.
    """
    # Build the model on the CPU and then move it. CUDA's random numbers depend on the number of multiprocessors
    # (pytorch#196613), and FSDP2 does not broadcast parameters, so different GPUs would start with different models.
    model = build_model(case, seed=case.seed)
    set_arithmetic(model, case)
    move_model(model, rank_info.device)
    return model, Loading(case, model)


def build(case: Case, rank_info: RankInfo, parts: tuple[Model, Loading] | None = None) -> Training:
    """Return the training run of a case: the parallel model, its optimizer and its data.

    `parts` is the result of `prepare` for this case. By default, `prepare` is called here.
    """
    model, loading = parts or prepare(case, rank_info)
    suspects = suspects_of(model.module)
    if case.strategy == "single" and loading.is_random():
        suspects.append(RANDOM_DATA)
    # Facts for `verify`: the dtypes of the weights, and possible reasons why a correct run differs.
    weights = sorted({str(each.dtype).removeprefix("torch.") for each in model.module.parameters()})
    known = {
        "model": sizes(model) | attention_of(case) | no_formula(model),
        "verification": {"weights": weights, "suspects": suspects},
    }
    apply_options(model, case)
    context = StrategyContext(rank_info.rank, rank_info.world_size, rank_info.device, case)
    parallel: ParallelModel = load(STRATEGIES, "strategy", case.strategy)(model, context)
    parameters = dict(model.module.named_parameters()) if parallel.parameters is None else parallel.parameters
    parallel = replace(parallel, parameters=parameters)
    optimizer = parallel.optimizer or optimizer_for(model, parameters.values(), case)
    scheduler = None
    # If the optimizer is on another rank, this rank has no scheduler.
    if model.scheduler is not None and isinstance(optimizer, torch.optim.Optimizer):
        scheduler = own_scheduler(model, case, optimizer)
    scale = None
    if case.arithmetic.scaled:
        if parallel.compute is not None:
            raise UsageError(
                f"strategy {case.strategy!r} takes its steps by itself and scales no loss, which precision "
                f"{case.precision} needs; use another precision"
            )
        optimizer = LossScale(optimizer, rank_info.device)
        scale = partial(getattr, optimizer, "scale")
    gather = None if parallel.full_tensor is base.full_tensor else parallel.full_tensor

    def norm() -> float:
        """Return the L2 norm of all gradients. If only the strategy can read them, it gathers them."""
        found = ((each, each.grad) for each in parameters.values() if each.grad is not None)
        return norm_of(gather(each, gradient) if gather else gradient for each, gradient in found)

    def gradient_norm() -> float | None:
        """Return the norm of the gradients, without the factor of a scaled loss. A collective call."""
        found = (parallel.gradient_norm or norm)()
        return found if found is None or scale is None else found / scale()

    most = model.clip_norm
    return Training(
        case=case,
        parallel=parallel,
        known=known,
        compute=parallel.compute
        or ForwardBackward(
            module=parallel.module,
            model=model,
            context=context,
            gradient_sync=parallel.gradient_sync,
            scale=scale,
            data_rank=parallel.data_rank,
        ),
        optimizer=optimizer,
        batches=loading.batches(
            parallel.data_rank,
            parallel.data_ranks,
            rank_info.device,
            # Only tensor parallel over all ranks splits batches by columns. Every rank has all rows.
            columns=(rank_info.rank, rank_info.world_size) if case.split == "dimension" else (0, 1),
        ),
        compiled=CompileCounts() if case.compile else None,
        gradient_norm=gradient_norm,
        clip=None if most is None else lambda: clip_gradients(parameters.values(), gradient_norm(), most),
        scheduler=scheduler,
        suspects=suspects,
        # One device computes the whole batch, so its buffers are sufficient.
        buffers=buffers_of(parallel.module) if case.strategy == "single" else {},
    )


def no_formula(model: Model) -> dict[str, str]:
    """Return {"no_formula": reason} if no `strategies.Formula` holds for this model, else {}."""
    if model.optimizer is not None:
        return {"no_formula": "the model has its own optimizer"}
    if not all(each.requires_grad for each in model.module.parameters()):
        return {"no_formula": "the model has frozen parameters"}
    return {}
