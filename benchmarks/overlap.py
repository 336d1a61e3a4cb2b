"""Measure how far slow reductions of DDP overlap with backward, for growing batches.

    python -m benchmarks.overlap [ROUNDS]

Every all-reduce waits a fixed time and then runs as a ring. The next launch has the same step without communication,
and the difference is the exposed communication. As backward grows, it must shrink towards one wait: the last bucket is
full only when backward is over.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace

import numpy as np
from torch import Tensor

from benchmarks.launches import launched
from parabench.collectives.algorithm import Algorithm, Reduction
from parabench.collectives.ring import RING
from parabench.collectives.wire import Wire
from parabench.launch.processes import start_server
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.store.record import Launch, Phase

WAIT_S = 0.010
BATCHES = (4, 8, 16, 32, 64)
CASE = Case(strategy="ddp", world_size=2, bucket_mib=0.5, device="cpu", backend="gloo", data="synthetic")
PROTOCOL = Protocol(warmup=3, steps=20)
PERCENTILE = 10


def _all_reduce_slow(wire: Wire, flat: Tensor, reduction: Reduction) -> None:
    time.sleep(WAIT_S)
    RING.all_reduce(wire, flat, reduction)


def _nothing(wire: Wire, flat: Tensor, reduction: Reduction) -> None:
    pass


SLOW = replace(RING, name="slow", all_reduce=_all_reduce_slow)
# A step without communication, with wrong results.
ABSENT = replace(RING, name="absent", all_reduce=_nothing)


def launch(algorithm: Algorithm, batch: int) -> Launch:
    own = f"benchmarks.overlap:{algorithm.name.upper()}"
    return launched(CASE.replace(algorithm=own, global_batch=batch), PROTOCOL)


def slowest_s(done: Launch, metric: str) -> float:
    """Return the 10th percentile over the measured steps of the slowest rank's `metric`."""
    steps: dict[int | None, float] = {}
    for sample in done.samples:
        if sample.metric == metric and sample.phase is Phase.MEASURE and sample.value is not None:
            steps[sample.step] = max(steps.get(sample.step, 0.0), sample.value)
    return float(np.percentile([*steps.values()], PERCENTILE))


def main(rounds: int = 3) -> None:
    start_server()
    backward: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    exposed: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    buckets = 0
    for turn in range(rounds):
        for batch in BATCHES:
            order = (SLOW, ABSENT) if turn % 2 else (ABSENT, SLOW)
            done = {algorithm.name: launch(algorithm, batch) for algorithm in order}
            backward[batch].append(slowest_s(done["absent"], "backward_s"))
            exposed[batch].append(slowest_s(done["slow"], "step_s") - slowest_s(done["absent"], "step_s"))
            buckets = len(done["slow"].facts["bucket_bytes"])
    print(f"{buckets} buckets wait {1e3 * WAIT_S:g} ms each; medians of {rounds} rounds, milliseconds")
    print(f"{'batch':>6}{'backward':>10}{'waited':>8}{'exposed':>9}")
    for batch in BATCHES:
        figures = (statistics.median(backward[batch]), buckets * WAIT_S, statistics.median(exposed[batch]))
        print(f"{batch:>6}" + "".join(f"{1e3 * s:>{width}.1f}" for s, width in zip(figures, (10, 8, 9), strict=True)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
