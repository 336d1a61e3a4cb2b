"""A case's model, built."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn

from parabench.errors import UsageError
from parabench.models import MODELS, GPTEntry
from parabench.models.base import MakeBatch, Model
from parabench.plan.case import Case
from parabench.registry import find, load, one_line, takes_argument

# Enough that no batch repeats within the steps that are verified, little enough to be made at once.
SYNTHETIC_BATCHES = 8


def build_model(case: Case) -> Model:
    """The case's model, from torch's current seed and on its current device. Raises UsageError when it is none."""
    entry = find(MODELS, "model", case.model)
    factory = load(MODELS, "model", case.model)
    if entry is not None:
        made: Model = factory(entry, case)
        return made
    model = call_factory(factory, case)
    if not isinstance(model, Model):
        raise UsageError(f"model {case.model!r} gives {type(model).__name__}; return a parabench.Model from it")
    if not isinstance(model.module, nn.Module):
        raise UsageError(f"model {case.model!r}: module is {what_is(model.module)}; it must be an nn.Module")
    # What a user's factory made elsewhere, from a file perhaps, belongs on this rank's device too.
    model.module.to(torch.get_default_device())
    return model


def call_factory(factory: Any, case: Case) -> Any:
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


def make_samples(batch: MakeBatch, case: Case) -> tuple[Tensor, Tensor]:
    """The case's synthetic samples. Raises UsageError where a user's `batch` fails, or gives something else than it
    was asked for."""
    rows = SYNTHETIC_BATCHES * case.global_batch
    try:
        made: Any = batch(rows, torch.Generator().manual_seed(case.seed))
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's function does
        raise UsageError(
            f"model {case.model!r} cannot make {rows} samples: {one_line(error)}; mend its batch"
        ) from error
    asked = f"asked for {rows} samples; give a pair (inputs, targets) of tensors on the CPU with {rows} rows each"
    if not isinstance(made, (tuple, list)) or not all(isinstance(each, Tensor) for each in made):
        kind = type(made).__name__
        inside = f" of {', '.join(type(each).__name__ for each in made[:3])}" if isinstance(made, (tuple, list)) else ""
        raise UsageError(f"model {case.model!r}: batch gives {kind}{inside}, {asked}")
    wrong = [each for each in made if each.device.type != "cpu" or each.shape[:1] != (rows,)]
    if len(made) != 2 or wrong:
        shapes = ", ".join(f"{tuple(each.shape)} on {each.device}" for each in made[:3])
        raise UsageError(f"model {case.model!r}: batch gives {len(made)} tensors, {shapes}, {asked}")
    return made[0], made[1]
