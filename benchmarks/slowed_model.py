"""gpt-nano with a known delay: the environment variable SLOWED_MODEL is its share of a step.

Every rank is delayed before every forward pass by this share of the time since the previous pass, without its delay.
"""

from __future__ import annotations

import os
import time
from typing import Any

from torch import nn

from parabench import Model
from parabench.models.factory import build_model
from parabench.plan.case import Case


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
