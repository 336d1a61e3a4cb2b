"""Stores with a known truth, written through the real Store."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from parabench.plan.case import Case
from parabench.store.record import MIB, CollectiveSample, DeviceSample, Failure, Finding, Launch, Sample, Span, Status
from parabench.store.results import Results, load
from parabench.store.store import Store, utc_now
from parabench.strategies import STRATEGIES

ENVIRONMENT: dict[str, Any] = {
    "host": "lab",
    "os": "Linux 6.1",
    "python": "3.11.2",
    "cpu": "Some CPU",
    "cores": 8,
    "memory_bytes": 16 * 2**30,
    "gpus": [],
    "nvml": {"available": False, "reason": "no NVIDIA driver"},
    "versions": {"torch": "2.13.0", "numpy": "2.4.6"},
    "env": {"OMP_NUM_THREADS": "1"},
    "container": {"kind": None},
}


def case(**fields: Any) -> Case:
    return Case(**({"device": "cpu", "world_size": 2} | fields))


PARTS = {"data_s": 0.05, "forward_s": 0.3, "backward_s": 0.55, "optimizer_s": 0.1}
IN_TURNS = {"data_s": 0.05, "forward_backward_s": 0.85, "optimizer_s": 0.1}


def samples(
    steps: Iterable[float],
    world_size: int = 1,
    *,
    peak_bytes: float | None = 100 * MIB,
    device: str = "cpu",
    in_turns: bool = False,
) -> list[Sample]:
    """Measured steps of those lengths (s); rank 0 is 1 % the slowest, warm-up is ten times as long."""
    peak = "peak_rss_bytes" if device == "cpu" else "peak_allocated_bytes"
    rows = []
    steps = list(steps)
    for rank in range(world_size):
        share = 1.0 if rank == 0 else 1 / 1.01
        for step, (phase, seconds) in enumerate([("warmup", 10 * steps[0])] * 2 + [("measure", s) for s in steps]):
            rows.append(Sample(rank, step, phase, "step_s", seconds * share))
            for part, of in (IN_TURNS if in_turns else PARTS).items():
                rows.append(Sample(rank, step, phase, part, seconds * share * of))
            rows.append(Sample(rank, step, phase, "loss", 3.0))
        rows.append(Sample(rank, None, "measure", peak, None if peak_bytes is None else peak_bytes + rank * MIB))
    return rows


def launch(
    of: Case,
    step_s: float | Iterable[float] = 0.04,
    *,
    block: int = 0,
    status: Status = Status.OK,
    failure: Failure | None = None,
    steps: int = 20,
    **more: Any,
) -> Launch:
    """One launch; a failed one has no samples."""
    lengths = [step_s] * steps if isinstance(step_s, float) else list(step_s)
    peak = {"peak_bytes": more.pop("peak_bytes")} if "peak_bytes" in more else {}
    return Launch(
        case=of,
        status=status,
        started_utc=utc_now(),
        wall_s=1.5,
        block=block,
        failure=failure,
        samples=samples(lengths, of.world_size, device=of.device, in_turns=of.batch_parts > of.data_ranks, **peak)
        if status == Status.OK
        else [],
        **more,
    )


def tell(of: Launch, facts: dict[str, Any] | None = None, **numbers: float | Iterable[float]) -> Launch:
    """The launch, with facts and with numbers of its ranks: one for all, or one each."""
    of.facts |= facts or {}
    for metric, value in numbers.items():
        each = [value] * of.case.world_size if isinstance(value, (int, float)) else list(value)
        of.samples += [Sample(rank, None, "measure", metric, one) for rank, one in enumerate(each)]
    return of


# An instrumented step of 10 s: what each part of it takes.
LONG_PARTS = {"data": 1.0, "forward": 2.0, "backward": 6.0, "optimizer": 1.0}


def instrumented(
    of: Launch,
    step: int,
    rank: int = 0,
    *,
    begin: float = 0.0,
    parts: dict[str, float] | None = None,
    waits: Iterable[tuple[float, float]] = (),
    calls: Iterable[dict[str, Any]] = (),
) -> Launch:
    """The launch, with an instrumented step of one rank. Moments count from the step's `begin`; a call is what of a
    CollectiveSample is no all_reduce of 4 MB in one second between ranks 0 and 1."""
    at = begin
    for name, seconds in (LONG_PARTS if parts is None else parts).items():
        of.spans.append(Span(rank, step, name, at, at + seconds))
        at += seconds
    of.samples.append(Sample(rank, step, "instrument", "step_s", at - begin))
    of.spans += [Span(rank, step, "wait", begin + start, begin + end) for start, end in waits]
    for told in calls:
        seq = sum(call.rank == rank for call in of.collectives)
        plain = {"op": "all_reduce", "algorithm": "native", "group_size": 2, "bytes": 4_000_000, "duration_s": 1.0}
        whose = {"phase": "instrument", "in_place": None, "n_wrong": None, "ranks": "0-1", "dtype": "float32"}
        call = {"rank": rank, "step": step, "seq": seq, **plain, **whose, **told}
        moments = {"made_s": call["start_s"]} | {name: call[name] for name in MOMENTS if call.get(name) is not None}
        of.collectives.append(CollectiveSample(**call | {name: begin + second for name, second in moments.items()}))
    return of


MOMENTS = ("start_s", "made_s", "ready_s")


def write(
    path: Path,
    launches: Iterable[Launch],
    *,
    label: str | None = "fake",
    question: str = "Which bucket size is fastest here?",
    environment: dict[str, Any] | None = None,
    argv: list[str] | None = None,
    skipped: Iterable[tuple[Case, str]] = (),
    findings: Iterable[Finding] = (),
    finished: bool = True,
    interleaved: dict[str, str] | None = None,
) -> Results:
    """Append a session to the store at `path` and load it."""
    launches = list(launches)
    cases = {launch.case.id: launch.case for launch in launches}
    with Store.open_or_create(path) as store:
        session = store.begin_session(
            label=label,
            suite="quick",
            argv=argv or ["parabench", "run", "quick"],
            seed=1,
            environment=ENVIRONMENT if environment is None else environment,
            question=question,
            plan={
                "cases": [one.to_dict() for one in cases.values()],
                "skipped": [{"case": one.to_dict(), "reason": reason} for one, reason in skipped],
                "protocol": {"warmup": 5, "steps": 20, "launches": 3, "deadline_s": None},
            },
            interleaved=interleaved,
        )
        for one in launches:
            store.append(session, one)
        for finding in findings:
            store.add_finding(session, finding)
        if finished:
            store.finish_session(session)
    return load(path)


def sweep(
    cases: Iterable[Case],
    truth: Callable[[Case], float],
    *,
    blocks: int = 3,
    noise: float = 0.0,
    drift: float = 0.0,
    seed: int = 0,
) -> list[Launch]:
    """Every case once per block: log-normal noise per launch, not per step; `drift` per block is common."""
    random = np.random.default_rng(seed)
    return [
        launch(one, float(truth(one) * np.exp(noise * random.standard_normal() + drift * block)), block=block)
        for block, one in itertools.product(range(blocks), list(cases))
    ]


def rich(path: Path, *, gpu: bool = False) -> Results:
    """Strategies, algorithms, buckets and world sizes, failures and skips: what a real sweep looks like."""
    device = "cuda" if gpu else "cpu"
    cases = [case(strategy="single", world_size=1, device=device)]
    for world_size, algorithm, bucket in itertools.product((2, 4), ("native", "ring", "tree"), (1.0, 4.0, 25.0, None)):
        cases.append(case(algorithm=algorithm, bucket_mib=bucket, world_size=world_size, device=device))
    cases += [case(strategy="fsdp", world_size=n, device=device) for n in (2, 4)]

    def truth(one: Case) -> float:
        seconds = 0.080 / one.world_size + 0.004 * (one.world_size > 1)
        seconds *= {"native": 1.0, "ring": 0.92, "tree": 1.10}[one.algorithm]
        seconds *= 1.25 if one.strategy == "fsdp" else 1.0
        return seconds * {1.0: 1.15, 4.0: 1.03, 25.0: 1.0, None: 1.06}[one.bucket_mib]

    launches = [launch(cases[0], 0.08, block=-1), *sweep(cases, truth, noise=0.01)]
    for one in launches:
        one.facts["bucket_bytes"] = [MIB, 25 * MIB]
        if gpu:
            one.device_samples += [DeviceSample(0, 0.1 * i, "used_bytes", 1e9 + 1e7 * i) for i in range(5)]
    killed = case(strategy="fsdp", algorithm="ring", world_size=4, device=device)
    text = 'Traceback (most recent call last):\n  File "worker.py", line 3, in step\nRuntimeError: peer closed'
    launches += [
        launch(
            killed,
            block=block,
            status=Status.CRASHED,
            failure=Failure("killed by SIGKILL", rank=2, signal="SIGKILL", traceback=text),
        )
        for block in range(3)
    ]
    return write(
        path,
        launches,
        label="nightly",
        question="Which algorithm and bucket size is fastest for DDP here?",
        environment=ENVIRONMENT | ({"gpus": [{"name": "NVIDIA H200", "memory_bytes": 150 * 10**9}] * 4} if gpu else {}),
        skipped=[(case(strategy="tp", world_size=8), "world_size 8 needs 8 cores; this machine has 4")],
        argv=["parabench", "run", "quick", "--label", "nightly", "--set", "bucket_mib=1,4,25,default"],
        findings=[Finding("power", "The CPU governor is powersave.", "Set it to performance.")],
    )


# A model of 12 MiB, of which tensor parallel splits 8, and FSDP's root unit has 2.
SIZES = {"model": {"bytes": 12 * MIB, "tensor_parallel_bytes": 8 * MIB}, "unit_bytes": [5 * MIB, 5 * MIB, 2 * MIB]}


def family(path: Path) -> Results:
    """One launch of every strategy in three blocks, with what only some of them tell."""
    cases = [case(strategy="single", world_size=1)]
    for size in (2, 4):
        plain = ("ddp", "zero1", "zero2", "fsdp", "tp", "layer_split", "parameter_server", "parameter_server_async")
        cases += [case(strategy=name, world_size=size) for name in (*plain, "local_only")]
        cases += [case(strategy="pp", schedule=name, microbatches=4, world_size=size) for name in ("gpipe", "1f1b")]
        cases += [case(strategy="tp", sequence_parallel=True, world_size=size)]
    cases += [case(strategy=name, tp_size=2, sequence_parallel=True, world_size=4) for name in ("tp_ddp", "tp_fsdp")]
    cases += [case(strategy="hsdp", ranks_per_node=2, world_size=4)]
    cases += [case(gradient_as_bucket_view=True, static_graph=True, grad_accumulation=2, bucket_mib=2.5, world_size=4)]
    slowness = {each: 1 + 0.03 * i for i, each in enumerate(STRATEGIES)} | {"local_only": 0.8}

    launches = sweep(cases, lambda one: 0.08 * slowness[one.strategy] / one.world_size, noise=0.01)
    for one in launches:
        share = 12 * MIB / (1 if one.case.strategy in ("ddp", "local_only") else one.case.world_size)
        tell(one, SIZES, parameter_bytes=share, gradient_bytes=share, optimizer_bytes=2 * share)
        if one.case.strategy == "parameter_server_async":
            tell(one, staleness_mean=1.5, staleness_max=[2.0] * (one.case.world_size - 1) + [4.0])
        if one.case.strategy in ("pp", "layer_split"):
            facts = {"stages": one.case.world_size, "microbatches": one.case.microbatches or 1, "bubble": 0.2}
            tell(one, {"pipeline": facts | {"schedule": one.case.schedule}}, stage_busy_share=0.7)
    return write(path, [launch(cases[0], 0.08, block=-1), *launches], label="family", question="Which strategy?")


def step(of, number=25, *, late=0.0, longer=0.0, name="all_reduce", **told):
    """An instrumented step of 10 s on every rank, rank 1 `late` after rank 0: two calls that overlap each other,
    waited for from 7 to 9, of which one is hidden up to then."""
    at = number * 100.0
    for rank in range(of.case.world_size):
        calls = [
            {"op": name, "start_s": 4.0, "duration_s": 3.0, "bytes": 2 * MIB, "made_s": 3.5} | told,
            {"op": name, "start_s": 5.0, "duration_s": 3.5, "bytes": MIB} | told,
        ]
        if of.case.strategy == "ddp":
            calls = [call | {"bucket": i, "ready_s": 3.25 + i} for i, call in enumerate(calls)]
        group = {"group_size": of.case.world_size, "algorithm": of.case.algorithm}
        begin, parts = at + late * rank, LONG_PARTS | {"backward": 6.0 + longer}
        instrumented(
            of, number, rank, begin=begin, parts=parts, waits=[(7.0, 9.0)], calls=[group | call for call in calls]
        )
    return of


OOM = {"status": Status.OOM, "failure": Failure("out of memory", rank=1)}
