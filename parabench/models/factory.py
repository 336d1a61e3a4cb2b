"""Build the model of a case by its name or with a custom factory, whose result is checked and described."""

from __future__ import annotations

import random
import weakref
from collections.abc import Mapping
from fnmatch import fnmatch
from functools import cache
from inspect import Parameter, signature
from typing import Any, NoReturn

import numpy
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from torch.nn.parameter import UninitializedParameter

from parabench.errors import UsageError
from parabench.machine import accelerator
from parabench.models import BLOCKS, EXACT, FIRST, MODELS, OWN, SEQUENCE, TENSOR, VERIFICATIONS, ModelEntry
from parabench.models.base import MakeBatch, Model
from parabench.models.batches import Batch, tensors_of
from parabench.plan.case import Case
from parabench.registry import call_factory, find, load, load_factory, takes_argument, users_code

# The number of batches of synthetic samples. In the verified steps, no batch repeats.
SYNTHETIC_BATCHES = 8

# {id: parameter} of earlier models. A cached module would be trained or sharded already.
_given: dict[int, weakref.ref[nn.Parameter]] = {}


def seed_all(seed: int) -> None:
    """Seed the random generators of torch, numpy and Python."""
    # Without a device, `torch.manual_seed` stores a request with its stack for each type of device, in 3 ms.
    (torch if accelerator.api().is_available() else torch.default_generator).manual_seed(seed)
    numpy.random.seed(seed)
    random.seed(seed)


def build_model(case: Case, *, seed: int | None = None) -> Model:
    """Build the case's model. With a `seed`, all generators are seeded after the import and before the factory.

    Raises UsageError if the factory returns an invalid Model, or a module that it returned before.
    """
    entry = find(MODELS, "model", case.model)
    make = load(MODELS, "model", case.model) if entry else load_factory(MODELS, "model", case.model, "Model")
    if seed is not None:
        seed_all(seed)
    if entry is not None:
        made: Model = make(entry, case)
        return made
    model: Model = call_factory(make, case)
    check_model(case.model, model)
    parameters = [*model.module.parameters()]
    if any((known := _given.get(id(each))) is not None and known() is each for each in parameters):
        raise UsageError(f"model {case.model!r} returns a module that it returned before; make a new one in each call")
    _given.update({id(each): weakref.ref(each) for each in parameters})
    return model


def own_optimizer(model: Model, case: Case, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Create the optimizer of a model with `Model.optimizer`.

    Raises UsageError unless it is a torch optimizer of these parameters that steps without a closure.
    """
    assert model.optimizer is not None
    with users_code(f"model {case.model!r}: its optimizer cannot be made", "fix Model.optimizer"):
        made: Any = model.optimizer(parameters)
    if not isinstance(made, torch.optim.Optimizer):
        raise UsageError(
            f"model {case.model!r}: optimizer gives {type(made).__name__}; return a torch.optim.Optimizer from it"
        )
    given = set(map(id, parameters))
    if any(id(each) not in given for group in made.param_groups for each in group["params"]):
        raise UsageError(
            f"model {case.model!r}: its optimizer has a parameter that it did not receive; use the list that "
            "Model.optimizer receives, because strategies replace the module's parameters"
        )
    taken = [each for each in signature(made.step).parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    if any(each.default is Parameter.empty for each in taken):
        name = type(made).__name__
        raise UsageError(
            f"model {case.model!r}: {name} steps with a closure, and parabench's step has none; use another"
        )
    return made


def own_scheduler(model: Model, case: Case, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """Create the scheduler of a model with `Model.scheduler`. Raises UsageError unless it is a torch scheduler."""
    assert model.scheduler is not None
    with users_code(f"model {case.model!r}: its scheduler cannot be made", "fix Model.scheduler"):
        made: Any = model.scheduler(optimizer)
    if not isinstance(made, (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)):
        raise UsageError(
            f"model {case.model!r}: scheduler gives {what_is(made)}; return a scheduler of torch.optim.lr_scheduler"
        )
    return made


def make_samples(batch: MakeBatch, case: Case) -> Batch:
    """Return the synthetic samples of a case. Raises UsageError if `batch` fails or returns something else."""
    rows = SYNTHETIC_BATCHES * case.global_batch
    with users_code(f"model {case.model!r} cannot make {rows} samples", "fix its batch"):
        given = (case.seq_len,) if takes_argument(batch, 2) else ()
        made: Any = batch(rows, torch.Generator().manual_seed(case.seed), *given)
    tensors = tensors_of(made)
    if not tensors or any(each.device.type != "cpu" or each.shape[:1] != (rows,) for each in tensors):
        found = ", ".join(f"{tuple(each.shape)} on {each.device}" for each in tensors[:3]) or "none"
        raise UsageError(
            f"model {case.model!r}: batch gives {type(made).__name__} with the tensors {found}, asked for {rows} "
            f"samples; give tensors on the CPU whose first dimension is {rows}"
        )
    return made


# -- checks of what a factory returns ---------------------------------------------------------------------------------


# Fields of a Model that are functions, and their arguments.
FUNCTIONS = {
    "loss": "output and targets", "batch": "n, a generator and perhaps seq_len", "collate": "a list of items",
    "forward": "module and batch", "optimizer": "a list of parameters", "scheduler": "the optimizer",
}  # fmt: skip


def check_model(name: str, model: Any) -> None:
    """Raise UsageError with the first mistake in a model, the result of the custom factory `name`."""

    def wrong(text: str) -> NoReturn:
        raise UsageError(f"model {name!r}: {text}")

    def wrong_type(field: str, what: str) -> NoReturn:
        wrong(f"{field} is {what_is(getattr(model, field))}; it must be {what}")

    if not isinstance(model, Model):
        raise UsageError(f"model {name!r} gives {type(model).__name__}; return a parabench.Model from it")
    if not isinstance(model.module, nn.Module):
        wrong_type("module", "an nn.Module")
    if isinstance(model.module, nn.DataParallel):
        wrong("module is a DataParallel, which would use the devices of other ranks; give the module inside it")
    parameters = list(model.module.parameters())
    if not any(each.requires_grad for each in parameters):
        wrong("no parameter of module requires a gradient")
    if any(isinstance(each, UninitializedParameter) for each in parameters):
        wrong("module has a parameter without a shape; give lazy layers their sizes")
    for field, arguments in FUNCTIONS.items():
        value = getattr(model, field)
        # Classes of optimizers and schedulers can be called.
        a_class = isinstance(value, type) and field not in ("optimizer", "scheduler")
        if value is not None and (a_class or not callable(value)):
            wrong_type(field, f"a function of {arguments}, or None")
    if isinstance(model.loss, nn.Module) and any(True for _ in model.loss.parameters()):
        wrong("loss has parameters, which the optimizer does not train; make it a part of module")
    if model.clip_norm is not None and (not isinstance(model.clip_norm, (int, float)) or not model.clip_norm > 0):
        wrong_type("clip_norm", "a number above 0, or None")
    if model.verification not in VERIFICATIONS:
        wrong_type("verification", f"one of {', '.join(VERIFICATIONS)}")
    for field in ("vocabulary", "context"):
        value = getattr(model, field)
        if value is not None and (type(value) is not int or value < 1):
            wrong_type(field, "a whole number of 1 or more, or None")
    if not isinstance(model.blocks, (list, tuple, nn.ModuleList, nn.Sequential)):
        wrong_type("blocks", "a list of modules, or empty")
    parts = set(model.module.modules())
    if any(block not in parts for block in model.blocks):
        wrong("blocks hold a module that is not part of module")
    for field in ("stem", "head"):
        part = getattr(model, field)
        if part is not None and not isinstance(part, nn.Module):
            wrong_type(field, "an nn.Module, or None")
        elif part is not None and not {*map(id, parameters)}.issuperset(map(id, part.parameters())):
            wrong(f"{field} has a parameter that is not in module; build it from layers of module")
    names = [each for each, _ in model.module.named_modules()]
    for field in ("tensor_parallel", "sequence_parallel"):
        plan = getattr(model, field)
        if not isinstance(plan, Mapping) or not all(isinstance(style, ParallelStyle) for style in plan.values()):
            wrong_type(field, "a dict of names and ParallelStyles, as for parallelize_module")
        for pattern in plan:
            if not any(fnmatch(each, pattern) for each in names):
                wrong(f"a plan has {pattern!r}, which is not part of module; use a name of named_modules")
    first = model.first
    if first is not None and not isinstance(dict(model.module.named_modules()).get(first), nn.Linear):
        wrong(f"first is {what_is(first)}, which is not a linear layer of module; use a name of named_modules")
    by_columns = [at for at, style in model.tensor_parallel.items() if isinstance(style, ColwiseParallel)]
    if first is not None and any(fnmatch(first, at) for at in by_columns):
        wrong(f"first is {first!r}, which tensor_parallel splits by columns; use a layer whose output is not split")


def what_is(value: Any) -> str:
    """Return a short description of a wrong value for a message: 'the class Linear', '3', 'list'."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return repr(value) if value is None or isinstance(value, (int, float, str)) else type(value).__name__


# -- description of a model, without memory if possible ----------------------------------------------------------------


def describe(case: Case) -> ModelEntry:
    """Return the facts about a custom model. Raises UsageError if it cannot be built or is not valid."""
    # A factory may read the fields that affect training. The level of verification is a result of the factory.
    takes_case = takes_argument(load_factory(MODELS, "model", case.model, "Model"))
    return _described(
        case.replace(verification=EXACT).reference() if takes_case else Case(model=case.model), takes_case
    )


@cache
def _described(case: Case, takes_case: bool) -> ModelEntry:
    try:
        with torch.device("meta"):
            model = build_model(case)
    except UsageError:
        raise
    except (Exception, SystemExit):  # some code fails without memory; a real error is raised again
        remedy = "fix that function, or call it in Python to see where"
        with users_code(f"model {case.model!r} cannot be built", remedy), torch.device("cpu"):
            model = build_model(case)
    outside_parameter = outside(model) if model.blocks else None
    first = None if model.first is None else model.module.get_submodule(model.first)
    offered = {
        BLOCKS: model.blocks and outside_parameter is None,
        TENSOR: model.tensor_parallel,
        SEQUENCE: model.sequence_parallel,
        FIRST: model.first,
    }
    return ModelEntry(
        target=case.model,
        summary="a custom model",
        parameters=sum(parameter.numel() for parameter in model.module.parameters()),
        brings=frozenset(need for need, given in offered.items() if given),
        blocks=len(model.blocks),
        widths=split_widths(model.module, model.tensor_parallel),
        features=first.in_features if isinstance(first, nn.Linear) else None,
        vocabulary=model.vocabulary,
        context=model.context,
        images=model.vocabulary is None,
        synthetic=model.batch is not None,
        takes_case=takes_case,
        outside=outside_parameter,
        verification=model.verification,
        own=frozenset(name for name in OWN if getattr(model, name) is not None),
        why_missing=model.why_missing,
    )


def outside(model: Model) -> str | None:
    """Return the name of a parameter that is not in stem, blocks or head, so that pipelines would lose it; or None."""
    parts = [part for part in (model.stem, *model.blocks, model.head) if part is not None]
    held = {id(parameter) for part in parts for parameter in part.parameters()}
    return next((name for name, each in model.module.named_parameters() if id(each) not in held), None)


def split_widths(module: nn.Module, plan: Mapping[str, ParallelStyle]) -> tuple[int, ...]:
    """Return the different widths of the linear layers that a tensor-parallel plan splits, largest first."""
    found = {
        layer.out_features if isinstance(style, ColwiseParallel) else layer.in_features
        for name, layer in module.named_modules()
        for pattern, style in plan.items()
        if isinstance(layer, nn.Linear)
        and isinstance(style, (ColwiseParallel, RowwiseParallel))
        and fnmatch(name, pattern)
    }
    return tuple(sorted(found, reverse=True))
