"""Apply a case's options to a model, in place: device, arithmetic, activation checkpointing, torch.compile."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from parabench.models.base import Model
from parabench.plan.case import Case

# cuBLAS and cuDNN read these variables.
OVERRIDES = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")

# Inductor's own limit for a process.
MOST_COMPILE_THREADS = 32


def move_model(model: Model, device: torch.device) -> None:
    """Move the model's modules to `device`, in place."""
    # Parameters of stem and head are in the module, but buffers of them and of a loss may be separate.
    for part in (model.module, model.stem, model.head, model.loss):
        if isinstance(part, nn.Module):
            part.to(device)


def set_arithmetic(model: Model, case: Case) -> None:
    """Convert the model to the case's dtype, and set whether float32 products of this process may use TF32.

    The settings are for the whole process, so cases with different ones never share a launch (`plan.cohorts`).
    """
    # These setters keep torch's older and newer settings of TF32 equal. torch.compile reads the older one.
    wanted = case.arithmetic
    torch.set_float32_matmul_precision("high" if wanted.allows_tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = wanted.allows_tf32
    parameters = getattr(torch, wanted.parameters)
    if parameters is not torch.float32:
        # `module.to` would drop the imaginary part of complex parameters and buffers.
        model.module._apply(lambda tensor: tensor.to(parameters) if tensor.is_floating_point() else tensor)


def arithmetic_of(left_out: int | None) -> dict[str, Any]:
    """Return the fact `arithmetic` of a launch: the settings of float32 products, read after training.

    `left_out` is the number of steps that the scaling of the loss skipped, None if the loss was not scaled.
    """

    def setting(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except RuntimeError:  # a user's code mixed torch's older and newer settings
            return "mixed settings"

    facts: dict[str, Any] = {
        "matmul": setting(torch.get_float32_matmul_precision),
        "cudnn_tf32": setting(lambda: torch.backends.cudnn.allow_tf32),
        "overrides": {name: os.environ[name] for name in OVERRIDES if name in os.environ},
    }
    return {"arithmetic": facts | ({} if left_out is None else {"steps_left_out": left_out})}


def apply_options(model: Model, case: Case) -> None:
    """Compile and checkpoint the model's blocks in place, or the module if it has none, as the case requires.

    The names of parameters do not change.
    """
    blocks = [*dict.fromkeys(model.blocks)] or [model.module]  # a repeated block is wrapped once
    if case.compile:
        compile_blocks(blocks)
    if case.activation_checkpointing:
        # Compile first: torch 2.13 cannot compile checkpointed functions with DTensors.
        for block in blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def compile_blocks(blocks: Sequence[nn.Module]) -> None:
    """Compile the forward of each block for static shapes, in place. Blocks with the same forward share its code."""
    # torch caches graphs by code object, with a limit, and does not check the case or DDP's buckets. Therefore, each
    # case compiles copies of the code, and does not share graphs with others.
    share_compile_threads()
    copies: dict[types.FunctionType, types.FunctionType] = {}
    for block in blocks:
        forward = block.forward
        if isinstance(forward, types.MethodType) and isinstance(forward.__func__, types.FunctionType):
            function = forward.__func__
            if function not in copies:
                code, names = function.__code__.replace(), function.__globals__
                copy = types.FunctionType(code, names, function.__name__, function.__defaults__, function.__closure__)
                copy.__kwdefaults__ = function.__kwdefaults__
                copy.__dict__.update(function.__dict__)
                copies[function] = copy
            forward = types.MethodType(copies[function], block)
        block.forward = torch.compile(forward, dynamic=False)


def share_compile_threads() -> None:
    """Divide the cores of a node between the compile workers of its ranks, unless the user has set a number.

    By default, Inductor starts up to 32 workers for each rank.
    """
    if "TORCHINDUCTOR_COMPILE_THREADS" in os.environ:
        return
    from torch._inductor import config

    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    config.compile_threads = max(1, min(MOST_COMPILE_THREADS, len(os.sched_getaffinity(0)) // ranks))


class CompileCounts:
    """Counts of torch.compile's graphs, and of frames that it leaves to eager mode, in `with` blocks of this object.

    torch counts for the whole process, so the steps of each case run in separate `with` blocks.
    """

    def __init__(self) -> None:
        self._counts = {"graphs": 0, "eager_frames": 0}
        self._before: dict[str, int] = {}

    def __enter__(self) -> None:
        self._before = self._of_process()

    def __exit__(self, *error: object) -> None:
        for name, count in self._of_process().items():
            self._counts[name] += count - self._before[name]

    def facts(self) -> dict[str, int]:
        """Return {"graphs", "eager_frames"}: both counts."""
        return dict(self._counts)

    @staticmethod
    def _of_process() -> dict[str, int]:
        from torch._dynamo.utils import counters

        frames = counters["frames"]
        return {"graphs": counters["stats"]["unique_graphs"], "eager_frames": frames["total"] - frames["ok"]}
