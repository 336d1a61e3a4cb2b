"""A user's own model, looked at before anything is launched: built once, without memory where that can be done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from torch.nn.parameter import UninitializedParameter

from parabench.errors import UsageError
from parabench.models import BLOCKS, FIRST, MODELS, OWN, SEQUENCE, TENSOR, VERIFICATIONS, ModelEntry
from parabench.models.base import MakeBatch, Model, build_model, make_samples, what_is
from parabench.plan.case import Case
from parabench.registry import load_factory, takes_argument, users_code

# Fields of a Model that are functions, and what they are called with.
FUNCTIONS = {
    "loss": "output and targets", "batch": "n, a generator and perhaps seq_len", "collate": "a list of items",
    "forward": "module and batch", "optimizer": "a list of parameters", "scheduler": "the optimizer",
}  # fmt: skip


def describe(case: Case) -> ModelEntry:
    """What the case's model, a user's own, brings. Raises UsageError where it cannot be built or contradicts itself."""
    return _built_once(_factory_case(case))[0]


def check_batch(case: Case) -> None:
    """Raise UsageError unless the model makes the samples that every rank will ask for."""
    _check_batch(case.reference())


def _factory_case(case: Case) -> Case:
    """What the factory is called with. One that takes the case is called once for each training, not for each way to
    do it: they must all train the same model."""
    return case.reference() if takes_case(case.model) else Case(model=case.model)


def takes_case(name: str) -> bool:
    """Whether the factory of a user's model is given the case. Raises UsageError when it cannot be had or is none."""
    return takes_argument(load_factory(MODELS, "model", name, "Model"))


@cache
def _built_once(case: Case) -> tuple[ModelEntry, MakeBatch | None]:
    """What building the model once shows, and what it makes samples with."""
    model = _built(case)
    check_model(case.model, model)
    outside_parameter = outside(model) if model.blocks else None
    first = _named(model.module, model.first)
    offered = {
        BLOCKS: model.blocks and outside_parameter is None,
        TENSOR: model.tensor_parallel,
        SEQUENCE: model.sequence_parallel,
        FIRST: model.first,
    }
    entry = ModelEntry(
        target=case.model,
        summary="a user's own",
        parameters=sum(parameter.numel() for parameter in model.module.parameters()),
        brings=frozenset(need for need, given in offered.items() if given),
        blocks=len(model.blocks),
        widths=split_widths(model.module, model.tensor_parallel),
        features=first.in_features if isinstance(first, nn.Linear) else None,
        vocabulary=model.vocabulary,
        context=model.context,
        images=model.vocabulary is None,
        synthetic=model.batch is not None,
        takes_case=takes_case(case.model),
        outside=outside_parameter,
        verification=model.verification,
        own=frozenset(name for name in OWN if getattr(model, name) is not None),
        why_missing=model.why_missing,
    )
    return entry, model.batch


@cache
def _check_batch(case: Case) -> None:
    _, batch = _built_once(_factory_case(case))
    assert batch is not None
    try:
        make_samples(batch, case)
    except UsageError:
        # What it takes from the factory may be on the meta device, as the model is; no rank's ever is.
        model = _built_on_cpu(case)
        if model.batch is None:
            raise
        make_samples(model.batch, case)


def _built(case: Case) -> Model:
    try:
        with torch.device("meta"):
            return build_model(case)
    except UsageError:
        raise
    except (Exception, SystemExit):  # not everything can be done without memory; what is really wrong shows again
        return _built_on_cpu(case)


def _built_on_cpu(case: Case) -> Model:
    remedy = "fix that function, or call it in Python to see where"
    with users_code(f"model {case.model!r} cannot be built", remedy), torch.device("cpu"):
        return build_model(case)


def check_model(name: str, model: Any) -> None:
    """Raise UsageError for a field of a user's Model that cannot be what it must."""
    wrong = next(_faults(model), None)
    if wrong is not None:
        raise UsageError(f"model {name!r}: {wrong}")


def _faults(model: Any) -> Iterator[str]:
    """What is wrong, the types before what is built on them: only the first is sure to be right."""
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
        if value is not None and (not callable(value) or isinstance(value, type)):
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
    if not isinstance(first, str) or not isinstance(_named(model.module, first), nn.Linear):
        yield f"first is {what_is(first)}, which is not a linear layer of module; name one, as named_modules does"
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


def _named(module: nn.Module, name: str | None) -> nn.Module | None:
    return dict[str | None, nn.Module](module.named_modules()).get(name)
