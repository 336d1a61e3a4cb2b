"""Is the truth in the answer? DDP arms whose steps are longer by a known share take turns, in many short sessions.

    python -m benchmarks.known_delays [SESSIONS] [LAUNCHES] [ROUNDS]

The delay is real: after each optimizer step a rank keeps its core busy for that share of what the step took so far.
Printed: how often the set of the best held the arm without a delay; how far estimates were from the truth in the mean;
and in how many sessions two copies of one arm (`--self-check`) differed significantly at 95 %.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from benchmarks.carry_over import run
from parabench import Model
from parabench.analysis.noise_floor import noise_floor
from parabench.analysis.ranking.ranking import spots
from parabench.strategies.base import ParallelModel, StrategyContext, adamw
from parabench.strategies.data_parallel import ddp

DELAYS = {"none": 0.0, "one": 0.01, "two": 0.02, "five": 0.05}
SUITE = '''"""Which has no delay?"""
from parabench import sweep
CASES = sweep(
    strategy=tuple(f"benchmarks.known_delays:{name}" for name in ("none", "one", "two", "five")),
    world_size=2,
    seq_len=32,
)
'''


class Delay:
    """Begins to count where a step's forward pass begins, and waits where its optimizer has ended."""

    def __init__(self, share: float) -> None:
        self.share, self.began = share, 0.0

    def begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.began = time.perf_counter()

    def wait(self, *_: Any) -> None:
        now = time.perf_counter()
        until = now + self.share * (now - self.began)
        while time.perf_counter() < until:
            pass


def _delayed(share: float) -> Callable[[Model, StrategyContext], ParallelModel]:
    def strategy(model: Model, context: StrategyContext) -> ParallelModel:
        delay = Delay(share)
        parallel = ddp(model, context)
        parallel.module.register_forward_pre_hook(delay.begin)
        optimizer = adamw(parallel.module.parameters(), fused=context.case.fused)
        optimizer.register_step_post_hook(delay.wait)
        return replace(parallel, optimizer=optimizer)

    return strategy


none, one, two, five = map(_delayed, DELAYS.values())


def main(sessions: int = 20, launches: int = 4, rounds: int = 12) -> None:
    held, apart, twins = 0, 0, 0
    found: dict[str, list[float]] = {name: [] for name in DELAYS}
    for _ in range(sessions):
        with tempfile.TemporaryDirectory() as folder:
            options = ("--rounds", str(rounds), "--launches", str(launches), "--self-check", "--instrumented", "0")
            seen = run(SUITE, Path(folder) / "session", *options)
            (answer,) = seen.once(spots)
            assert answer.best is not None
            name_of = {each.case_id: each.strategy.rpartition(":")[2] for each in answer.candidates}
            near = {name_of[each.case_id] for each in (answer.best, *answer.tied)}
            held += "none" in near
            times = {name_of[each.case_id]: each.step_time_s for each in answer.candidates}
            for name in DELAYS:
                found[name].append(math.log(times[name] / times["none"]) - math.log1p(DELAYS[name]))
            floor = noise_floor(seen)
            if floor is not None and floor.half_width is not None:
                twins += 1
                apart += abs(floor.difference) > floor.half_width
    print(f"{sessions} sessions of {launches} launches of {rounds} rounds")
    print(f"the arm without a delay is in the set of the best in {held} of {sessions}")
    for name, errors in found.items():
        if DELAYS[name]:
            error, sem = float(np.mean(errors)), float(np.std(errors, ddof=1) / math.sqrt(sessions))
            print(f"a delay of {100 * DELAYS[name]:g} %: error in the mean {100 * error:+.2f} % (±{196 * sem:.2f})")
    print(f"two copies differ significantly in {apart} of {twins} sessions")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
