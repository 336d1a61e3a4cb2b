"""A case's model, built."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any

import torch
from torch import nn

from parabench.case import Case
from parabench.errors import UsageError
from parabench.models import MODELS, GPTEntry
from parabench.models.model import Model
from parabench.registry import find, load, takes_argument


def build_model(case: Case) -> Model:
    """The case's model, from torch's current seed and on its current device. Raises UsageError when it is none."""
    entry = find(MODELS, "model", case.model)
    factory = load(MODELS, "model", case.model)
    if entry is not None:
        made: Model = factory(entry, case)
        return made
    model = called(factory, case)
    if not isinstance(model, Model):
        raise UsageError(
            f"model {case.model!r} gives {type(model).__name__}; return a parabench.models.model.Model from it"
        )
    if not isinstance(model.module, nn.Module):
        raise UsageError(f"model {case.model!r}: module is {what_is(model.module)}; it must be an nn.Module")
    # What a user's factory made elsewhere, from a file perhaps, belongs on this rank's device too.
    model.module.to(torch.get_default_device())
    return model


def called(factory: Any, case: Case) -> Any:
    """What a user's factory gives; one that takes an argument is given the case."""
    return factory(case) if takes_argument(factory) else factory()


def what_is(value: Any) -> str:
    """A wrong value in few words; a class is often meant to be called first."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return repr(value) if value is None or isinstance(value, (int, float, str)) else type(value).__name__


def sizes(model: Model) -> dict[str, int]:
    """Bytes of all parameters, and of those that tensor parallel would split; how many numbers they are, and how many
    of them are only looked up: embeddings that no other layer multiplies with, as a tied head does."""
    parameters = {id(p): p for p in model.module.parameters()}
    split = {
        id(p): p.nbytes
        for name, module in model.module.named_modules()
        if any(fnmatch(name, pattern) for pattern in model.tensor_parallel)
        for p in module.parameters()
    }
    looked_up: set[int] = set()
    multiplied: set[int] = set()
    for module in model.module.modules():
        kind = looked_up if isinstance(module, nn.Embedding) else multiplied
        kind |= {id(p) for p in module.parameters(recurse=False)}
    return {
        "bytes": sum(p.nbytes for p in parameters.values()),
        "tensor_parallel_bytes": sum(split.values()),
        "parameters": sum(p.numel() for p in parameters.values()),
        "embedding_parameters": sum(parameters[each].numel() for each in looked_up - multiplied),
    }


def attention_of(case: Case) -> dict[str, int]:
    """{"layers", "heads", "head_dim"} of our decoders' attention; empty for other models, whose shape is not known."""
    entry = find(MODELS, "model", case.model)
    if not isinstance(entry, GPTEntry) or entry.heads is None:
        return {}
    return {"layers": entry.layers, "heads": entry.heads, "head_dim": entry.width // entry.heads}
