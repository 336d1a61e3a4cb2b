"""What the tests of parameter servers run in ranks: servers that do wrong, and ranks that die."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from parabench import Model
from parabench.strategies import parameter_server_async as module
from parabench.strategies.base import ParallelModel, StrategyContext
from parabench.strategies.data_parallel import local_only
from parabench.strategies.parameter_server import parameter_server
from parabench.strategies.parameter_server_async import ParameterVersions, parameter_server_async

Strategy = Callable[[Model, StrategyContext], ParallelModel]
FAULTY_STEP = 3


class Dropping(ParameterVersions):
    """Answers every third gradient without applying it."""

    def apply(self, rank: int, step: int, gradient: Tensor, into: Tensor) -> int:
        if step % 3 == 2:
            into.copy_(self.values.detach())
            return self.version
        return super().apply(rank, step, gradient, into)


class Doubling(ParameterVersions):
    """Applies one gradient of rank 1 twice."""

    def apply(self, rank: int, step: int, gradient: Tensor, into: Tensor) -> int:
        if (rank, step) == (1, FAULTY_STEP):
            super().apply(rank, step, gradient.clone(), into.clone())
        return super().apply(rank, step, gradient, into)


class Flipping(ParameterVersions):
    """Climbs instead of descending: each gradient is applied once, with the wrong sign."""

    def apply(self, rank: int, step: int, gradient: Tensor, into: Tensor) -> int:
        return super().apply(rank, step, gradient.neg_(), into)


class Breaking(ParameterVersions):
    """Fails over a gradient of rank 1, in that rank's thread."""

    def apply(self, rank: int, step: int, gradient: Tensor, into: Tensor) -> int:
        if (rank, step) == (1, FAULTY_STEP):
            raise ArithmeticError("the optimizer broke")
        return super().apply(rank, step, gradient, into)


def _served_by(versions: type[ParameterVersions]) -> Strategy:
    def strategy(model: Model, context: StrategyContext) -> ParallelModel:
        module.ParameterVersions = versions  # type: ignore[misc]
        return parameter_server_async(model, context)

    return strategy


dropping, doubling, flipping, breaking = map(_served_by, (Dropping, Doubling, Flipping, Breaking))


def _faulty(strategy: Strategy, faulty_rank: int, fault: Callable[[], object]) -> Strategy:
    """`strategy`, one of whose ranks meets `fault` in the forward pass of step 3."""

    def made(model: Model, context: StrategyContext) -> ParallelModel:
        parallel = strategy(model, context)
        calls = itertools.count()

        def hook(*_: Any) -> None:
            if next(calls) == FAULTY_STEP:
                fault()

        if context.rank == faulty_rank:
            model.module.register_forward_pre_hook(hook)
        return parallel

    return made


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise() -> None:
    raise RuntimeError("the dog ate it")


killed_worker = _faulty(parameter_server, 1, _die)
killed_server = _faulty(parameter_server, 0, _die)
killed_async_worker = _faulty(parameter_server_async, 1, _die)
killed_async_server = _faulty(parameter_server_async, 0, _die)
raising_async_worker = _faulty(parameter_server_async, 1, _raise)
raising_async_server = _faulty(parameter_server_async, 0, _raise)


def same_part(model: Model, context: StrategyContext) -> ParallelModel:
    """No exchange, and every rank trains on the first rank's part of the batch."""
    return replace(local_only(model, context), data_rank=0)
