"""A user's own model, looked at before anything is launched: built once, without memory where that can be done."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from parabench.errors import UsageError
from parabench.models import BLOCKS, FIRST, MODELS, SEQUENCE, TENSOR, ModelEntry
from parabench.models.build import build_model, made_by
from parabench.models.fields import check_model, linear_of, outside, split_widths
from parabench.models.model import MakeBatch, Model
from parabench.plan.case import Case
from parabench.registry import load, one_line, takes_argument


@dataclass(frozen=True, slots=True)
class Seen:
    """What building a model once showed, and what it makes samples with."""

    entry: ModelEntry
    batch: MakeBatch | None


def describe(case: Case) -> ModelEntry:
    """What the case's model, a user's own, brings. Raises UsageError where it cannot be built or contradicts itself."""
    return _seen(_asked_with(case)).entry


def check_batch(case: Case) -> None:
    """Raise UsageError unless the model makes the samples that every rank will ask for."""
    _check_batch(case.reference())


def _asked_with(case: Case) -> Case:
    """What the factory is called with. One that takes the case is called once for each training, not for each way to
    do it: they must all train the same model."""
    factory = load(MODELS, "model", case.model)
    if not callable(factory):
        raise UsageError(
            f"model {case.model!r} is {type(factory).__name__}; it must be a function that returns a Model"
        )
    return case.reference() if takes_argument(factory) else Case(model=case.model)


@cache
def _seen(case: Case) -> Seen:
    model = _built(case)
    check_model(case.model, model)
    strange = outside(model) if model.blocks else None
    offered = {
        BLOCKS: model.blocks and strange is None,
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
        features=linear_of(model.module, model.first).in_features if model.first is not None else None,
        vocabulary=model.vocabulary,
        context=model.context,
        images=model.vocabulary is None,
        synthetic=model.batch is not None,
        takes_case=takes_argument(load(MODELS, "model", case.model)),
        outside=strange,
    )
    return Seen(entry, model.batch)


@cache
def _check_batch(case: Case) -> None:
    batch = _seen(_asked_with(case)).batch
    assert batch is not None
    try:
        made_by(batch, case)
    except UsageError:
        # What it takes from the factory may be on the meta device, as the model is; no rank's ever is.
        model = _built_on("cpu", case)
        if model.batch is None:
            raise
        made_by(model.batch, case)


def _built(case: Case) -> Model:
    try:
        with torch.device("meta"):
            return build_model(case)
    except UsageError:
        raise
    except (Exception, SystemExit):  # not everything can be done without memory; what is really wrong shows again
        return _built_on("cpu", case)


def _built_on(device: str, case: Case) -> Model:
    try:
        with torch.device(device):
            return build_model(case)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's factory does
        raise UsageError(
            f"model {case.model!r} cannot be built: {one_line(error)}; mend that function, or call it in Python to see "
            "where"
        ) from error
