"""Whole launches: one that loads the GPU, and every strategy and own algorithm with gloo on CUDA."""

from __future__ import annotations

import statistics
from typing import Any

import torch

from benchmarks.gpu.check import Check, Seen
from benchmarks.gpu.trainings import all_verified, case, launched, times
from parabench.launch.launcher import launch
from parabench.launch.spec import LaunchSpec
from parabench.machine.peaks import peak_of
from parabench.plan.protocol import Protocol
from parabench.plan.turns import TurnsProtocol
from parabench.store.record import Status
from parabench.workloads.verify import reference_of, verify

LOADED = Protocol(warmup=50, steps=200, instrumented=0)
LAUNCHES = 2
BATCH, SEQUENCE = 8, 1024
# A plain training of 124M parameters, neither compiled nor with a fused loss.
LEAST_MFU, MOST_MFU = 0.15, 0.7

# Of medians of 200 steps in turns.
MOST_APART = 0.02

STRATEGIES = ("ddp", "zero1", "fsdp", "zero2", "tp", "parameter_server", "local_only")
ALGORITHMS = ("ring", "tree", "halving_doubling", "two_level")


def loaded(device: torch.device) -> Seen:
    """gpt2 in bfloat16: MFU, and how far two launches differ."""
    each = case(device, model="gpt2", precision="bf16-mixed", seq_len=SEQUENCE, global_batch=BATCH)
    medians, flops = [], None
    for _ in range(LAUNCHES):
        seen = launched(each, LOADED, 200.0)
        if seen.status is not Status.OK:
            return Seen.judged(f"{seen.status}: {seen.failure}", False)
        medians.append(statistics.median(times(seen)))
        flops = seen.facts.get("flops")
    apart = max(medians) / min(medians) - 1
    peak, source = peak_of(torch.cuda.get_device_name(device), each.arithmetic.matmul)
    mfu = None if peak is None or not flops else flops / min(medians) / peak
    said = f"{min(medians) * 1e3:.2f} ms per step, launches {apart:.2%} apart, MFU "
    return Seen.judged(
        said + (f"unknown: {source}" if mfu is None else f"{mfu:.0%}"),
        apart < 0.01 and (mfu is None or LEAST_MFU < mfu < MOST_MFU),
        medians_s=medians,
        mfu=mfu,
    )


def strategies(device: torch.device) -> Seen:
    models = ("gpt-nano", "mnist")
    fields = [{"strategy": name, "model": model} for model in models for name in STRATEGIES]
    fields = [each for each in fields if each != {"strategy": "tp", "model": "mnist"}]
    return all_verified([case(device, world_size=2, **each) for each in fields])


def algorithms(device: torch.device) -> Seen:
    cases = [
        case(
            device,
            strategy=strategy,
            algorithm=algorithm,
            world_size=2,
            ranks_per_node=1 if algorithm == "two_level" else None,
        )
        for strategy in ("ddp", "fsdp", "tp")
        for algorithm in ALGORITHMS
    ]
    return all_verified(cases)


def in_turns(device: torch.device) -> Seen:
    """Cases that share a launch: each as one device trains it, and two copies of one as fast as each other."""
    fields: list[dict[str, Any]] = [
        {"strategy": "single", "world_size": 1}, {"strategy": "ddp"}, {"strategy": "ddp", "bucket_mib": 1},
        {"strategy": "ddp", "algorithm": "ring"}, {"strategy": "fsdp"}, {"strategy": "zero1"},
    ]  # fmt: skip
    cases = [case(device, **{"world_size": 2} | each) for each in fields]
    protocol = TurnsProtocol(rounds=20, timed=10, warmup=5)
    spec = LaunchSpec(kind="turns", cases=(*cases, cases[1]), protocol=protocol, deadline_s=240.0)
    seen = launch(spec)
    alone = launched(cases[0].reference())
    for arm in seen.arms:
        verify(arm, reference_of(alone))
    bad = [f"{arm.case.label}: {arm.status}: {arm.failure}" for arm in seen.arms if arm.status is not Status.OK]
    if bad or len(seen.arms) < len(spec.cases):
        return Seen.judged(f"{seen.status}: {seen.failure}; {'; '.join(bad)}", False)
    medians = [statistics.median(times(arm)) for arm in seen.arms]
    apart = abs(medians[1] / medians[-1] - 1)
    said = ", ".join(f"{each.label} {value * 1e3:.2f}" for each, value in zip(cases, medians, strict=False))
    return Seen.judged(
        f"ms per step: {said}; two copies {apart:.2%} apart, {seen.wall_s:.0f} s",
        apart < MOST_APART or device.type == "cpu",
        medians_s=medians,
    )


def compiled(device: torch.device) -> Seen:
    """The second launch finds what the first compiled; steps are faster than uncompiled ones."""
    found = {}
    for compile in (False, True, True):
        seen = launched(case(device, model="gpt2", seq_len=256, compile=compile, global_batch=4), deadline_s=300.0)
        if seen.status is not Status.OK:
            return Seen.judged(f"compile={compile}: {seen.status}: {seen.failure}", False)
        found[f"compile {compile}{' again' if compile and 'compile True' in found else ''}"] = (
            seen.wall_s,
            statistics.median(times(seen)),
        )
    (_, plain_s), (first_s, _), (second_s, fast_s) = found.values()
    return Seen.judged(
        f"launches of {first_s:.0f}, {second_s:.0f} s; steps {fast_s * 1e3:.2f} ms, uncompiled {plain_s * 1e3:.2f} ms",
        second_s < first_s and fast_s < plain_s * 1.05,
        launches=found,
    )


CHECKS = (
    Check("loaded", f"MFU {LEAST_MFU:.0%} to {MOST_MFU:.0%}; two launches less than 1 % apart", 400, loaded),
    Check("strategies", "every strategy, gloo on 2 ranks of one GPU: verified", 400, strategies, rehearsed=True),
    Check(
        "algorithms", "own algorithms under ddp, fsdp and tp, gloo on CUDA: verified", 400, algorithms, rehearsed=True
    ),
    Check(
        "turns",
        f"6 cases that share a launch, gloo on 2 ranks: verified; two copies less than {MOST_APART:.0%} apart",
        300,
        in_turns,
        rehearsed=True,
    ),
    Check("compiled", "the second compiled launch is shorter than the first; no slower steps", 500, compiled),
)
