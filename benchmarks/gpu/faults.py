"""A failure on a GPU is recorded with its reason, and the next launch runs."""

from __future__ import annotations

import threading

import torch
from torch import nn

from benchmarks.gpu.check import Outcome, Target, check
from benchmarks.gpu.launches import case, launched
from parabench import Model
from parabench.store.record import Status
from parabench.strategies.base import ParallelModel, StrategyContext
from parabench.strategies.data_parallel import ddp

DEADLINE_S, REHEARSED_S = 20.0, 10.0
STUCK_RANK = 1
# Pieces fill a GPU; no CPU has room for one piece of the second size, so that its memory is not touched.
PIECE_BYTES = {"cuda": 1 << 30, "cpu": 1 << 50}


def waiting(model: Model, context: StrategyContext) -> ParallelModel:
    """DDP in which rank 1 never enters its third step."""
    parallel = ddp(model, context)
    if context.rank == STUCK_RANK:
        steps = iter(range(1 << 20))

        def hook(*_: object) -> None:
            if next(steps) == 2:
                threading.Event().wait()

        model.module.register_forward_pre_hook(hook)
    return parallel


@check("hang", f"hung after {DEADLINE_S:g} s, names rank {STUCK_RANK}; the next launch runs", 120)
def hang(target: Target) -> Outcome:
    stuck = case(target, strategy="benchmarks.gpu.faults:waiting", world_size=2)
    seen = launched(stuck, deadline_s=REHEARSED_S if target.is_cpu else DEADLINE_S)
    after = launched(case(target))
    text = f"{seen.status}: {seen.failure}; the next launch is {after.status}"
    return Outcome.judged(
        text[:1500],
        seen.status is Status.HUNG and f"rank {STUCK_RANK}" in str(seen.failure) and after.status is Status.OK,
    )


class Filling(nn.Module):
    """A layer whose forward allocates memory until there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pieces = []
        while True:
            pieces.append(torch.empty(PIECE_BYTES[x.device.type], dtype=torch.uint8, device=x.device))


def filling() -> Model:
    """A model that runs out of memory in its first step."""
    return Model(
        module=Filling(),
        loss=nn.functional.mse_loss,
        batch=lambda rows, generator: (torch.randn(rows, 8, generator=generator), torch.zeros(rows, 1)),
    )


@check("out-of-memory", "status oom; the next launch runs", 120)
def out_of_memory(target: Target) -> Outcome:
    seen = launched(case(target, model="benchmarks.gpu.faults:filling"))
    after = launched(case(target))
    text = f"{seen.status}: {str(seen.failure)[:300]}; the next launch is {after.status}"
    return Outcome.judged(text, seen.status is Status.OOM and after.status is Status.OK)
