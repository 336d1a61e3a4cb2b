"""Pipeline parallel: each rank has some of the layers, and micro-batches pass from rank to rank.

Huang et al., "GPipe", 2019; Narayanan et al., "Efficient large-scale language model training ...", 2021.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from parabench.models.base import Model, copies_of_buffers, set_buffers
from parabench.models.batches import Batch, inputs_of
from parabench.plan.schedule import STAGES_PER_RANK, default_microbatches, pipeline_bubble
from parabench.strategies.base import ParallelModel, StepMarker, StrategyContext, squares_of

P = ParamSpec("P")
R = TypeVar("R")

# The observed step. The first one creates buffers, and the third may be measured.
WATCHED = 1


def pp(model: Model, context: StrategyContext) -> ParallelModel:
    """Split the model into pipeline stages, and run micro-batches in the order of the case's schedule."""
    case = context.case
    microbatches = case.microbatches or default_microbatches(case.schedule, case.world_size, case.global_batch)
    return pipelined(model, context, schedule=case.schedule, microbatches=microbatches)


def layer_split(model: Model, context: StrategyContext) -> ParallelModel:
    """Split the model into pipeline stages, and pass the whole batch from one to the next.

    One rank computes at a time, so each rank waits (n - 1)/n of the time.
    """
    return pipelined(model, context, schedule="gpipe", microbatches=1, schedule_name="layer_split")


def pipelined(
    model: Model, context: StrategyContext, *, schedule: str, microbatches: int, schedule_name: str | None = None
) -> ParallelModel:
    """Keep this rank's stages, and let torch's schedule run them. Facts call the schedule `schedule_name`, if given."""
    rank, ranks, device = context.rank, context.world_size, context.device

    # Stage i is on rank i mod n. Parameters of several ranks are tied. Each rank frees the layers of other ranks.
    stages = stages_from(model, ranks * STAGES_PER_RANK[schedule], context)
    local_stages = {i: stage for i, stage in enumerate(stages) if i % ranks == rank}
    parameters = dict(model.module.named_parameters())
    where = holders(parameters, stages, ranks)
    tied = tied_copies(parameters, where)
    held = {name: parameter for name, parameter in parameters.items() if rank in where[name]}
    counted_here = [parameter for name, parameter in held.items() if where[name][0] == rank]
    messages = messages_between(model, stages, context, microbatches)
    kept = {id(each) for stage in local_stages.values() for each in stage.modules()}
    for each in model.module.modules():
        if id(each) not in kept:
            each.to_empty(device="meta", recurse=False)

    busy = BusyShare(device)
    run = [PipelineStage(stage, i, len(stages), device, *messages[i]) for i, stage in local_stages.items()]
    order = scheduled(schedule, run, microbatches, model, context, busy)
    first, last = 0 in local_stages, len(stages) - 1 in local_stages

    def compute(batch: Batch, clock: StepMarker) -> Tensor | None:
        """Compute the gradients of the mean loss. Return the loss on the rank of the last stage."""
        inputs, targets = batch
        clock.skip()
        losses: list[Tensor] = []
        with busy.step():
            fed, expected = [inputs] if first else [], targets if last else None
            order.step(*fed, target=expected, losses=losses, return_outputs=False)
        for parameter, group in tied:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)
        return torch.stack(losses).sum().detach() if last else None

    facts = {
        "stages": len(stages),
        "microbatches": microbatches,
        "schedule": schedule_name or schedule,
        "bubble": pipeline_bubble(schedule, ranks, microbatches),
    }
    return ParallelModel(
        module=nn.ModuleList(local_stages.values()),
        data_rank=0,
        data_ranks=1,
        compute=compute,
        parameters=held,
        gradient_norm=lambda: norm_over_ranks(counted_here, device),
        facts=lambda: {"pipeline": facts},
        numbers=lambda: {} if busy.share is None else {"stage_busy_share": busy.share},
    )


def scheduled(
    name: str,
    stages: Sequence[PipelineStage],
    microbatches: int,
    model: Model,
    context: StrategyContext,
    busy: BusyShare,
) -> PipelineScheduleSingle | PipelineScheduleMulti:
    """Return torch's schedule over this rank's stages. `busy` measures its computation, but not its messages."""
    whole_loss = model.loss
    assert whole_loss is not None  # checked before the launch

    # If torch scaled gradients instead of the loss, it would scale a weight twice if two stages of a rank share it.
    def loss(output: Tensor, targets: Tensor) -> Tensor:
        with context.autocast():
            return whole_loss(output, targets) / microbatches

    for stage in stages:
        for method in ("forward_one_chunk", "backward_one_chunk"):
            setattr(stage, method, busy.counted(getattr(stage, method)))
    if name == "interleaved":
        return ScheduleInterleaved1F1B(list(stages), microbatches, loss_fn=busy.counted(loss), scale_grads=False)
    single = ScheduleGPipe if name == "gpipe" else Schedule1F1B
    return single(stages[0], microbatches, loss_fn=busy.counted(loss), scale_grads=False)


class BusyShare:
    """Measure the `share` of computation in forward and backward of one step. The rest is the bubble.

    Functions returned by `counted` are computation. All ranks enter and leave this step together. On CUDA, times are
    from the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.share: float | None = None
        self._device = device
        self._now = clock_of(device)
        self._steps = count()
        self._watching = False
        self._spans: list[tuple[Moment, Moment]] = []

    def counted(self, call: Callable[P, R]) -> Callable[P, R]:
        """Return a function that calls `call`, and in the observed step adds its time to the computation."""

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
        """Return a context for forward and backward of a step."""
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
    # Earlier stages have one block more if the number does not divide.
    size, rest = divmod(len(model.blocks), count)
    starts = [i * size + min(i, rest) for i in range(count + 1)]
    parts = [list(model.blocks[begin:end]) for begin, end in pairwise(starts)]
    if model.stem is not None:
        parts[0].insert(0, model.stem)
    if model.head is not None:
        parts[-1].append(model.head)
    return [Stage(each, context) for each in parts]


def messages_between(
    model: Model, stages: Sequence[Stage], context: StrategyContext, microbatches: int
) -> list[tuple[Tensor, Tensor]]:
    """Return example (input, output) tensors of each stage for a micro-batch. They define the shapes of messages.

    Forward runs once, and buffers are restored. Without examples, ranks would send pickled objects, which can run code.
    """
    case = context.case
    inputs: Tensor
    size = case.global_batch // microbatches
    if source_of(case.data)[0] == "synthetic" and model.batch is not None:
        inputs = inputs_of(model.batch(size, torch.Generator().manual_seed(0)))
    else:  # repetitions of the data's first sample
        inputs = inputs_of(first_sample(case, model))[:1]
        inputs = inputs.expand(size, *inputs.shape[1:])
    if case.arithmetic.parameters != "float32" and inputs.is_floating_point():  # as they are loaded
        inputs = inputs.to(getattr(torch, case.arithmetic.parameters))
    flows = [inputs.to(context.device)]
    buffers = copies_of_buffers(model.module)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for stage in stages:
            flows.append(stage(flows[-1]))
    set_buffers(model.module, buffers)
    # Messages between stages need gradients.
    for each in flows[1:]:
        each.requires_grad_(each.is_floating_point())
    return list(pairwise(flows))


def holders(
    parameters: Mapping[str, nn.Parameter], stages: Sequence[nn.Module], ranks: int
) -> dict[str, tuple[int, ...]]:
    """Return {parameter: the ranks that hold it}. Stage i is on rank i mod `ranks`.

    A parameter that several stages share (tied) may be on several ranks. Raises UsageError if a parameter is not in a
    stage.
    """
    found: dict[int, set[int]] = defaultdict(set)
    for i, stage in enumerate(stages):
        for parameter in stage.parameters():
            found[id(parameter)].add(i % ranks)
    for name, parameter in parameters.items():
        if id(parameter) not in found:
            raise UsageError(f"parameter {name!r} is in no stage; put it into Model.stem, Model.blocks or Model.head")
    return {name: tuple(sorted(found[id(parameter)])) for name, parameter in parameters.items()}


def tied_copies(
    parameters: Mapping[str, nn.Parameter], where: Mapping[str, tuple[int, ...]]
) -> list[tuple[nn.Parameter, ProcessGroup]]:
    """Return this rank's weights that other ranks also hold, each with the group of these ranks.

    The gradients of such copies must be added, as in Megatron-LM's `finalize_model_grads`. A collective call of all
    ranks.
    """
    shared = {name: where[name] for name, each in parameters.items() if each.requires_grad and len(where[name]) > 1}
    groups = {ranks: dist.new_group(list(ranks)) for ranks in sorted(set(shared.values()))}
    rank = dist.get_rank()
    return [(parameters[name], groups[ranks]) for name, ranks in shared.items() if rank in ranks]


def norm_over_ranks(parameters: Iterable[nn.Parameter], device: torch.device) -> float:
    """Return the L2 norm of all ranks' gradients. The `parameters` differ between ranks. A collective call."""
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for parameter in parameters:
        if parameter.grad is not None:
            squares += squares_of(parameter.grad)
    dist.all_reduce(squares)
    return math.sqrt(float(squares))
