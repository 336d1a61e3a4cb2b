"""Measure the effect of rounding on correct training runs, from which `parabench.workloads.verify.TOLERANCES` comes.

    python -m benchmarks.rounding [STEPS [PRECISIONS]]

Launches every strategy that must compute the same as one device, with every model, 2 and 4 ranks, and every precision
that a CPU can train. Prints the largest relative difference of the first losses, the later losses, and the first
gradient norm.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any

from parabench.errors import UsageError
from parabench.launch.launcher import launch
from parabench.launch.spec import LaunchSpec
from parabench.machine.machine import this_machine
from parabench.plan.case import Case
from parabench.plan.plan import make_plan
from parabench.plan.protocol import Protocol
from parabench.plan.suite import Suite, sweep
from parabench.store.record import Launch, Status
from parabench.strategies import STRATEGIES, Rule
from parabench.workloads.verify import EARLY, Reference, reference_of

MODELS = ("gpt-nano", "mlp", "mnist", "toy")
WHAT = (f"first {EARLY} losses", "later losses", "norm")


def cases(model: str, precision: str, protocol: Protocol) -> Iterator[Case]:
    """Yield the possible cases of a model."""
    for strategy, entry in STRATEGIES.items():
        if entry.rule is not Rule.REFERENCE or entry.one_rank_only:
            continue
        axes = {"strategy": strategy, "model": model, "precision": precision, "seq_len": 32, "world_size": (2, 4)}
        sweeps = [sweep(**axes)]  # type: ignore[arg-type]
        if strategy == "tp" and "gpt" in model:
            sweeps.append(sweep(**axes, sequence_parallel=True))  # type: ignore[arg-type]
        suite = Suite(name="rounding", path=None, question="?", sweeps=tuple(sweeps), protocol=protocol)
        try:
            yield from make_plan(suite, {}, protocol, this_machine(), 0).cases
        except UsageError as error:
            print(f"left out: {error}")


@cache
def launched(case: Case, protocol: Protocol) -> Launch:
    return launch(LaunchSpec.of(case, protocol, deadline_s=600.0))


def differences(seen: Reference, expected: Reference) -> tuple[float, float, float]:
    def apart(one: Any, other: Any) -> float:
        return float(abs(one - other) / max(abs(one), abs(other), 1e-300))

    losses = [apart(seen.loss[step], expected.loss[step]) for step in sorted(expected.loss)]
    return max(losses[:EARLY]), max(losses[EARLY:]), apart(seen.grad_norm[0], expected.grad_norm[0])


def main(steps: int = 200, precisions: str = "ieee,bf16-mixed,bf16-true") -> None:
    protocol = Protocol(warmup=5, steps=steps)
    worst: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for precision in precisions.split(","):
        for model in MODELS:
            for case in cases(model, precision, protocol):
                seen, name = launched(case, protocol), f"{model} {case.label}"
                if seen.status is not Status.OK:
                    print(f"{name}: {seen.status}: {seen.failure}")
                    continue
                found = differences(reference_of(seen), reference_of(launched(case.reference(), protocol)))
                print(precision, name, *(f"{each:.1e}" for each in found), flush=True)
                for what, value in zip(WHAT, found, strict=True):
                    worst[f"{precision}, {what}"].append((value, name))
    for what, values in worst.items():
        largest, name = max(values)
        print(f"{what}: at most {largest:.1e} ({name}), median {sorted(values)[len(values) // 2][0]:.1e}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:])
