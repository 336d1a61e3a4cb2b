"""Do the instruments disturb what is timed? `python -m benchmarks.instruments [PAIRS]`.

Pairs of launches, one with all instruments (the driver's sampler of host and devices, then instrumented steps) and one
with none, each case in turn and no side always first. Timed steps come before any probe is on in a rank, so their ratio
should be 1: it is printed as the geometric mean over pairs with its 95 % interval (t, on logs), which holds what the
noise of this machine leaves open. Beside it: how much slower the instrumented steps were than as many timed ones before
them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from unittest import mock

import numpy as np
from scipy import stats

from parabench.launch.launcher import launch
from parabench.launch.processes import start_server
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.store.record import Launch, Phase, Status

CASES = (
    Case(strategy="ddp", world_size=2, device="cpu", backend="gloo"),
    Case(strategy="ddp", algorithm="ring", world_size=2, device="cpu", backend="gloo"),
    Case(strategy="fsdp", world_size=2, device="cpu", backend="gloo"),
    Case(strategy="tp", world_size=2, device="cpu", backend="gloo"),
)
BARE = Protocol(warmup=5, steps=40, instrumented=0)
SEEN = Protocol(warmup=5, steps=40, instrumented=8)
DEADLINE_S = 120.0

# On shared cores others only ever make a step slower (`analysis.launch_number.QUANTILE`).
QUANTILE = 0.1


class NoSampler:
    """Stands where the driver's sampler would."""

    def __init__(self, *_: object) -> None: ...
    def __enter__(self) -> NoSampler:
        return self

    def __exit__(self, *_: object) -> None: ...
    def samples(self, kind: type[object]) -> list[object]:
        return []

    def facts(self) -> dict[str, object]:
        return {}


def launched(case: Case, protocol: Protocol) -> Launch:
    """One launch, with all instruments or with none."""
    if protocol.instrumented:
        seen = launch(LaunchSpec.of(case, protocol, deadline_s=DEADLINE_S))
    else:
        with mock.patch("parabench.launch.node.Sampler", NoSampler):
            seen = launch(LaunchSpec.of(case, protocol, deadline_s=DEADLINE_S))
    if seen.status is not Status.OK:
        raise RuntimeError(f"{case.label}: {seen.status}, {seen.failure}")
    return seen


def step_s(of: Launch, phase: Phase, last: int = 0) -> float:
    """A launch's one number: of all steps of a phase, or the `last` ones."""
    return float(np.quantile(of.step_times(phase)[-last:], QUANTILE))


def interval(ratios: Sequence[float]) -> str:
    """Geometric mean and its 95 % interval."""
    logs = np.log(ratios)
    half = stats.t.ppf(0.975, len(logs) - 1) * stats.sem(logs) if len(logs) > 1 else np.nan
    mean = logs.mean()
    return f"{np.exp(mean):.3f} ({np.exp(mean - half):.3f} to {np.exp(mean + half):.3f})"


def main(pairs: int) -> None:
    start_server()
    seen: dict[Case, list[tuple[float, float]]] = {case: [] for case in CASES}
    for pair in range(pairs):
        for case in CASES:
            sides = [BARE, SEEN] if pair % 2 else [SEEN, BARE]
            both = {side.instrumented: launched(case, side) for side in sides}
            bare, instrumented = both[BARE.instrumented], both[SEEN.instrumented]
            timed = step_s(instrumented, Phase.MEASURE) / step_s(bare, Phase.MEASURE)
            before = step_s(instrumented, Phase.MEASURE, last=SEEN.instrumented)
            seen[case].append((timed, step_s(instrumented, Phase.INSTRUMENT) / before))
    print(f"{pairs} pairs: timed steps with instruments behind them / with none; instrumented steps / timed ones")
    for case, ratios in seen.items():
        timed_ratios, slower = zip(*ratios, strict=True)
        print(f"{case.label:30} {interval(timed_ratios)}   {interval(slower)}")
    everything = [ratio for ratios in seen.values() for ratio, _ in ratios]
    print(f"{'all':30} {interval(everything)}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
