"""A user's own model, looked at before anything is launched: built once, without memory where that can be done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from parabench.case import Case
from parabench.errors import UsageError
from parabench.models import BLOCKS, FIRST, MODELS, SEQUENCE, TENSOR, ModelEntry
from parabench.models.build import build_model
from parabench.models.model import Model
from parabench.registry import load, one_line, takes_argument


def describe(name: str) -> ModelEntry:
    """What a user's own model brings. Raises UsageError where it cannot be built or contradicts itself."""
    factory = load(MODELS, "model", name)
    if not callable(factory):
        raise UsageError(f"model {name!r} is {type(factory).__name__}; it must be a function that returns a Model")
    model = _built(Case(model=name))
    check_model(name, model)
    features = _linear(model.module, model.first).in_features if model.first is not None else None
    offered = {
        BLOCKS: model.blocks,
        TENSOR: model.tensor_parallel,
        SEQUENCE: model.sequence_parallel,
        FIRST: model.first,
    }
    return ModelEntry(
        target=name,
        summary="a user's own",
        parameters=sum(parameter.numel() for parameter in model.module.parameters()),
        brings=frozenset(need for need, given in offered.items() if given),
        blocks=len(model.blocks),
        widths=split_widths(model.module, model.tensor_parallel),
        features=features,
        vocabulary=model.vocabulary,
        context=model.context,
        images=model.vocabulary is None,
        synthetic=model.batch is not None,
        takes_case=takes_argument(factory),
    )


def _built(case: Case) -> Model:
    try:
        with torch.device("meta"):
            return build_model(case)
    except UsageError:
        raise
    except Exception:  # not everything can be done without memory; what is really wrong shows again
        pass
    try:
        with torch.device("cpu"):
            return build_model(case)
    except UsageError:
        raise
    except Exception as error:  # whatever a user's factory does
        raise UsageError(
            f"model {case.model!r} cannot be built: {one_line(error)}; mend that function, or call it in Python to see "
            "where"
        ) from error


def check_model(name: str, model: Any) -> None:
    """Raise UsageError for a field of a user's Model that cannot be what it must."""
    wrong = None
    if not isinstance(model.module, nn.Module):
        wrong = f"module is {type(model.module).__name__}; it must be an nn.Module"
    elif next(model.module.parameters(), None) is None:
        wrong = "module has no parameters; there is nothing to train"
    elif not callable(model.loss):
        wrong = f"loss is {type(model.loss).__name__}; it must be a function of output and targets"
    elif model.batch is not None and not callable(model.batch):
        wrong = f"batch is {type(model.batch).__name__}; it must be a function of n and a generator"
    elif stray := [each for each in model.blocks if not isinstance(each, nn.Module)]:
        wrong = f"blocks hold {type(stray[0]).__name__}; each must be an nn.Module"
    elif not _parts_of(model.module, model.blocks):
        wrong = "blocks hold a module that is no part of module"
    elif model.first is not None and not isinstance(_named(model.module, model.first), nn.Linear):
        wrong = f"first is {model.first!r}, which is no linear layer of module; name one, as named_modules does"
    elif model.first is not None and _by_columns(model.first, model.tensor_parallel):
        wrong = f"first is {model.first!r}, which tensor_parallel splits by columns; name a layer whose output is whole"
    else:
        names = [each for each, _ in model.module.named_modules()]
        for pattern in (*model.tensor_parallel, *model.sequence_parallel):
            if not any(fnmatch(each, pattern) for each in names):
                wrong = f"a plan names {pattern!r}, which is no part of module; name one, as named_modules does"
    if wrong is not None:
        raise UsageError(f"model {name!r}: {wrong}")


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


def _by_columns(name: str, plan: Mapping[str, ParallelStyle]) -> bool:
    return any(isinstance(style, ColwiseParallel) and fnmatch(name, pattern) for pattern, style in plan.items())


def _parts_of(module: nn.Module, blocks: Sequence[nn.Module]) -> bool:
    parts = set(module.modules())
    return all(block in parts for block in blocks)


def _named(module: nn.Module, name: str) -> nn.Module | None:
    return dict(module.named_modules()).get(name)


def _linear(module: nn.Module, name: str) -> nn.Linear:
    layer = _named(module, name)
    assert isinstance(layer, nn.Linear)
    return layer
