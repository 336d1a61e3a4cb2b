"""The stages of a pipeline: a model's parts in order, dealt out to ranks, each of which keeps only its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from torch import Tensor, nn

from parabench.errors import UsageError
from parabench.models.model import Model
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
