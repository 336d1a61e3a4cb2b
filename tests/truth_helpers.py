"""A training whose long moments are known: collectives and a backward that sleep for exactly so long.

What really happened is noted by this module's own reading of the clock, for a sleeper may be woken late.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel

from parabench import Model
from parabench.collectives.ring import RING
from parabench.collectives.wire import Wire
from parabench.strategies.base import ParallelModel, StrategyContext
from parabench.strategies.data_parallel import ddp
from parabench.strategies.fsdp import fsdp
from parabench.strategies.tensor_parallel import tp

# How long the artificial collective takes, and how long backward goes on after it has begun.
COLLECTIVE_S = 0.10
HIDDEN_S = 0.04
# How late rank 1 comes.
LATE_S = 0.12

IN, WIDE, OUT, BATCH = 16, 64, 8, 8
# Which call is the artificial one: elements of its whole buffer. The last layer's gradient is DDP's first bucket, and
# FSDP's last unit; tensor parallel sums the gradient of the last layer's input.
LAST = WIDE * OUT
SUMMED = BATCH * WIDE

# (what, begin, end) of this rank, in seconds of the clock that all processes share.
NOTES: list[tuple[str, float, float]] = []


def asleep(begin: float, seconds: float) -> None:
    """Until so many seconds after `begin`; awake for the last moment."""
    while (left := begin + seconds - perf_counter()) > 0:
        if left > 5e-4:
            time.sleep(left - 5e-4)


def _taking(function: Callable[..., None], elements: int) -> Callable[..., None]:
    """`function`, that takes COLLECTIVE_S when its buffer has so many `elements`."""

    def collective(wire: Wire, *tensors: Any) -> None:
        begin = perf_counter()
        function(wire, *tensors)
        if max(each.numel() for each in tensors if isinstance(each, Tensor)) == elements:
            asleep(begin, COLLECTIVE_S)
            NOTES.append(("collective", begin, perf_counter()))

    return collective


SLOW_LAST = replace(
    RING,
    name="slow_last",
    all_reduce=_taking(RING.all_reduce, LAST),
    reduce_scatter=_taking(RING.reduce_scatter, LAST),
)
SLOW_SUMMED = replace(RING, name="slow_summed", all_reduce=_taking(RING.all_reduce, SUMMED))


class _Slow(torch.autograd.Function):
    """The identity, whose backward takes so long."""

    @staticmethod
    def forward(context: Any, x: Tensor, seconds: float) -> Tensor:
        context.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        asleep(perf_counter(), context.seconds)
        return gradient, None


class Known(nn.Module):
    """Two layers. Backward is `late` seconds on rank 1, the last layer, `hidden` seconds, the first layer."""

    def __init__(self, late: float, hidden: float) -> None:
        super().__init__()
        self.first = nn.Linear(IN, WIDE, bias=False)
        self.last = nn.Linear(WIDE, OUT, bias=False)
        self.late, self.hidden = late, hidden
        for name, layer in (("first", self.first), ("last", self.last)):
            layer.weight.register_post_accumulate_grad_hook(self._noting(name))

    def _noting(self, name: str) -> Callable[[Tensor], None]:
        def hook(_: Tensor) -> None:
            now = perf_counter()
            NOTES.append((f"gradient of {name}", now, now))

        return hook

    def forward(self, x: Tensor) -> Tensor:
        """(batch, IN) to (batch, OUT)."""
        is_late = dist.is_initialized() and dist.get_rank() == 1
        x = _Slow.apply(self.first(x), self.hidden)
        return _Slow.apply(self.last(x), self.late if is_late else 0.0)


def _batch(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(n, IN, generator=generator), torch.randn(n, OUT, generator=generator)


def _model(module: Known) -> Model:
    return Model(
        module=module,
        loss=nn.functional.mse_loss,
        batch=_batch,
        blocks=[module.last],
        tensor_parallel={"last": ColwiseParallel(output_layouts=Replicate())},
    )


def hiding() -> Model:
    """Backward goes on for HIDDEN_S after the last layer's gradient is there."""
    return _model(Known(0.0, HIDDEN_S))


def late() -> Model:
    """Rank 1 comes to the last layer's gradient LATE_S after the other."""
    return _model(Known(LATE_S, 0.0))


def _telling(parallel: ParallelModel) -> ParallelModel:
    """The strategy, with every rank's notes among its facts."""

    def facts() -> dict[str, Any]:
        notes: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(notes, NOTES)
        return {**parallel.facts(), "notes": notes}

    return replace(parallel, facts=facts)


def told_ddp(model: Model, context: StrategyContext) -> ParallelModel:
    """DDP."""
    return _telling(ddp(model, context))


def told_fsdp(model: Model, context: StrategyContext) -> ParallelModel:
    """FSDP2."""
    return _telling(fsdp(model, context))


def told_tp(model: Model, context: StrategyContext) -> ParallelModel:
    """Tensor parallel."""
    return _telling(tp(model, context))
