"""Whole launches: one that loads the GPU, every strategy and custom algorithm with gloo on CUDA, failures, and `ab`."""

from __future__ import annotations

import gzip
import io
import json
import statistics
import tempfile
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from torch import nn

from benchmarks.gpu.check import CheckFailed, Outcome, Target, check
from parabench import Model
from parabench.ab.driver import AbRequest, measure
from parabench.analysis.compare.comparison import ALPHA, TOLERANCE
from parabench.analysis.compare.gate import compare
from parabench.analysis.compare.sides import sides_of
from parabench.analysis.format import number_or_none
from parabench.launch.launcher import launch
from parabench.launch.spec import LaunchSpec
from parabench.machine.peaks import peak_of
from parabench.plan.case import Case
from parabench.plan.protocol import SETTLE, Protocol
from parabench.plan.schedule import TrainingSchedule
from parabench.session.request import Request
from parabench.store.record import FIRST_REPETITION, Launch, Phase, Status
from parabench.store.results import load
from parabench.store.store import STORE_NAME
from parabench.strategies.base import ParallelModel, StrategyContext
from parabench.strategies.data_parallel import ddp
from parabench.workloads.verify import Reference, reference_of, verify

T = TypeVar("T")

DEADLINE_S = 90.0
SHORT = Protocol(warmup=2, steps=8, instrumented=2)
# On the CPU a launch shows only that the check itself works.
REHEARSED = Protocol(warmup=2, steps=3, instrumented=0)
BY_TIME = Protocol(warmup_s=2.0, measure_s=3.0, instrumented=0)

# The largest batch of gpt2 with 1,024 tokens per sample that fits: with fewer, a fast GPU waits for its host.
BATCHES, SEQUENCE = (32, 16, 8, 4, 2), 1024
STATE_BYTES, SAMPLE_BYTES, MOST_FILLED = 2.5e9, 1.6e9, 0.8
# For 124M parameters, neither compiled nor with a fused loss.
LEAST_MFU, MOST_MFU = 0.15, 0.7
LAUNCHES, MOST_SPREAD = 3, 0.02

# A stream's kernels cannot take longer than the step. The profiler slows the host down, so the step without the
# profiler says how busy the device is.
MOST_OF_PROFILED, LEAST_OF_MEASURED = 1.02, 0.6

# Two processes without MPS get the GPU in time slices of milliseconds, which are as long as these steps.
MOST_APART = 0.1

STRATEGIES = ("ddp", "zero2", "tp", "fsdp", "zero1", "parameter_server", "local_only")
ALGORITHMS = ("ring", "tree", "halving_doubling", "two_level")


def case(target: Target, **fields: Any) -> Case:
    """A small case on the target, with data that needs no file."""
    defaults = {"device": target.type, "backend": "gloo", "data": "synthetic", "strategy": "single"}
    return Case(**(defaults | fields))


def large(target: Target) -> Case:
    """A case that keeps the GPU busy: gpt2 in bfloat16; a small model on the CPU."""
    if target.is_cpu:
        return case(target, seq_len=16)
    room = (target.memory_bytes or 0) * MOST_FILLED
    batch = next((each for each in BATCHES if STATE_BYTES + SAMPLE_BYTES * each < room), BATCHES[-1])
    return case(target, model="gpt2", precision="bf16-mixed", seq_len=SEQUENCE, global_batch=batch)


def few(target: Target, items: Sequence[T], count: int = 1) -> Sequence[T]:
    """Return the first items on the CPU, where the test suite covers the rest; else all."""
    return items[:count] if target.is_cpu else items


def launched(each: Case, protocol: Protocol = SHORT, deadline_s: float = DEADLINE_S, **more: Any) -> Launch:
    return launch(LaunchSpec.of(each, protocol, deadline_s=deadline_s, **more))


def succeeded(each: Case, protocol: Protocol = SHORT, **more: Any) -> Launch:
    """Launch a case. Raises CheckFailed if the launch fails."""
    seen = launched(each, protocol, **more)
    if seen.status is not Status.OK:
        raise CheckFailed(failure(seen))
    return seen


def failure(seen: Launch) -> str:
    return f"{seen.case.model} {seen.case.label}: {seen.status}: {seen.failure}"


def all_verified(target: Target, cases: Sequence[Case]) -> Outcome:
    """Launch each case and its single-device reference, and compare their losses."""
    protocol = REHEARSED if target.is_cpu else SHORT
    references: dict[str, Reference | None] = {}
    bad = []
    for each in cases:
        alone = each.reference()
        if alone.id not in references:
            seen = launched(alone, protocol)
            references[alone.id] = reference_of(seen) if seen.status is Status.OK else None
            if seen.status is not Status.OK:
                bad.append(failure(seen))
        seen = launched(each, protocol)
        verify(seen, references[alone.id])
        if seen.status is not Status.OK:
            bad.append(failure(seen))
    text = f"{len(cases)} cases ok" if not bad else f"{len(bad)} of {len(cases)} not ok: " + "; ".join(bad)
    return Outcome.judged(text[:1500], not bad, failures=bad)


def values(seen: Launch, metric: str = "step_s", phase: Phase = Phase.MEASURE) -> list[float]:
    """Return a metric of the steps of one phase, of all ranks."""
    return [s.value for s in seen.samples if s.metric == metric and s.phase == phase and s.value is not None]


@check(
    "loaded", f"MFU {LEAST_MFU:.0%} to {MOST_MFU:.0%}; launches after the first less than {MOST_SPREAD:.0%} apart", 300
)
def loaded(target: Target) -> Outcome:
    """Check the MFU of gpt2, and how much the step time differs between launches. The first one warms the GPU up."""
    each = large(target)
    medians, fact = [], dict[str, Any]()
    for _ in range(LAUNCHES):
        seen = succeeded(each, REHEARSED if target.is_cpu else BY_TIME)
        medians.append(statistics.median(values(seen)))
        fact = seen.facts.get("flops") or {}
    apart = max(medians[1:]) / min(medians[1:]) - 1
    best_s, flops = min(medians), fact.get("counted")
    if flops is None:
        raise CheckFailed(f"the operations of a step were not counted: {fact}")
    peak, source = peak_of(target.name, each.arithmetic.matmul)
    share = None if peak is None else flops / best_s / peak
    text = f"batch {each.global_batch}, {best_s * 1e3:.2f} ms per step, {flops / best_s / 1e12:.3g} TFLOP/s, MFU "
    text += f"unknown ({source})" if share is None else f"{share:.1%}"
    passed = apart < MOST_SPREAD and (share is None or LEAST_MFU < share < MOST_MFU)
    return Outcome.judged(
        f"{text}; launches {apart:.2%} apart", passed or target.is_cpu, medians_s=medians, mfu=share, source=source
    )


@check(
    "profiler",
    f"kernels of a stream take at most {MOST_OF_PROFILED:.0%} of the profiled step and at least "
    f"{LEAST_OF_MEASURED:.0%} of a measured step",
    150,
)
def profiled(target: Target) -> Outcome:
    """Compare the kernel times of torch.profiler's trace with the step clock's times."""
    protocol = (REHEARSED if target.is_cpu else BY_TIME).replace(profile=True)
    with tempfile.TemporaryDirectory() as name:
        traces = Path(name, "traces")
        seen = succeeded(large(target), protocol, traces=traces)
        trace = json.loads(gzip.decompress((traces / seen.facts["profile"][0]["file"]).read_bytes()))
    # The CPU has no kernels. One thread's operators are nested, so their sum is longer than the step.
    kinds = ("cpu_op",) if target.is_cpu else ("kernel", "gpu_memcpy", "gpu_memset")
    streams: dict[str, float] = defaultdict(float)
    for event in trace["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in kinds:
            streams[str(event.get("args", {}).get("stream", event.get("tid")))] += float(event["dur"]) / 1e6
    busiest_s = max(streams.values(), default=0.0)
    (profiled_s,) = values(seen, phase=Phase.PROFILE)
    measured_s = statistics.median(values(seen))
    of_profiled, of_measured = busiest_s / profiled_s, busiest_s / measured_s
    passed = of_profiled <= MOST_OF_PROFILED and of_measured >= LEAST_OF_MEASURED
    return Outcome.judged(
        f"kernels of the busiest of {len(streams)} streams: {busiest_s * 1e3:.2f} ms, {of_profiled:.1%} of the "
        f"profiled step, {of_measured:.1%} of a measured step",
        busiest_s > 0 if target.is_cpu else passed,
        streams_s=dict(streams),
        profiled_s=profiled_s,
        measured_s=measured_s,
    )


@check("strategies", "every strategy, gloo on 2 ranks of one GPU: verified", 300)
def strategies(target: Target) -> Outcome:
    fields = [{"strategy": name, "model": model} for model in ("gpt-nano", "mnist") for name in STRATEGIES]
    fields = [each for each in fields if each != {"strategy": "tp", "model": "mnist"}]
    return all_verified(target, [case(target, world_size=2, **each) for each in few(target, fields, 2)])


@check("algorithms", "custom algorithms under ddp, fsdp and tp, gloo on CUDA: verified", 300)
def algorithms(target: Target) -> Outcome:
    pairs = [(strategy, algorithm) for strategy in ("ddp", "fsdp", "tp") for algorithm in ALGORITHMS]
    cases = []
    for strategy, algorithm in few(target, pairs):
        nodes = {"ranks_per_node": 1} if algorithm == "two_level" else {}
        cases.append(case(target, strategy=strategy, algorithm=algorithm, world_size=2, **nodes))
    return all_verified(target, cases)


@check(
    "turns",
    f"6 cases in one launch, gloo on 2 ranks: verified; two copies less than {MOST_APART:.0%} apart (processes without "
    "MPS share a GPU by time slices)",
    200,
)
def in_turns(target: Target) -> Outcome:
    """Check cases that share a launch: the losses of each, and that two copies of one case are equally fast."""
    fields: list[dict[str, Any]] = [
        {"strategy": "single", "world_size": 1}, {"strategy": "ddp"}, {"strategy": "ddp", "bucket_mib": 1},
        {"strategy": "ddp", "algorithm": "ring"}, {"strategy": "fsdp"}, {"strategy": "zero1"},
    ]  # fmt: skip
    cases = [case(target, **{"world_size": 2} | each) for each in fields]
    cases.append(cases[1])
    rounds, timed = (2, 1) if target.is_cpu else (20, 10)
    turns = TrainingSchedule(rounds=rounds, settle=SETTLE, timed=(timed,) * len(cases), warmup=5)
    spec = LaunchSpec(kind="training", cases=tuple(cases), protocol=turns, deadline_s=2 * DEADLINE_S)
    seen = launch(spec)
    reference = reference_of(launched(cases[0].reference()))
    for arm in seen.arms:
        verify(arm, reference)
    bad = [failure(arm) for arm in seen.arms if arm.status is not Status.OK]
    if bad or len(seen.arms) < len(spec.cases):
        return Outcome.judged(f"{seen.status}: {seen.failure}; {'; '.join(bad)}", False)
    medians = [statistics.median(values(arm)) for arm in seen.arms]
    apart = abs(medians[1] / medians[-1] - 1)
    text = ", ".join(f"{each.label} {value * 1e3:.2f}" for each, value in zip(cases, medians, strict=False))
    return Outcome.judged(
        f"ms per step: {text}; two copies {apart:.2%} apart, {seen.wall_s:.0f} s",
        apart < MOST_APART or target.is_cpu,
        medians_s=medians,
    )


@check("compiled", "the second compiled launch is shorter than the first; steps are not slower", 300)
def compiled(target: Target) -> Outcome:
    """Check that a second launch finds the first one's compiled code, and that compiled steps are not slower."""
    on_gpu = {"model": "gpt2", "seq_len": 256, "global_batch": 4}
    fields: dict[str, Any] = {"model": "toy"} if target.is_cpu else on_gpu
    found = []
    for compile in (False, True, True):
        seen = succeeded(case(target, compile=compile, **fields), deadline_s=300.0)
        found.append((seen.wall_s, statistics.median(values(seen))))
    (_, plain_s), (first_s, _), (second_s, fast_s) = found
    text = f"launches of {first_s:.1f} and {second_s:.1f} s; steps {fast_s * 1e3:.2f} ms"
    return Outcome.judged(
        f"{text}, uncompiled {plain_s * 1e3:.2f} ms",
        (second_s < first_s and fast_s < plain_s * 1.05) or target.is_cpu,
        launches=found,
    )


HUNG_S, HUNG_REHEARSED_S = 20.0, 10.0
STUCK_RANK = 1
# Pieces fill a GPU; no CPU has room for one piece of the second size, so that its memory is not touched.
PIECE_BYTES = {"cuda": 1 << 30, "cpu": 1 << 50}


def waiting(model: Model, context: StrategyContext) -> ParallelModel:
    """DDP in which rank 1 never enters its third step."""
    parallel = ddp(model, context)
    if context.rank == STUCK_RANK:
        steps = iter(range(1 << 20))

        def hook(*_: object) -> None:
            if next(steps) == 2:
                threading.Event().wait()

        model.module.register_forward_pre_hook(hook)
    return parallel


@check("hang", f"hung after {HUNG_S:g} s, names rank {STUCK_RANK}; the next launch runs", 120)
def hang(target: Target) -> Outcome:
    stuck = case(target, strategy="benchmarks.gpu.launches:waiting", world_size=2)
    seen = launched(stuck, deadline_s=HUNG_REHEARSED_S if target.is_cpu else HUNG_S)
    after = launched(case(target))
    text = f"{seen.status}: {seen.failure}; the next launch is {after.status}"
    return Outcome.judged(
        text[:1500],
        seen.status is Status.HUNG and f"rank {STUCK_RANK}" in str(seen.failure) and after.status is Status.OK,
    )


class Filling(nn.Module):
    """A layer whose forward allocates memory until there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pieces = []
        while True:
            pieces.append(torch.empty(PIECE_BYTES[x.device.type], dtype=torch.uint8, device=x.device))


def filling() -> Model:
    """A model that runs out of memory in its first step."""
    return Model(
        module=Filling(),
        loss=nn.functional.mse_loss,
        batch=lambda rows, generator: (torch.randn(rows, 8, generator=generator), torch.zeros(rows, 1)),
    )


@check("out-of-memory", "status oom; the next launch runs", 120)
def out_of_memory(target: Target) -> Outcome:
    seen = launched(case(target, model="benchmarks.gpu.launches:filling"))
    after = launched(case(target))
    text = f"{seen.status}: {str(seen.failure)[:300]}; the next launch is {after.status}"
    return Outcome.judged(text, seen.status is Status.OOM and after.status is Status.OK)


SUITE = '''"""Are two equal variants equally fast?"""
from parabench import Protocol, sweep

PROTOCOL = Protocol(instrumented=0)
CASES = sweep(
    strategy="ddp", bucket_mib={caps}, world_size=2, backend="gloo", device="{device}", model="gpt-nano",
    data="synthetic", seq_len=16, global_batch=8,
)
'''


@check("ab", f"two equal variants are interleaved, gloo on 2 ranks each: less than {MOST_APART:.0%} apart", 300)
def equal_sides(target: Target) -> Outcome:
    """Check that the variants' launches were interleaved, that all of them ended well, and that they are as fast."""
    caps, launches, rounds = ((25,), 1, 2) if target.is_cpu else ((1, 25), 2, 20)
    log = io.StringIO()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "equal.py").write_text(SUITE.format(device=target.type, caps=caps))
        out = folder / "out"
        run = Request.of(
            suite=str(folder / "equal.py"), argv=["parabench", "ab"], out=out, launches=launches, rounds=rounds
        )
        tree = str(Path(__file__).parents[2])
        request = AbRequest(a=tree, b=tree, run=run, tolerance=TOLERANCE, alpha=ALPHA)
        pair = measure(request, Console(file=log, width=200))
        assert pair is not None
        results = load(out / STORE_NAME)
        comparison = compare(*sides_of(results, pair.sessions), TOLERANCE, ALPHA)
        counted = results.launch[results.launch["repetition"] >= FIRST_REPETITION]
        statuses = counted["status"].value_counts().to_dict()
        interleaved = int(counted["facts"].str.contains('"pair"', regex=False).sum())
    whole = [line for line in log.getvalue().splitlines() if "whole launches alternate" in line]
    cases = comparison.tables["cases"]
    ratios = {label: number_or_none(ratio) for label, ratio in zip(cases["label"], cases["ratio"], strict=True)}
    apart = max((abs(ratio - 1) for ratio in ratios.values() if ratio is not None), default=float("inf"))
    text = f"{interleaved} interleaved launches, {statuses}; variants {apart:.2%} apart {'; '.join(whole)}".rstrip()
    passed = set(statuses) == {"ok"} and interleaved == 2 * len(caps) * launches and not whole
    return Outcome.judged(text, passed and (apart < MOST_APART or target.is_cpu), ratios=ratios)
