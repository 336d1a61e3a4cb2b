"""Run one training step with a small batch on the CPU, to report mistakes in a model and its data before a launch."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy
import psutil
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from parabench.data import SYNTHETIC
from parabench.data.loader import Loading
from parabench.errors import UsageError
from parabench.models import EXACT, IEEE, IGNORED_LABELS, MODELS, RANDOM_DATA, remedies
from parabench.models.base import (
    Model,
    buffer_suspect,
    buffers_of,
    changed_buffers,
    copies_of_buffers,
    first_names,
    ignores_labels,
    loss_of,
    output_of,
    same_bits,
    set_buffers,
    suspects_of,
)  # fmt: skip
from parabench.models.batches import Batch, inputs_of, rows_of, shapes_of, take_rows, tensors_of
from parabench.models.factory import build_model, describe, own_optimizer, own_scheduler, what_is
from parabench.plan.case import Case
from parabench.registry import users_code
from parabench.strategies import entry_of

# BatchNorm needs two samples.
ROWS = 2

# The limits of a trial: operations per core (some seconds), and the share of the free memory. A parameter needs
# 16 bytes with its gradient and AdamW's state, and activations need more.
OPERATIONS_PER_CORE = 2e11
FREE_SHARE, BYTES_PER_PARAMETER = 0.5, 20

# The maximum rounding difference between the module and its blocks, relative to the largest output.
SAME = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The result of trying one batch."""

    skipped: str | None = None  # why nothing was tried
    steps: dict[str, str] = field(default_factory=dict)  # {name of a step: its result}
    # Trainable parameters without a gradient. The output does not depend on `unused` ones. It depends on the others,
    # but the loss does not use that part of it. DDP finds `unread` ones, but not `hidden` ones, in a dataclass.
    unused: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # trainable parameters that the optimizer does not have
    suspects: tuple[str, ...] = ()  # keys of `models.SUSPECTS`
    apart: float | None = None  # the result of `_blocks_error`; None without blocks


def trial_of(case: Case) -> Trial:
    """Try forward, loss, backward and an optimizer step on the CPU with one batch of the case's model and data.

    Raises UsageError for the first mistake in the user's model or data.
    """
    training = case.reference().replace(device="cpu", backend="gloo", precision=IEEE, threads=1, verification=EXACT)
    return _tried(training.replace(grad_accumulation=1, pin_memory=False))


def notes_of(case: Case) -> Iterator[str]:
    """Try one batch of a case, and yield the warnings about its model and data, one line each."""
    trial, name = trial_of(case), f"model {case.model}"
    if trial.skipped:
        yield f"{name} is not tried before the first launch: {trial.skipped}"
    if case.world_size > 1:
        options = {"find_unused": case.find_unused_parameters, "static": case.static_graph}
        gradients = needs_of_ddp(trial, case.strategy, **options) is not None
        yield from (f"{name}: {line}" for line in warnings_of(trial, case.verification, gradients=gradients))


def warnings_of(trial: Trial, verification: str, *, gradients: bool) -> Iterator[str]:
    """Yield the warnings about a trial, one line each, with the ones about missing gradients if `gradients`."""
    if gradients and (found := (*trial.unused, *trial.unread)):
        yield f"the loss does not depend on {first_names(found)}; DDP needs --set find_unused_parameters=on"
    if gradients and trial.hidden:
        yield (
            f"the loss does not depend on {first_names(trial.hidden)}, and no option of DDP helps, because the output "
            "is a dataclass; return a dict or a tuple, with --set find_unused_parameters=on"
        )
    if trial.left_out:
        yield (
            f"the optimizer leaves out {first_names(trial.left_out)} ({len(trial.left_out)} of the trainable "
            "parameters); they are not trained"
        )
    yield from remedies(trial.suspects, verification).values()


def needs_of_ddp(trial: Trial, strategy: str, *, find_unused: bool, static: bool) -> str | None:
    """Return which option DDP needs because of parameters without a gradient; None if nothing is missing."""
    if "find_unused_parameters" not in entry_of(strategy).axes:
        return None
    if trial.hidden:
        return "needs a dict or a tuple as output, see the warning"
    if trial.unread and static:
        return "needs --set find_unused_parameters=on, and static_graph off"
    lacks = (trial.unused or trial.unread) and not find_unused and not static
    return "needs --set find_unused_parameters=on, see the warning" if lacks else None


@cache
def _tried(case: Case) -> Trial:
    name = f"model {case.model!r}"
    parameters = (MODELS[case.model] if case.model in MODELS else describe(case)).parameters or 0
    if why := _too_large(parameters, case):
        return Trial(skipped=why)
    with ExitStack() as stack:  # keeps the states of all random generators
        stack.callback(random.setstate, random.getstate())
        stack.callback(numpy.random.set_state, numpy.random.get_state())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        with users_code(f"{name} cannot be built", "fix that function"), torch.device("cpu"):
            model = build_model(case, seed=case.seed)
        loading = Loading(case, model)
        batch = _first_batch(loading, case, model)
        suspects = [*suspects_of(model.module)]
        suspects += [IGNORED_LABELS] * ignores_labels(batch) + [RANDOM_DATA] * loading.is_random()
        apart = _blocks_error(model, batch) if model.blocks else None
        output, loss = _backward(model, batch, name)
        trained = {key: each for key, each in model.module.named_parameters() if each.requires_grad}
        missing = _without_gradient(trained, model, name)
        optimizer, left_out = _step(model, case)
        # DDP with `find_unused_parameters` searches the graph of the output for unused parameters (`_find_tensors`). If
        # the loss leaves out a tensor, DDP handles it only if pytrees find it (`_DDPSink`), so not in dataclasses.
        reached, flat = ({*map(id, leaves_of(each))} for each in (tensors_of(output), tree_leaves(output)))
        unused = [key for key in missing if id(trained[key]) not in reached]
        unread = [key for key in missing if id(trained[key]) in flat]
        return Trial(
            steps={
                "built": f"{type(model.module).__name__}, {parameters:,} parameters, {len(model.blocks)} blocks",
                "batch": f"shapes {shapes_of(batch)} from data {case.data}",
                "forward": f"{type(output).__name__}, shapes {shapes_of(output)}",
                "loss": f"{float(loss.detach()):.4g}",
                "backward": f"gradients of {len(trained) - len(missing)} of {len(trained)} trainable parameters",
                "optimizer": optimizer,
            },
            unused=tuple(unused),
            unread=tuple(unread),
            hidden=tuple(key for key in missing if key not in (*unused, *unread)),
            left_out=left_out,
            suspects=(*suspects, *buffer_suspect(_moved_buffers(model, batch))),
            apart=apart,
        )


def _too_large(parameters: int, case: Case) -> str | None:
    """Return why a trial would need too much memory or time; None if it does not."""
    free = psutil.virtual_memory().available
    if parameters * BYTES_PER_PARAMETER > FREE_SHARE * free:
        return f"its {parameters / 1e9:.2g}G parameters do not fit into {free / 1e9:.0f} GB of free memory"
    cores = len(os.sched_getaffinity(0))
    if 6 * parameters * ROWS * case.seq_len > OPERATIONS_PER_CORE * cores:
        return f"a batch of its {parameters / 1e9:.2g}G parameters would take too long on {cores} cores"
    return None


def _first_batch(loading: Loading, case: Case, model: Model) -> Batch:
    """Return the first samples of the data. Raises UsageError if they do not suit the model."""
    name, data = f"model {case.model!r}", f"data {case.data!r}"
    with users_code(f"{data} gives no first batch", "fix its items, or Model.collate"):
        batch = next(loading.batches(0, 1, torch.device("cpu")))
    inputs = tensors_of(inputs_of(batch))
    if not inputs and model.collate is None:
        raise UsageError(f"{data} gives a batch without a tensor of inputs; give numbers, or Model.collate")
    if case.data != SYNTHETIC and model.vocabulary is not None and inputs and inputs[0].is_floating_point():
        kind = str(inputs[0].dtype).removeprefix("torch.")
        raise UsageError(f"{data} gives inputs of {kind}, model {case.model} takes tokens; give integers")
    with users_code(f"{name}: a batch of shapes {shapes_of(batch)} has no common first dimension"):
        rows = rows_of(batch)
    if rows != case.global_batch:
        raise UsageError(f"{name}: collate gives {rows} samples for {case.global_batch} items; give one for each item")
    return take_rows(batch, slice(0, min(ROWS, rows)))


def _backward(model: Model, batch: Batch, name: str) -> tuple[Any, Tensor]:
    """Run forward, loss and backward on a batch. Return (output, loss). Raises UsageError on a failure."""
    given = f"on a batch of shapes {shapes_of(batch)}"
    widths = {each.dtype for each in tensors_of(inputs_of(batch)) if each.is_floating_point()}
    wide = torch.float64 in widths - {each.dtype for each in model.module.parameters()}
    called: list[bool] = []
    before = dict(model.module.named_parameters())
    # TorchScript modules do not accept hooks.
    observed = model.forward is not None and not isinstance(model.module, torch.jit.ScriptModule)
    hook = model.module.register_forward_hook(lambda *_: called.append(True)) if observed else None
    remedy = "the inputs are float64 and the weights are not; give float32" if wide else "fix its forward, or the data"
    with users_code(f"{name} fails {given}", remedy):
        output = output_of(model, model.module, batch)
    if hook is not None:
        hook.remove()
    if observed and not called:
        raise UsageError(
            f"{name}: forward does not call the module that it receives, and DDP and FSDP act only in this call; "
            "call module(...), not its methods"
        )
    new = [key for key, each in model.module.named_parameters() if each is not before.get(key, each)]
    if new:
        raise UsageError(
            f"{name}: forward replaces parameter {first_names(new)}, and the optimizer and DDP still use the old one; "
            "change the values in place, under torch.no_grad()"
        )
    with users_code(f"{name}: its loss fails {given}", "fix Model.loss"):
        loss: Any = loss_of(model, output, batch)
    if not isinstance(loss, Tensor) or loss.numel() != 1 or loss.is_complex():
        found = f"a tensor of {loss.dtype}, shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else what_is(loss)
        raise UsageError(f"{name}: loss gives {found}; return a tensor with one real number, the mean over the samples")
    if not loss.requires_grad:
        raise UsageError(f"{name}: loss has no gradient; it must depend on the parameters of module")
    with users_code(f"{name}: backward fails {given}", "fix its forward, or Model.loss"):
        loss.backward()
    return output, loss


def leaves_of(outputs: Sequence[Any]) -> Iterator[Tensor]:
    """Yield the tensors at the leaves of the autograd graphs of `outputs`. Other values than tensors are ignored."""
    tensors = [each for each in outputs if isinstance(each, Tensor)]
    yield from (each for each in tensors if each.requires_grad and each.is_leaf)
    nodes = [each.grad_fn for each in tensors if each.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if hasattr(node, "variable"):  # AccumulateGrad
            yield node.variable
        following = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= following
        nodes.extend(following)


def _moved_buffers(model: Model, batch: Batch) -> list[str]:
    """Return the names of buffers that depend on the samples; empty if the output does not depend on them."""
    start = buffers_of(model.module)
    if not start:
        return []
    state = torch.random.get_rng_state()

    def forward(given: Batch, buffers: Mapping[str, Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
        set_buffers(model.module, buffers)
        torch.random.set_rng_state(state)
        with torch.no_grad():
            outputs = [each.clone() for each in tensors_of(output_of(model, model.module, given))]
        return outputs, buffers_of(model.module)

    last = rows_of(batch) - 1
    try:
        (_, one), (_, other) = (forward(take_rows(batch, [at] * ROWS), start) for at in (0, last))
        moved = changed_buffers(one, other)
        if not moved:
            return []
        (outputs, _), (after, _) = forward(batch, start), forward(batch, other)
    except Exception:  # forward may accept only the samples of this batch
        return []
    return moved if not all(map(same_bits, outputs, after)) else []


def _without_gradient(trained: Mapping[str, nn.Parameter], model: Model, name: str) -> list[str]:
    """Return the names of the trainable parameters without a gradient.

    Raises UsageError if no parameter has a gradient, or if AdamW cannot use one.
    """
    missing = [key for key, each in trained.items() if each.grad is None]
    if len(missing) == len(trained):
        raise UsageError(f"{name}: loss does not depend on the parameters of module")
    sparse = [key for key, each in trained.items() if each.grad is not None and each.grad.is_sparse]
    if sparse and model.optimizer is None:
        raise UsageError(
            f"{name}: the gradient of {sparse[0]} is sparse, which AdamW does not take; use sparse=False, or give "
            "Model.optimizer"
        )
    return missing


def _step(model: Model, case: Case) -> tuple[str, tuple[str, ...]]:
    """Step the optimizer and scheduler once. Return (names of their classes, parameters that the optimizer lacks).

    Raises UsageError if they fail.
    """
    trained = [each for each in model.module.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained) if model.optimizer is None else own_optimizer(model, case, trained)
    steps: list[tuple[str, Any]] = [("optimizer", optimizer)]
    if model.scheduler is not None:
        steps.append(("scheduler", own_scheduler(model, case, optimizer)))
    for name, each in steps if model.optimizer or model.scheduler else ():
        with users_code(f"model {case.model!r}: a step of {type(each).__name__} fails", f"fix Model.{name}"):
            each.step()
    taken = {id(each) for group in optimizer.param_groups for each in group["params"]}
    named = model.module.named_parameters()
    left_out = tuple(name for name, each in named if each.requires_grad and id(each) not in taken)
    return " and ".join(type(each).__name__ for _, each in steps), left_out


def _blocks_error(model: Model, batch: Batch) -> float:
    """Return the largest difference of `head(blocks(stem(x)))` from `module(x)`, relative to the largest output.

    It is infinite if they cannot be compared.
    """
    value: Any = inputs_of(batch)
    if model.forward is not None or not isinstance(value, Tensor):
        return float("inf")
    state = torch.random.get_rng_state()
    buffers = copies_of_buffers(model.module)
    try:
        with torch.no_grad():
            whole = model.module(value)
            torch.random.set_rng_state(state)
            for part in (model.stem, *model.blocks, model.head):
                value = value if part is None else part(value)
        if not isinstance(whole, Tensor) or not isinstance(value, Tensor) or whole.shape != value.shape:
            return float("inf")
        return float((whole - value).abs().max() / whole.abs().max().clamp(min=1e-30))
    except Exception:  # blocks that are not sequential cannot be a pipeline
        return float("inf")
    finally:
        torch.random.set_rng_state(state)
        set_buffers(model.module, buffers)
