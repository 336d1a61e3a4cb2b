"""Whole launches: one that loads the GPU, and every strategy and own algorithm with gloo on CUDA."""

from __future__ import annotations

import statistics

import torch

from benchmarks.gpu.check import Check, Seen
from benchmarks.gpu.trainings import all_verified, case, launched, times
from parabench.machine.peaks import peak_of
from parabench.plan.protocol import Protocol
from parabench.store.record import Status

LOADED = Protocol(warmup=50, steps=200, instrumented=0)
LAUNCHES = 2
BATCH, SEQUENCE = 8, 1024
# A plain training of 124M parameters, neither compiled nor with a fused loss.
LEAST_MFU, MOST_MFU = 0.15, 0.7

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
    Check("compiled", "the second compiled launch is shorter than the first; no slower steps", 500, compiled),
)
