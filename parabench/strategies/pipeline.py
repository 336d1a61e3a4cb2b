"""Pipeline parallel: each rank holds some of the layers, and micro-batches pass from rank to rank, so that all compute.

Huang et al., "GPipe", 2019; Narayanan et al., "Efficient large-scale language model training on GPU clusters using
Megatron-LM", 2021. `plan/pipeline_schedule.py` says how much of the time is waiting all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from parabench.models.base import Loss, Model
from parabench.plan.pipeline_schedule import STAGES_PER_RANK, automatic, bubble
from parabench.probes.pipeline_busy import BusyShare
from parabench.strategies.base import ParallelModel, StepMarker, StrategyContext, norm_over_ranks
from parabench.strategies.pipeline_stages import TiedGradients, drop_all_but, holders, stages_from

Schedule = PipelineScheduleSingle | PipelineScheduleMulti


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
    drop_all_but(local_stages.values(), model.module)

    # Forward, loss and backward are what a rank computes; the rest of its time it waits for messages.
    busy = BusyShare(device)
    loss = busy.counted(part_of_loss(model.loss, context, microbatches))
    run = [timed(PipelineStage(stage, i, len(stages), device), busy) for i, stage in local_stages.items()]
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

    def __call__(self, inputs: Tensor, targets: Tensor, clock: StepMarker) -> Tensor | None:
        """Leave the gradients of the batch's mean loss; gives it where the last stage is."""
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
