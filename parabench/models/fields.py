"""The fields of a user's Model: whether each is what it must be, and what they show of the module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from typing import Any

from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from torch.nn.parameter import UninitializedParameter

from parabench.errors import UsageError
from parabench.models.build import what_is
from parabench.models.model import Model


def check_model(name: str, model: Any) -> None:
    """Raise UsageError for a field of a user's Model that cannot be what it must."""
    wrong = next(_faults(model), None)
    if wrong is not None:
        raise UsageError(f"model {name!r}: {wrong}")


def _faults(model: Any) -> Iterator[str]:
    """What is wrong, the types before what is built on them: only the first is sure to be right."""
    parameters = list(model.module.parameters())
    if not parameters:
        yield "module has no parameters; there is nothing to train"
    if any(isinstance(each, UninitializedParameter) for each in parameters):
        yield "module has a parameter without a shape; give lazy layers their sizes"
    if not callable(model.loss) or isinstance(model.loss, type):
        yield f"loss is {what_is(model.loss)}; it must be a function of output and targets"
    if model.batch is not None and not callable(model.batch):
        yield f"batch is {what_is(model.batch)}; it must be a function of n and a generator"
    for field in ("vocabulary", "context"):
        value = getattr(model, field)
        if value is not None and (type(value) is not int or value < 1):
            yield f"{field} is {what_is(value)}; it must be a whole number of 1 or more, or None"
    yield from _faults_of_parts(model)
    yield from _faults_of_plans(model)


def _faults_of_parts(model: Any) -> Iterator[str]:
    if not isinstance(model.blocks, (list, tuple, nn.ModuleList, nn.Sequential)):
        yield f"blocks is {what_is(model.blocks)}; it must be a list of modules, empty where there are none"
    for block in model.blocks:
        if not isinstance(block, nn.Module):
            yield f"blocks hold {what_is(block)}; each must be an nn.Module"
    parts = set(model.module.modules())
    if not parts.issuperset(model.blocks):
        yield "blocks hold a module that is no part of module"
    known = {id(each) for each in model.module.parameters()}
    for field in ("stem", "head"):
        part = getattr(model, field)
        if part is not None and not isinstance(part, nn.Module):
            yield f"{field} is {what_is(part)}; it must be an nn.Module, or None"
        elif part is not None and not known.issuperset(map(id, part.parameters())):
            yield f"{field} has a parameter that is none of module's; make it of module's own layers"


def _faults_of_plans(model: Any) -> Iterator[str]:
    names = [each for each, _ in model.module.named_modules()]
    for field in ("tensor_parallel", "sequence_parallel"):
        plan = getattr(model, field)
        if not isinstance(plan, Mapping):
            yield f"{field} is {what_is(plan)}; it must be a dict, as parallelize_module takes it"
        for pattern, style in plan.items():
            if not isinstance(pattern, str) or not isinstance(style, ParallelStyle):
                yield f"{field} holds {what_is(pattern)}: {what_is(style)}; give names and a ParallelStyle for each"
            if not any(fnmatch(each, pattern) for each in names):
                yield f"a plan names {pattern!r}, which is no part of module; name one, as named_modules does"
    first = model.first
    if first is None:
        return
    if not isinstance(first, str) or not isinstance(_named(model.module, first), nn.Linear):
        yield f"first is {what_is(first)}, which is no linear layer of module; name one, as named_modules does"
    if any(isinstance(style, ColwiseParallel) and fnmatch(first, at) for at, style in model.tensor_parallel.items()):
        yield f"first is {first!r}, which tensor_parallel splits by columns; name a layer whose output is whole"


def outside(model: Model) -> str | None:
    """A parameter that is in none of stem, blocks and head, which a pipeline would lose; None when there is none."""
    parts = [part for part in (model.stem, *model.blocks, model.head) if part is not None]
    held = {id(parameter) for part in parts for parameter in part.parameters()}
    return next((name for name, each in model.module.named_parameters() if id(each) not in held), None)


def split_widths(module: nn.Module, plan: Mapping[str, ParallelStyle]) -> tuple[int, ...]:
    """The widths along which a tensor-parallel plan splits linear layers, each once."""
    found = set()
    for name, layer in module.named_modules():
        for pattern, style in plan.items():
            if isinstance(layer, nn.Linear) and fnmatch(name, pattern):
                if isinstance(style, ColwiseParallel):
                    found.add(layer.out_features)
                elif isinstance(style, RowwiseParallel):
                    found.add(layer.in_features)
    return tuple(sorted(found, reverse=True))


def linear_of(module: nn.Module, name: str) -> nn.Linear:
    """The linear layer of that name."""
    layer = _named(module, name)
    assert isinstance(layer, nn.Linear)
    return layer


def _named(module: nn.Module, name: str) -> nn.Module | None:
    return dict(module.named_modules()).get(name)
