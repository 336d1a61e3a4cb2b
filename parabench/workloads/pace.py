"""Agree on the number of steps of a launch by time, before the first measured step.

Ranks with different numbers of steps would wait for each other forever. After each piece of the warm-up, every rank
publishes the time of the piece, and the longest one counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any

from parabench.plan.schedule import LEAST_MEASURED, MOST_STEPS, Counts, TrainingSchedule

# Into how many pieces a warm-up by time is cut at least: the last of them tells how long a step takes.
PIECES = 4

# Warm-up steps after the last wait for the device.
RUN_IN = 2


def warm_up(
    schedule: TrainingSchedule,
    take: Callable[[int], None],
    wait: Callable[[], None],
    agree: Callable[[float], float],
    now: Callable[[], float] = perf_counter,
) -> Counts:
    """Take the warm-up steps of a `schedule` by time. Return the numbers of steps that all ranks agreed on.

    `take` takes steps, `wait` waits for the device, and `agree` returns the largest value of all ranks. The first steps
    do not count, because they compile and connect.
    """

    def timed(steps: int) -> float:
        """Take steps, from an idle device to an idle device. Return the seconds of one step on the slowest rank."""
        wait()
        began = now()
        take(steps)
        wait()
        # A clock may not have moved; what follows divides by it.
        return max(agree(now() - began) / steps, 1e-9)

    least = schedule.counts()
    if schedule.warmup_s is None:
        last = least.warmup // 2
        run_in = min(RUN_IN, (least.warmup - last) // 2)
        take(least.warmup - last - run_in)
        step_s = timed(last)
        warmup = least.warmup
    else:
        run_in, piece = RUN_IN, least.warmup // 2
        warmup, spent = least.warmup, 0.0
        take(least.warmup - piece)
        step_s = timed(piece)
        while spent < schedule.warmup_s and warmup < MOST_STEPS - run_in:
            # The first steps say little about a step, so a piece grows slowly.
            piece = max(1, min(2 * piece, math.ceil(schedule.warmup_s / PIECES / step_s), MOST_STEPS - run_in - warmup))
            step_s = timed(piece)
            spent += step_s * piece
            warmup += piece
        warmup += run_in
    take(run_in)
    if schedule.measure_s is None:
        return Counts(warmup=warmup, measured=least.measured)
    measured = math.ceil(schedule.measure_s / step_s)
    return Counts(warmup=warmup, measured=min(max(measured, LEAST_MEASURED), MOST_STEPS))


class Agreement:
    """The largest value of the ranks of a group, through the store where they met. It calls no collective, which would
    be counted, and could make a communicator before training does."""

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        self._store, self._rank, self._others = store, rank, range(1, world_size)
        self._round = 0

    def __call__(self, value: float) -> float:
        """A collective call: every rank must make it."""
        if not self._others:
            return value
        key, self._round = f"parabench/pace/{self._round}", self._round + 1
        if self._rank:
            self._store.set(f"{key}/{self._rank}", repr(value))
            return float(self._store.get(key))
        largest = max([value, *(float(self._store.get(f"{key}/{rank}")) for rank in self._others)])
        self._store.set(key, repr(largest))
        return largest
