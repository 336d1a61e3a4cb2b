"""Pipeline parallel: each rank holds some of the layers, and micro-batches pass from rank to rank, so that all compute.

Huang et al., "GPipe", 2019; Narayanan et al., "Efficient large-scale language model training on GPU clusters using
Megatron-LM", 2021. `plan/pipeline_schedule.py` says how much of the time is waiting all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from parabench.machine.accelerator import Moment, clock_of, elapsed_s
from parabench.models.base import Loss, Model
from parabench.models.batches import Batch
from parabench.plan.pipeline_schedule import STAGES_PER_RANK, automatic, bubble
from parabench.strategies.base import ParallelModel, StepMarker, StrategyContext, norm_over_ranks
from parabench.strategies.pipeline_stages import TiedGradients, drop_all_but, holders, shapes, stages_from

P = ParamSpec("P")
R = TypeVar("R")
Schedule = PipelineScheduleSingle | PipelineScheduleMulti

# The first step makes buffers. A third may be one that is timed, and must carry no instrument.
WATCHED = 1


def pp(model: Model, context: StrategyContext) -> ParallelModel:
    """Micro-batches in the order of the case's schedule."""
    case = context.case
    microbatches = case.microbatches or automatic(case.schedule, case.world_size, case.global_batch)
    return pipelined(model, context, schedule=case.schedule, microbatches=microbatches)


def layer_split(model: Model, context: StrategyContext) -> ParallelModel:
    """The naive vertical split: the same stages as a pipeline's, and the whole batch at once.

    One rank computes at a time, and all others wait, (n - 1)/n of the time: a pipeline of a single micro-batch. It
    trains what fits on no single device, n times as slowly as n devices could.
    """
    return pipelined(model, context, schedule="gpipe", microbatches=1, schedule_name="layer_split")


def pipelined(
    model: Model, context: StrategyContext, *, schedule: str, microbatches: int, schedule_name: str | None = None
) -> ParallelModel:
    """Deal the stages out, keep this rank's, and let torch's schedule run them. `schedule_name` is for the facts."""
    rank, ranks, device = context.rank, context.world_size, context.device

    # Stage i is on rank i mod n. What several of them hold is tied; what a rank does not hold it gives back.
    stages = stages_from(model, ranks * STAGES_PER_RANK[schedule], context)
    local_stages = {i: stage for i, stage in enumerate(stages) if i % ranks == rank}
    parameters = dict(model.module.named_parameters())
    where = holders(parameters, stages, ranks)
    tied = TiedGradients(parameters, where)
    held = {name: parameter for name, parameter in parameters.items() if rank in where[name]}
    told = shapes(model, stages, context, microbatches)
    drop_all_but(local_stages.values(), model.module)

    # Forward, loss and backward are what a rank computes; the rest of its time it waits for messages.
    busy = BusyShare(device)
    assert model.loss is not None  # checked before the launch
    loss = busy.counted(part_of_loss(model.loss, context, microbatches))
    run = [timed(PipelineStage(stage, i, len(stages), device, *told[i]), busy) for i, stage in local_stages.items()]
    order = ordered(schedule, run, microbatches, loss)

    once = [parameter for name, parameter in held.items() if where[name][0] == rank]
    pipeline_facts = {
        "stages": len(stages),
        "microbatches": microbatches,
        "schedule": schedule_name or schedule,
        "bubble": bubble(schedule, ranks, microbatches),
    }
    return ParallelModel(
        module=nn.ModuleList(local_stages.values()),
        data_rank=0,
        data_ranks=1,
        compute=PipelineStep(order, tied, busy, first=0 in local_stages, last=len(stages) - 1 in local_stages),
        parameters=held,
        gradient_norm=lambda: norm_over_ranks((p.grad for p in once if p.grad is not None), device),
        facts=lambda: {"pipeline": pipeline_facts},
        numbers=lambda: {} if busy.share is None else {"stage_busy_share": busy.share},
    )


def ordered(name: str, stages: Sequence[PipelineStage], microbatches: int, loss: Loss) -> Schedule:
    """Torch's schedule of that name over this rank's stages. Gradients add up as they are: the loss is scaled."""
    if name == "interleaved":
        return ScheduleInterleaved1F1B(list(stages), microbatches, loss_fn=loss, scale_grads=False)
    single = ScheduleGPipe if name == "gpipe" else Schedule1F1B
    return single(stages[0], microbatches, loss_fn=loss, scale_grads=False)


def part_of_loss(loss: Loss, context: StrategyContext, microbatches: int) -> Loss:
    """What a micro-batch adds to the mean over the batch.

    Torch can scale gradients instead, stage by stage; a weight that two stages of a rank share it would scale twice.
    """

    def part(output: Tensor, targets: Tensor) -> Tensor:
        with context.autocast():
            return loss(output, targets) / microbatches

    return part


def timed(stage: PipelineStage, busy: BusyShare) -> PipelineStage:
    """`stage`, whose computing is timed: what the schedule calls between receiving and sending."""
    for name in ("forward_one_chunk", "backward_one_chunk"):
        setattr(stage, name, busy.counted(getattr(stage, name)))
    return stage


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """Forward and backward of the whole batch, micro-batch by micro-batch. `first` and `last`: whether this rank has
    the stage that takes the inputs, and the one that sees the loss."""

    order: Schedule
    tied: TiedGradients
    busy: BusyShare
    first: bool
    last: bool

    def __call__(self, batch: Batch, clock: StepMarker) -> Tensor | None:
        """Leave the gradients of the batch's mean loss, and return it on the rank of the last stage."""
        inputs, targets = batch
        clock.skip()
        losses: list[Tensor] = []
        with self.busy.step():
            self.order.step(
                *([inputs] if self.first else []),
                target=targets if self.last else None,
                losses=losses,
                return_outputs=False,
            )
        self.tied.add_up()
        return torch.stack(losses).sum().detach() if self.last else None


class BusyShare:
    """How much of a pipeline's forward and backward its rank computes; the rest is the bubble, and messages.

    Times what is `counted` while the one step that it watches runs: `share` is that time over the step's.

    All ranks enter and leave the watched step together, so that the step is as long for each of them as for all.
    On CUDA the times are the device's.
    """

    def __init__(self, device: torch.device) -> None:
        self.share: float | None = None
        self._device = device
        self._now = clock_of(device)
        self._steps = count()
        self._watching = False
        self._spans: list[tuple[Moment, Moment]] = []

    def counted(self, call: Callable[P, R]) -> Callable[P, R]:
        """`call`, timed in the watched step, and as it is in every other."""

        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            if not self._watching:
                return call(*args, **kwargs)
            begin = self._now()
            result = call(*args, **kwargs)
            self._spans.append((begin, self._now()))
            return result

        return timed

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around one step's forward and backward."""
        self._watching = next(self._steps) == WATCHED
        if not self._watching:
            yield
            return
        self._meet()
        begin = self._now()
        yield
        self._meet()
        end = self._now()
        if not isinstance(end, float):
            end.synchronize()
        self.share = sum(elapsed_s(*span) for span in self._spans) / elapsed_s(begin, end)
        self._spans.clear()
        self._watching = False

    def _meet(self) -> None:
        """Wait until all ranks have come here, and their devices."""
        nothing = torch.zeros(1, device=self._device)
        dist.all_reduce(nothing)
        nothing.item()
