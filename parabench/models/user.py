"""A user's own model, looked at before anything is launched: built once, without memory where that can be done."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from functools import cache

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from parabench.errors import UsageError
from parabench.models import BLOCKS, EXACT, FIRST, MODELS, OWN, SEQUENCE, TENSOR, ModelEntry
from parabench.models.base import MakeBatch, Model, build_model, make_samples
from parabench.models.checks import module_named
from parabench.plan.case import Case
from parabench.registry import load_factory, takes_argument, users_code


def describe(case: Case) -> ModelEntry:
    """What the case's model, a user's own, brings. Raises UsageError where it cannot be built or contradicts itself."""
    return _built_once(_factory_case(case))[0]


def _factory_case(case: Case) -> Case:
    """Return the case that the factory is called with. It must return the same model for all cases that train the same,
    and names the level of verification itself."""
    return case.replace(verification=EXACT).reference() if takes_case(case.model) else Case(model=case.model)


def takes_case(name: str) -> bool:
    """Whether the factory of a user's model is given the case. Raises UsageError when it cannot be had or is none."""
    return takes_argument(load_factory(MODELS, "model", name, "Model"))


@cache
def _built_once(case: Case) -> tuple[ModelEntry, MakeBatch | None]:
    """What building the model once shows, and what it makes samples with."""
    model = _built(case)
    outside_parameter = outside(model) if model.blocks else None
    first = module_named(model.module, model.first)
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
def check_batch(case: Case) -> None:
    """Raise UsageError unless the model makes the samples of this case, a reference."""
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
