"""What fails on a GPU is a recorded result that says what happened, and the next launch runs."""

from __future__ import annotations

import threading
from dataclasses import replace

import torch

from benchmarks.gpu.check import Check, Seen
from benchmarks.gpu.trainings import case, launched
from parabench import Model
from parabench.store.record import Status
from parabench.strategies.base import ParallelModel, StrategyContext
from parabench.strategies.data_parallel import ddp

DEADLINE_S = 30.0
# More than any device has: logits of 50304 classes for each of its tokens.
TOO_LARGE_BATCH = 1 << 16
STUCK_RANK = 1


def waiting(model: Model, context: StrategyContext) -> ParallelModel:
    """DDP in which rank 1 never enters its third step."""
    parallel = ddp(model, context)
    if context.rank == STUCK_RANK:
        steps = iter(range(1 << 20))

        def hook(*_: object) -> None:
            if next(steps) == 2:
                threading.Event().wait()

        model.module.register_forward_pre_hook(hook)
    return replace(parallel)


def hang(device: torch.device) -> Seen:
    stuck = case(device, strategy="benchmarks.gpu.faults:waiting", world_size=2)
    seen = launched(stuck, deadline_s=DEADLINE_S)
    after = launched(case(device))
    said = f"{seen.status}: {seen.failure}; the next launch is {after.status}"
    return Seen.judged(
        said[:1500],
        seen.status is Status.HUNG and f"rank {STUCK_RANK}" in str(seen.failure) and after.status is Status.OK,
    )


def out_of_memory(device: torch.device) -> Seen:
    seen = launched(case(device, model="gpt2", seq_len=1024, global_batch=TOO_LARGE_BATCH))
    after = launched(case(device))
    said = f"{seen.status}: {str(seen.failure)[:200]}; the next launch is {after.status}"
    return Seen.judged(said, seen.status is Status.OOM and after.status is Status.OK)


CHECKS = (
    Check(
        "hang", f"hung after {DEADLINE_S:g} s, names rank {STUCK_RANK}; the next launch runs", 150, hang, rehearsed=True
    ),
    Check("out-of-memory", "status oom; the next launch runs", 200, out_of_memory),
)
