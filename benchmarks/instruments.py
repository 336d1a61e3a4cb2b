"""Measure the effect of the instruments on the measured steps.

    python -m benchmarks.instruments [PAIRS]

A pair is one launch with all instruments (the driver's sampler of host and devices, then instrumented steps) and one
without, in alternating order. Measured steps come before any probe is active, so their ratio should be 1. Prints the
geometric means over pairs with their 95% intervals, and the ratio of the instrumented steps to the measured steps.
"""

from __future__ import annotations

import math
import sys
from unittest import mock

import numpy as np

from benchmarks.launch_cost import launched
from benchmarks.ratios import mean_ratio
from parabench.launch.processes import start_server
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.store.record import Launch, Phase

CASES = (
    Case(strategy="ddp", world_size=2, device="cpu", backend="gloo"),
    Case(strategy="ddp", algorithm="ring", world_size=2, device="cpu", backend="gloo"),
    Case(strategy="fsdp", world_size=2, device="cpu", backend="gloo"),
    Case(strategy="tp", world_size=2, device="cpu", backend="gloo"),
)
BARE = Protocol(warmup=5, steps=40, instrumented=0)
SEEN = Protocol(warmup=5, steps=40, instrumented=8)

# On shared cores, other processes only make a step slower (`analysis.launch_number.QUANTILE`).
QUANTILE = 0.1


class NoSampler:
    """A sampler that reads nothing."""

    def __init__(self, *_: object) -> None: ...
    def __enter__(self) -> NoSampler:
        return self

    def __exit__(self, *_: object) -> None: ...
    def samples(self, kind: type[object]) -> list[object]:
        return []

    def facts(self) -> dict[str, object]:
        return {}


def bare(case: Case) -> Launch:
    with mock.patch("parabench.launch.launcher.Sampler", NoSampler):
        return launched(case, BARE)


def step_s(of: Launch, phase: Phase, last: int = 0) -> float:
    """Return a launch's number: of all steps of a phase, or of its `last` ones."""
    return float(np.quantile(of.step_times(phase)[-last:], QUANTILE))


def logs(case: Case, bare_first: bool) -> tuple[float, float]:
    """Return log ratios of one pair: measured steps with instruments over without, instrumented over measured."""
    if bare_first:
        without, seen = bare(case), launched(case, SEEN)
    else:
        seen, without = launched(case, SEEN), bare(case)
    before = step_s(seen, Phase.MEASURE, last=SEEN.instrumented)
    timed = step_s(seen, Phase.MEASURE) / step_s(without, Phase.MEASURE)
    return math.log(timed), math.log(step_s(seen, Phase.INSTRUMENT) / before)


def main(pairs: int = 10) -> None:
    start_server()
    found = np.array([[logs(case, bool(pair % 2)) for case in CASES] for pair in range(pairs)])
    print(f"{pairs} pairs: measured steps with instruments / without; instrumented / measured steps")
    for case, (timed, slower) in zip(CASES, found.transpose(1, 2, 0), strict=True):
        print(f"{case.label:30} {mean_ratio(timed)}   {mean_ratio(slower)}")
    print(f"{'all':30} {mean_ratio(found[..., 0].ravel())}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
