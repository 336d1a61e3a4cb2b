"""Algorithms that are wrong, and a strategy that forgets a little."""

from __future__ import annotations

import itertools
from typing import Any

import torch.distributed as dist
from torch import Tensor

from parabench import Model
from parabench.collectives.algorithm import Algorithm, Reduction
from parabench.collectives.ring import RING
from parabench.collectives.wire import Wire
from parabench.strategies.base import ForwardBackward, ParallelModel, StrategyContext

# The rank whose wire breaks.
BROKEN_RANK = 1


def _forgetting(wire: Wire, flat: Tensor) -> Tensor:
    return flat.zero_() if wire.rank == wire.size - 1 else flat


def _all_reduce_forgetting(wire: Wire, flat: Tensor, reduction: Reduction) -> None:
    RING.all_reduce(wire, _forgetting(wire, flat), reduction)


def _reduce_scatter_forgetting(wire: Wire, output: Tensor, flat: Tensor, reduction: Reduction) -> None:
    RING.reduce_scatter(wire, output, _forgetting(wire, flat), reduction)


def _all_reduce_doubling(wire: Wire, flat: Tensor, reduction: Reduction) -> None:
    RING.all_reduce(wire, flat, reduction)
    flat.mul_(2)


def _reduce_scatter_doubling(wire: Wire, output: Tensor, flat: Tensor, reduction: Reduction) -> None:
    RING.reduce_scatter(wire, output, flat, reduction)
    output.mul_(2)


def _all_reduce_breaking(wire: Wire, flat: Tensor, reduction: Reduction) -> None:
    if wire.rank == BROKEN_RANK:
        raise ValueError("the wire broke")
    RING.all_reduce(wire, flat, reduction)


def _reduce_scatter_breaking(wire: Wire, output: Tensor, flat: Tensor, reduction: Reduction) -> None:
    if wire.rank == BROKEN_RANK:
        raise ValueError("the wire broke")
    RING.reduce_scatter(wire, output, flat, reduction)


BREAKING = Algorithm(
    name="breaking",
    all_reduce=_all_reduce_breaking,
    reduce_scatter=_reduce_scatter_breaking,
    all_gather=RING.all_gather,
)
FORGETFUL = Algorithm(
    name="forgetful",
    all_reduce=_all_reduce_forgetting,
    reduce_scatter=_reduce_scatter_forgetting,
    all_gather=RING.all_gather,
)
DOUBLING = Algorithm(
    name="doubling",
    all_reduce=_all_reduce_doubling,
    reduce_scatter=_reduce_scatter_doubling,
    all_gather=RING.all_gather,
)


def _broadcast_of_nothing(wire: Wire, flat: Tensor, root: int) -> None:
    """Everyone keeps what he has."""


STALE = Algorithm(
    name="stale",
    all_reduce=RING.all_reduce,
    reduce_scatter=RING.reduce_scatter,
    all_gather=RING.all_gather,
    broadcast=_broadcast_of_nothing,
)


def forgetting_late(model: Model, context: StrategyContext) -> ParallelModel:
    """Data parallel by hand that in its last step leaves out one bias: too little for any loss to show."""
    ordinary = ForwardBackward(module=model.module, loss=model.loss, context=context)
    steps = itertools.count()

    def compute(inputs: Tensor, targets: Tensor, clock: Any) -> Tensor:
        loss = ordinary(inputs, targets, clock)
        last = next(steps) == FORGETFUL_STEPS - 1
        for name, parameter in model.module.named_parameters():
            if not (last and name.endswith("down.bias")):
                dist.all_reduce(parameter.grad)
                parameter.grad /= context.world_size
        return loss

    return ParallelModel(module=model.module, data_rank=context.rank, data_ranks=context.world_size, compute=compute)


FORGETFUL_STEPS = 4
