"""gpt-nano, and DDP, with a known delay, which ranks import by name.

A delay is a share of a step. Every rank is delayed before every forward pass by this share of the time since the
previous pass, without its delay. `slowed` takes its share from the environment variable SLOWED_MODEL; each strategy of
DELAYS has its own, once more as a copy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from torch import nn

from parabench import Model
from parabench.models.factory import build_model
from parabench.plan.case import Case
from parabench.strategies.base import ParallelModel, StrategyContext
from parabench.strategies.data_parallel import ddp

DELAYS = {"none": 0.0, "one": 0.01, "two": 0.02, "five": 0.05}


class Delay:
    """A forward pre-hook that keeps its core busy; a sleep would free the core for the other ranks."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.before: float | None = None
        self.delay = 0.0

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        now = time.perf_counter()
        if self.before is not None:
            self.delay = self.share * (now - self.before - self.delay)
            while time.perf_counter() < now + self.delay:
                pass
        self.before = now


def slowed(case: Case) -> Model:
    model = build_model(case.replace(model="gpt-nano"))
    model.module.register_forward_pre_hook(Delay(float(os.environ.get("SLOWED_MODEL", "0"))))
    return model


def _delayed(share: float) -> Callable[[Model, StrategyContext], ParallelModel]:
    def strategy(model: Model, context: StrategyContext) -> ParallelModel:
        parallel = ddp(model, context)
        parallel.module.register_forward_pre_hook(Delay(share))
        return parallel

    return strategy


none, one, two, five = map(_delayed, DELAYS.values())
none_again, one_again, two_again, five_again = map(_delayed, DELAYS.values())
