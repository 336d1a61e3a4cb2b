"""The stages of a pipeline: a model's parts in order, dealt out to ranks, each of which keeps only its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from parabench.data import source_of
from parabench.data.datasets import first_sample
from parabench.errors import UsageError
from parabench.models.base import Model
from parabench.models.batches import inputs_of
from parabench.models.suspects import copies_of_buffers, set_buffers
from parabench.strategies.base import StrategyContext

T = TypeVar("T")


class Stage(nn.Module):
    """Some of a model's parts, one after the other, in the case's precision."""

    def __init__(self, parts: Iterable[nn.Module], context: StrategyContext) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self._context = context

    def forward(self, x: Tensor) -> Tensor:
        """What comes from the stage before to what goes to the next. Messages must be contiguous."""
        with self._context.autocast():
            for part in self.parts:
                x = part(x)
        return x.contiguous()


def stages_from(model: Model, count: int, context: StrategyContext) -> list[Stage]:
    """The model as `count` stages: blocks dealt out evenly, the stem with the first stage, the head with the last.

    Raises UsageError for fewer blocks than stages.
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
    """Return what each stage takes and gives for a micro-batch, PipelineStage's `input_args` and `output_args`.

    Without them, torch's ranks send each other pickled objects: anyone who reached a rank's port could run code there.
    Forward runs once for this; buffers that it changes are restored.
    """
    buffers = copies_of_buffers(model.module)
    flows = [_first_inputs(model, context, context.case.global_batch // microbatches)]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for stage in stages:
            flows.append(stage(flows[-1]))
    set_buffers(model.module, buffers)
    # Between stages travels what gradients are wanted of.
    for each in flows[1:]:
        each.requires_grad_(each.is_floating_point())
    return list(pairwise(flows))


def _first_inputs(model: Model, context: StrategyContext, size: int) -> Tensor:
    """As many inputs as the first stage takes: of those that the model makes, or else the data's first sample again and
    again."""
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
    """`parts` in order in `count` runs whose lengths differ by one at most. The first take the rest: the last has the
    head, which for a large vocabulary is more than a block."""
    size, rest = divmod(len(parts), count)
    starts = [i * size + min(i, rest) for i in range(count + 1)]
    return [list(parts[begin:end]) for begin, end in pairwise(starts)]


def holders(
    parameters: Mapping[str, nn.Parameter], stages: Sequence[nn.Module], ranks: int
) -> dict[str, tuple[int, ...]]:
    """Which ranks hold each parameter, stage i being on rank i mod `ranks`. More than one: tied between stages.

    Raises UsageError for a parameter of no stage: `head(blocks(stem(x)))` is not the whole module.
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
    """Free what of `module` is not in `kept`: there it keeps shapes only. What both share stays with `kept`."""
    own = {id(each) for stage in kept for each in stage.modules()}
    for each in module.modules():
        if id(each) not in own:
            each.to_empty(device="meta", recurse=False)


class TiedGradients:
    """This rank's copies of what `holders` says that several ranks hold: weights that stages share and that must train
    as one, as GPT's token embedding is its head's too.

    As Megatron-LM does it (Narayanan et al., 2021; `finalize_model_grads`): each rank holds a copy, and the copies'
    gradients are added up, so that the same update keeps them the same.

    A collective call: every rank joins in making the group of each set of ranks, its own or not.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], holders: Mapping[str, tuple[int, ...]]) -> None:
        shared = {name: holders[name] for name, each in parameters.items() if each.requires_grad}
        groups = {ranks: dist.new_group(list(ranks)) for ranks in sorted(set(shared.values())) if len(ranks) > 1}
        rank = dist.get_rank()
        self._copies: list[tuple[nn.Parameter, ProcessGroup]] = [
            (parameters[name], groups[ranks]) for name, ranks in shared.items() if ranks in groups and rank in ranks
        ]

    def add_up(self) -> None:
        """Make every copy's gradient the sum of all copies', after backward."""
        for parameter, group in self._copies:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)
