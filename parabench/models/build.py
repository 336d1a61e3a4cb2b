"""A case's model, built."""

from __future__ import annotations

from fnmatch import fnmatch

from parabench.case import Case
from parabench.errors import UsageError
from parabench.models import MODELS
from parabench.models.model import Model
from parabench.registry import find, load


def build_model(case: Case) -> Model:
    """The case's model, from torch's current seed and on its current device. Raises UsageError when it is none."""
    entry = find(MODELS, "model", case.model)
    factory = load(MODELS, "model", case.model)
    model = factory(entry, case) if entry is not None else factory()
    if not isinstance(model, Model):
        raise UsageError(f"model {case.model!r} gives {type(model).__name__}; it must return a parabench Model")
    return model


def sizes(model: Model) -> dict[str, int]:
    """Bytes of all parameters, of those in the largest block, and of those that tensor parallel would split."""
    parameters = {id(p): p for p in model.module.parameters()}
    split = {
        id(p): p.nbytes
        for name, module in model.module.named_modules()
        if any(fnmatch(name, pattern) for pattern in model.tensor_parallel)
        for p in module.parameters()
    }
    return {
        "bytes": sum(p.nbytes for p in parameters.values()),
        "tensor_parallel_bytes": sum(split.values()),
    }
