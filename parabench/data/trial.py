"""A small batch of a model and its data, tried on the CPU before the first launch, so that each plain mistake is one
line."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy
import psutil
import torch
from torch import Tensor, nn

from parabench.data.loader import Loading
from parabench.errors import UsageError
from parabench.models import EXACT, IEEE, IGNORED_LABELS, MODELS, RANDOM_DATA, remedies
from parabench.models.base import Model, build_model, loss_of, output_of, own_optimizer, own_scheduler, what_is
from parabench.models.batches import Batch, inputs_of, rows_of, shapes_of, take_rows, tensors_of
from parabench.models.suspects import ignores_labels, suspects_of
from parabench.models.user import describe
from parabench.plan.case import Case
from parabench.registry import users_code
from parabench.strategies import entry_of

# BatchNorm needs two samples.
ROWS = 2

# The most that a trial may cost: operations for each core, some seconds, and the share of the memory that is free. A
# parameter needs 16 bytes with its gradient and AdamW's state; the rest is room for activations.
OPERATIONS_PER_CORE = 2e11
FREE_SHARE, BYTES_PER_PARAMETER = 0.5, 20

# A composition of blocks is the module if they differ by less: rounding, relative to the largest output.
SAME = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one batch showed.

    `skipped` is why nothing was tried, or None. `steps` has a few words for each step that passed, by its name.
    `unused` are parameters without a gradient. `suspects` are keys of `models.SUSPECTS`. `apart` is the difference
    between `head(blocks(stem(x)))` and `module(x)`, relative to the output; None if there are no blocks.
    """

    skipped: str | None = None
    steps: dict[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    apart: float | None = None


def trial_of(case: Case) -> Trial:
    """Try one batch of the case's model and data. Raises UsageError for the first mistake."""
    training = replace(case.reference(), device="cpu", backend="gloo", precision=IEEE, threads=1, verification=EXACT)
    return _tried(replace(training, grad_accumulation=1, pin_memory=False))


def notes_of(case: Case) -> Iterator[str]:
    """Give what the trial of a case's model and data warns of, a line each."""
    trial, name = trial_of(case), f"model {case.model}"
    if trial.skipped:
        yield f"{name} is not tried before the first launch: {trial.skipped}"
    if case.world_size == 1:
        return
    takes_unused = case.find_unused_parameters or case.static_graph
    if trial.unused and not takes_unused and "find_unused_parameters" in entry_of(case.strategy).axes:
        yield f"{name}: {unused_line(trial.unused)}"
    for remedy in remedies(trial.suspects, case.verification):
        yield f"{name}: {remedy}"


def unused_line(names: tuple[str, ...]) -> str:
    """Return the message for trainable parameters without a gradient."""
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"the loss does not depend on {shown}; DDP needs --set find_unused_parameters=on"


@cache
def _tried(case: Case) -> Trial:
    name = f"model {case.model!r}"
    # The size is known without memory for the parameters.
    parameters = (MODELS[case.model] if case.model in MODELS else describe(case)).parameters or 0
    if why := _too_large(parameters, case):
        return Trial(skipped=why)
    steps: dict[str, str] = {}
    with _random_states_kept():
        with users_code(f"{name} cannot be built", "fix that function"), torch.device("cpu"):
            model = build_model(case, seed=case.seed)
        steps["built"] = f"{type(model.module).__name__}, {parameters:,} parameters, {len(model.blocks)} blocks"
        loading = Loading(case, model)
        batch = next(loading.batches(0, 1, torch.device("cpu")))
        with users_code(f"{name}: a batch of shapes {shapes_of(batch)} has no common first dimension"):
            batch = take_rows(batch, slice(0, min(ROWS, rows_of(batch))))
        steps["batch"] = f"shapes {shapes_of(batch)} from data {case.data}"
        suspects = [*suspects_of(model.module)]
        suspects += [IGNORED_LABELS] * ignores_labels(batch) + [RANDOM_DATA] * loading.is_random()
        apart = _apart(model, batch) if model.blocks else None
        _backward(model, batch, name, steps)
        unused = _without_gradient(model, name)
        trained = sum(each.requires_grad for each in model.module.parameters())
        steps["backward"] = f"gradients of {trained - len(unused)} of {trained} trainable parameters"
        steps["optimizer"] = _step(model, case)
        return Trial(steps=steps, unused=unused, suspects=tuple(suspects), apart=apart)


@contextmanager
def _random_states_kept() -> Iterator[None]:
    """Leave the generators of torch, numpy and Python as they were."""
    of_python, of_numpy = random.getstate(), numpy.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(of_python)
        numpy.random.set_state(of_numpy)


def _too_large(parameters: int, case: Case) -> str | None:
    free = psutil.virtual_memory().available
    if parameters * BYTES_PER_PARAMETER > FREE_SHARE * free:
        return f"its {parameters / 1e9:.2g}G parameters do not fit into {free / 1e9:.0f} GB of free memory"
    cores = len(os.sched_getaffinity(0))
    if 6 * parameters * ROWS * case.seq_len > OPERATIONS_PER_CORE * cores:
        return f"a batch of its {parameters / 1e9:.2g}G parameters would take too long on {cores} cores"
    return None


def _backward(model: Model, batch: Batch, name: str, steps: dict[str, str]) -> None:
    """Run forward, loss and backward. Raises UsageError if one of them fails."""
    given = f"on a batch of shapes {shapes_of(batch)}"
    widths = {each.dtype for each in tensors_of(inputs_of(batch)) if each.is_floating_point()}
    weights = {each.dtype for each in model.module.parameters()}
    hint = ""
    if torch.float64 in widths - weights:
        hint = "the inputs are float64 and the weights are not; give float32"
    with users_code(f"{name} fails {given}", hint or "fix its forward, or the data"):
        output = output_of(model, model.module, batch)
    steps["forward"] = f"{type(output).__name__}, shapes {shapes_of(output)}"
    with users_code(f"{name}: its loss fails {given}", "fix Model.loss"):
        loss: Any = loss_of(model, output, batch)
    if not isinstance(loss, Tensor):
        raise UsageError(f"{name}: loss gives {what_is(loss)}; return a tensor, the mean over the samples")
    if loss.dim() and loss.numel() != 1:
        raise UsageError(f"{name}: loss gives shape {tuple(loss.shape)}; return one number, the mean over the samples")
    if not loss.requires_grad:
        raise UsageError(f"{name}: loss has no gradient; it must depend on the parameters of module")
    steps["loss"] = f"{float(loss.detach()):.4g}"
    with users_code(f"{name}: backward fails {given}", "fix its forward, or Model.loss"):
        loss.backward()


def _without_gradient(model: Model, name: str) -> tuple[str, ...]:
    """Return the trainable parameters that the loss does not depend on. Raises UsageError if it depends on none, or if
    AdamW cannot use a gradient."""
    trained = {key: each for key, each in model.module.named_parameters() if each.requires_grad}
    unused = tuple(key for key, each in trained.items() if each.grad is None)
    if len(unused) == len(trained):
        raise UsageError(f"{name}: loss depends on no parameter of module; there is nothing to train")
    sparse = [key for key, each in trained.items() if each.grad is not None and each.grad.is_sparse]
    if sparse and model.optimizer is None:
        raise UsageError(
            f"{name}: the gradient of {sparse[0]} is sparse, which AdamW does not take; use sparse=False, or give "
            "Model.optimizer"
        )
    return unused


def _step(model: Model, case: Case) -> str:
    """Step the model's own optimizer and scheduler once. Raises UsageError if they fail."""
    trained = [each for each in model.module.parameters() if each.requires_grad]
    if model.optimizer is None and model.scheduler is None:
        return "AdamW"
    optimizer = torch.optim.AdamW(trained) if model.optimizer is None else own_optimizer(model, case, trained)
    scheduler = None if model.scheduler is None else own_scheduler(model, case, optimizer)
    with users_code(f"model {case.model!r}: a step of {type(optimizer).__name__} fails", "fix Model.optimizer"):
        optimizer.step()
    if scheduler is None:
        return type(optimizer).__name__
    with users_code(f"model {case.model!r}: a step of {type(scheduler).__name__} fails", "fix Model.scheduler"):
        scheduler.step()
    return f"{type(optimizer).__name__} and {type(scheduler).__name__}"


def _apart(model: Model, batch: Batch) -> float | None:
    """Return the largest difference between `head(blocks(stem(x)))` and `module(x)`, relative to the largest output;
    infinite if they cannot be compared."""
    parts: list[nn.Module] = [part for part in (model.stem, *model.blocks, model.head) if part is not None]
    inputs = inputs_of(batch)
    if model.forward is not None or not isinstance(inputs, Tensor):
        return float("inf")
    state = torch.random.get_rng_state()
    buffers = {name: each.clone() for name, each in model.module.named_buffers()}
    try:
        with torch.no_grad():
            whole = model.module(inputs)
            torch.random.set_rng_state(state)
            value: Any = inputs
            for part in parts:
                value = part(value)
        if not isinstance(whole, Tensor) or not isinstance(value, Tensor) or whole.shape != value.shape:
            return float("inf")
        return float((whole - value).abs().max() / whole.abs().max().clamp(min=1e-30))
    except Exception:
        # What the blocks cannot do one after the other is what a pipeline cannot do.
        return float("inf")
    finally:
        torch.random.set_rng_state(state)
        with torch.no_grad():
            for name, each in model.module.named_buffers():
                if name in buffers:
                    each.copy_(buffers[name])
