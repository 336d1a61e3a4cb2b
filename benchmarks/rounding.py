"""How far rounding takes a right training from one device's: what `parabench.workloads.verify.TOLERANCES` rests on.

Every strategy that must compute what one device computes, every model, 2 and 4 ranks, every precision that a CPU is
fast enough for: the largest relative difference of the first losses, of the later ones, and of the first gradient's
norm.

    python -m benchmarks.rounding [steps [precisions]]
"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

from parabench.errors import UsageError
from parabench.launch.launcher import launch
from parabench.launch.spec import LaunchSpec
from parabench.machine.machine import Machine, this_machine
from parabench.plan.case import Case
from parabench.plan.plan import make_plan
from parabench.plan.protocol import Protocol
from parabench.plan.suite import Suite, sweep
from parabench.store.record import Launch, Status
from parabench.strategies import STRATEGIES, Rule
from parabench.workloads.verify import EARLY, Reference, reference_of

DEADLINE_S = 600.0
MODELS = ("gpt-nano", "mlp", "mnist", "toy")


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    precisions = sys.argv[2].split(",") if len(sys.argv) > 2 else ["ieee", "bf16-mixed", "bf16-true"]
    machine = this_machine()
    worst: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for precision in precisions:
        for model in MODELS:
            compare(model, precision, Protocol(warmup=5, steps=steps), machine, worst)
    print()
    for what, seen in worst.items():
        print(f"{what}: at most {max(seen)[0]:.1e} ({max(seen)[1]}), median {sorted(seen)[len(seen) // 2][0]:.1e}")


def compare(
    model: str, precision: str, protocol: Protocol, machine: Machine, worst: dict[str, list[tuple[float, str]]]
) -> None:
    references: dict[str, Reference] = {}
    for case in cases(model, precision, protocol, machine):
        single = case.reference()
        if single.id not in references:
            references[single.id] = reference_of(launch(LaunchSpec.of(single, protocol, deadline_s=DEADLINE_S)))
        seen = launch(LaunchSpec.of(case, protocol, deadline_s=DEADLINE_S))
        if seen.status is not Status.OK:
            print(f"{model} {case.label}: {seen.status}: {seen.failure}")
            continue
        early, later, norm = differences(seen, references[single.id])
        print(f"{precision} {model} {case.label}: {early:.1e} {later:.1e} {norm:.1e}", flush=True)
        for what, value in ((f"first {EARLY} losses", early), ("later losses", later), ("norm", norm)):
            worst[f"{precision}, {what}"].append((value, f"{model} {case.label}"))


def cases(model: str, precision: str, protocol: Protocol, machine: Machine) -> list[Case]:
    """Every case of the model that makes sense."""
    found = []
    for strategy, entry in STRATEGIES.items():
        if entry.rule is not Rule.REFERENCE or entry.one_rank_only:
            continue
        for options in ({}, {"sequence_parallel": True}) if strategy == "tp" and "gpt" in model else ({},):
            for size in (2, 4):
                axes: dict[str, Any] = {
                    "strategy": strategy,
                    "model": model,
                    "precision": precision,
                    "world_size": size,
                }
                sweeps = (sweep(**axes, **options, seq_len=32),)
                suite = Suite(name="rounding", path=None, question="?", sweeps=sweeps, protocol=protocol)  # type: ignore[arg-type]
                try:
                    found += make_plan(suite, {}, protocol, machine, 0).cases
                except UsageError as error:
                    print(f"left out: {error}")
    return found


def differences(seen: Launch, reference: Reference) -> tuple[float, float, float]:
    mine = reference_of(seen)

    def apart(one: float | None, other: float | None) -> float:
        assert one is not None
        assert other is not None
        return abs(one - other) / max(abs(one), abs(other), 1e-300)

    losses = [apart(mine.loss[step], reference.loss[step]) for step in sorted(reference.loss)]
    return max(losses[:EARLY]), max(losses[EARLY:]), apart(mine.grad_norm[0], reference.grad_norm[0])


if __name__ == "__main__":
    main()
