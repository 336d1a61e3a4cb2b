"""Pipeline parallel: each rank has some of the layers, and micro-batches pass from rank to rank.

Huang et al., "GPipe", 2019; Narayanan et al., "Efficient large-scale language model training ...", 2021.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, pairwise
from typing import ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from parabench.data import source_of
from parabench.data.datasets import first_sample
from parabench.errors import UsageError
from parabench.machine.accelerator import Moment, clock_of, elapsed_s
from parabench.models.base import Loss, Model
from parabench.models.batches import Batch, inputs_of
from parabench.models.suspects import copies_of_buffers, set_buffers
from parabench.plan.pipeline_schedule import STAGES_PER_RANK, automatic, bubble
from parabench.strategies.base import ParallelModel, StepMarker, StrategyContext, norm_over_ranks

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Schedule = PipelineScheduleSingle | PipelineScheduleMulti

# The observed step. The first one creates buffers, and the third may be measured.
WATCHED = 1


def pp(model: Model, context: StrategyContext) -> ParallelModel:
    """Run micro-batches in the order of the case's schedule."""
    case = context.case
    microbatches = case.microbatches or automatic(case.schedule, case.world_size, case.global_batch)
    return pipelined(model, context, schedule=case.schedule, microbatches=microbatches)


def layer_split(model: Model, context: StrategyContext) -> ParallelModel:
    """Run the stages of a pipeline with the whole batch, so that one rank computes at a time.

    Each rank waits (n - 1)/n of the time.
    """
    return pipelined(model, context, schedule="gpipe", microbatches=1, schedule_name="layer_split")


def pipelined(
    model: Model, context: StrategyContext, *, schedule: str, microbatches: int, schedule_name: str | None = None
) -> ParallelModel:
    """Keep this rank's stages, and let torch's schedule run them. `schedule_name` is for the facts."""
    rank, ranks, device = context.rank, context.world_size, context.device

    # Stage i is on rank i mod n. Parameters of several ranks are tied. Each rank frees the layers of other ranks.
    stages = stages_from(model, ranks * STAGES_PER_RANK[schedule], context)
    local_stages = {i: stage for i, stage in enumerate(stages) if i % ranks == rank}
    parameters = dict(model.module.named_parameters())
    where = holders(parameters, stages, ranks)
    tied = TiedGradients(parameters, where)
    held = {name: parameter for name, parameter in parameters.items() if rank in where[name]}
    told = shapes(model, stages, context, microbatches)
    drop_all_but(local_stages.values(), model.module)

    # A rank computes forward, loss and backward. During the rest of the time, it waits for messages.
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
    """Return torch's schedule over this rank's stages. The loss is scaled, so gradients are not."""
    if name == "interleaved":
        return ScheduleInterleaved1F1B(list(stages), microbatches, loss_fn=loss, scale_grads=False)
    single = ScheduleGPipe if name == "gpipe" else Schedule1F1B
    return single(stages[0], microbatches, loss_fn=loss, scale_grads=False)


def part_of_loss(loss: Loss, context: StrategyContext, microbatches: int) -> Loss:
    """Return the function for the part of a micro-batch in the mean loss.

    If torch scaled gradients instead, it would scale weights twice that two stages of a rank share.
    """

    def part(output: Tensor, targets: Tensor) -> Tensor:
        with context.autocast():
            return loss(output, targets) / microbatches

    return part


def timed(stage: PipelineStage, busy: BusyShare) -> PipelineStage:
    """Return `stage` with timed computation."""
    for name in ("forward_one_chunk", "backward_one_chunk"):
        setattr(stage, name, busy.counted(getattr(stage, name)))
    return stage


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """Forward and backward of the whole batch. `first` and `last`: whether this rank has the first and last stage."""

    order: Schedule
    tied: TiedGradients
    busy: BusyShare
    first: bool
    last: bool

    def __call__(self, batch: Batch, clock: StepMarker) -> Tensor | None:
        """Compute the gradients of the mean loss. Return the loss on the rank of the last stage."""
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
    """The `share` of computation (`counted` functions) in forward and backward of one step. The rest is the bubble.

    All ranks enter and leave this step together. On CUDA, times are from the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.share: float | None = None
        self._device = device
        self._now = clock_of(device)
        self._steps = count()
        self._watching = False
        self._spans: list[tuple[Moment, Moment]] = []

    def counted(self, call: Callable[P, R]) -> Callable[P, R]:
        """Return `call`, which is timed in the observed step."""

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
        """Surround forward and backward of a step."""
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
        """Wait for all ranks and their devices."""
        nothing = torch.zeros(1, device=self._device)
        dist.all_reduce(nothing)
        nothing.item()


# -- stages ------------------------------------------------------------------------------------------------------------


class Stage(nn.Module):
    """Some consecutive parts of a model, in the case's precision."""

    def __init__(self, parts: Iterable[nn.Module], context: StrategyContext) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self._context = context

    def forward(self, x: Tensor) -> Tensor:
        """Map the message from the previous stage to the message for the next. It must be contiguous."""
        with self._context.autocast():
            for part in self.parts:
                x = part(x)
        return x.contiguous()


def stages_from(model: Model, count: int, context: StrategyContext) -> list[Stage]:
    """Return the model as `count` stages with equally many blocks. The stem is in the first, the head in the last.

    Raises UsageError if there are fewer blocks than stages.
    """
    if len(model.blocks) < count:
        raise UsageError(
            f"model {context.case.model!r} has {len(model.blocks)} blocks, too few for {count} stages; "
            "use fewer ranks, or give more Model.blocks"
        )
    parts = deal(model.blocks, count)
    if model.stem is not None:
        parts[0].insert(0, model.stem)
    if model.head is not None:
        parts[-1].append(model.head)
    return [Stage(each, context) for each in parts]


def shapes(
    model: Model, stages: Sequence[Stage], context: StrategyContext, microbatches: int
) -> list[tuple[Tensor, Tensor]]:
    """Return the input and output of each stage for a micro-batch. Forward runs once, and buffers are restored.

    Without them, ranks would send pickled objects, and anyone with access to a port could run code.
    """
    buffers = copies_of_buffers(model.module)
    flows = [_first_inputs(model, context, context.case.global_batch // microbatches)]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for stage in stages:
            flows.append(stage(flows[-1]))
    set_buffers(model.module, buffers)
    # Messages between stages need gradients.
    for each in flows[1:]:
        each.requires_grad_(each.is_floating_point())
    return list(pairwise(flows))


def _first_inputs(model: Model, context: StrategyContext, size: int) -> Tensor:
    """Return `count` inputs for the first stage: synthetic samples, or repetitions of the data's first sample."""
    case = context.case
    inputs: Tensor
    if source_of(case.data)[0] == "synthetic" and model.batch is not None:
        inputs = inputs_of(model.batch(size, torch.Generator().manual_seed(0)))
    else:
        inputs = inputs_of(first_sample(case, model))[:1]
        inputs = inputs.expand(size, *inputs.shape[1:])
    if case.arithmetic.parameters != "float32" and inputs.is_floating_point():  # as they are loaded
        inputs = inputs.to(getattr(torch, case.arithmetic.parameters))
    return inputs.to(context.device)


def deal(parts: Sequence[T], count: int) -> list[list[T]]:
    """Return `parts` in `count` consecutive runs whose lengths differ by one at most. The first runs are longer."""
    size, rest = divmod(len(parts), count)
    starts = [i * size + min(i, rest) for i in range(count + 1)]
    return [list(parts[begin:end]) for begin, end in pairwise(starts)]


def holders(
    parameters: Mapping[str, nn.Parameter], stages: Sequence[nn.Module], ranks: int
) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each parameter. Stage i is on rank i mod `ranks`. Tied parameters are on several ranks.

    Raises UsageError if a parameter is not in a stage.
    """
    found: dict[int, set[int]] = defaultdict(set)
    for i, stage in enumerate(stages):
        for parameter in stage.parameters():
            found[id(parameter)].add(i % ranks)
    for name, parameter in parameters.items():
        if id(parameter) not in found:
            raise UsageError(f"parameter {name!r} is in no stage; put it into Model.stem, Model.blocks or Model.head")
    return {name: tuple(sorted(found[id(parameter)])) for name, parameter in parameters.items()}


def drop_all_but(kept: Iterable[nn.Module], module: nn.Module) -> None:
    """Free the modules of `module` that are not in `kept`."""
    in_stages = {id(each) for stage in kept for each in stage.modules()}
    for each in module.modules():
        if id(each) not in in_stages:
            each.to_empty(device="meta", recurse=False)


class TiedGradients:
    """Tied weights of several ranks (`holders`), such as GPT's embedding and head. The gradients of copies are added.

    Creation is a collective call of all ranks. Megatron-LM does the same in `finalize_model_grads`.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], holders: Mapping[str, tuple[int, ...]]) -> None:
        shared = {name: holders[name] for name, each in parameters.items() if each.requires_grad}
        groups = {ranks: dist.new_group(list(ranks)) for ranks in sorted(set(shared.values())) if len(ranks) > 1}
        rank = dist.get_rank()
        self._copies: list[tuple[nn.Parameter, ProcessGroup]] = [
            (parameters[name], groups[ranks]) for name, ranks in shared.items() if ranks in groups and rank in ranks
        ]

    def add_up(self) -> None:
        """Set the gradient of each copy to the sum over all copies, after backward."""
        for parameter, group in self._copies:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)
