"""The check of what a user's factory returns: the first fault of a `Model` is one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from typing import Any

from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle
from torch.nn.parameter import UninitializedParameter

from parabench.errors import UsageError
from parabench.models import VERIFICATIONS

# Fields of a Model that are functions, and what they are called with.
FUNCTIONS = {
    "loss": "output and targets", "batch": "n, a generator and perhaps seq_len", "collate": "a list of items",
    "forward": "module and batch", "optimizer": "a list of parameters", "scheduler": "the optimizer",
}  # fmt: skip


def check_model(name: str, made: Any, kind: type[Any]) -> None:
    """Raise UsageError with the first fault of what the factory `name` returned, which must be a `kind`, Model."""
    if not isinstance(made, kind):
        raise UsageError(f"model {name!r} gives {type(made).__name__}; return a parabench.Model from it")
    wrong = next(_faults(made), None)
    if wrong is not None:
        raise UsageError(f"model {name!r}: {wrong}")


def _faults(model: Any) -> Iterator[str]:
    """Give what is wrong, types first: a later check relies on the earlier ones."""
    if not isinstance(model.module, nn.Module):
        yield f"module is {what_is(model.module)}; it must be an nn.Module"
    if isinstance(model.module, nn.DataParallel):
        yield "module is a DataParallel, which would use the devices of other ranks; give the module inside it"
    parameters = list(model.module.parameters())
    if not parameters:
        yield "module has no parameters; there is nothing to train"
    if any(isinstance(each, UninitializedParameter) for each in parameters):
        yield "module has a parameter without a shape; give lazy layers their sizes"
    if not any(each.requires_grad for each in parameters):
        yield "no parameter of module requires a gradient; there is nothing to train"
    for field, arguments in FUNCTIONS.items():
        value = getattr(model, field)
        # A class of optimizers or schedulers makes one when it is called.
        a_class = isinstance(value, type) and field not in ("optimizer", "scheduler")
        if value is not None and (a_class or not callable(value)):
            yield f"{field} is {what_is(value)}; it must be a function of {arguments}, or None"
    if isinstance(model.loss, nn.Module) and any(True for _ in model.loss.parameters()):
        yield "loss has parameters of its own, which no optimizer would train; make it a part of module"
    if model.clip_norm is not None and (not isinstance(model.clip_norm, (int, float)) or not model.clip_norm > 0):
        yield f"clip_norm is {what_is(model.clip_norm)}; it must be a number above 0, or None"
    if model.verification not in VERIFICATIONS:
        yield f"verification is {what_is(model.verification)}; use {', '.join(VERIFICATIONS)}"
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
        yield "blocks hold a module that is not part of module"
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
                yield f"a plan names {pattern!r}, which is not part of module; name one, as named_modules does"
    first = model.first
    if first is None:
        return
    if not isinstance(first, str) or not isinstance(module_named(model.module, first), nn.Linear):
        yield f"first is {what_is(first)}, which is not a linear layer of module; name one, as named_modules does"
    if any(isinstance(style, ColwiseParallel) and fnmatch(first, at) for at, style in model.tensor_parallel.items()):
        yield f"first is {first!r}, which tensor_parallel splits by columns; name a layer whose output is whole"


def what_is(value: Any) -> str:
    """Describe a wrong value in a few words. A class was often meant to be called first."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return repr(value) if value is None or isinstance(value, (int, float, str)) else type(value).__name__


def module_named(module: nn.Module, name: str | None) -> nn.Module | None:
    """Return the submodule of this name; None if there is none."""
    return dict[str | None, nn.Module](module.named_modules()).get(name)
