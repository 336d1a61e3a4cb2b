"""Own algorithms' streams, and the whole NCCL path with several ranks on one GPU (NCCL 2.30 or newer)."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import torch

from benchmarks.gpu.check import Check, Seen
from benchmarks.gpu.trainings import all_verified, case
from parabench.collectives.stream_queue import StreamQueue
from parabench.launch.launcher import launch
from parabench.launch.spec import LaunchSpec
from parabench.machine.versions import SHARED_GPU, SHARED_GPU_SINCE
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.collective_protocol import ROUNDS, CollectiveProtocol
from parabench.store.record import MIB, Status

SLEEP_S = 0.05
CYCLES_PER_S = 1_500_000_000
CALLS = 1000
# (operation, algorithm, reduction)
OPERATIONS = (
    ("all_reduce", "native", "sum"),
    ("all_reduce", "native", "avg"),
    ("all_reduce", "ring", "sum"),
    ("reduce_scatter", "native", "avg"),
    ("reduce_scatter", "ring", "sum"),
    ("all_gather", "native", "none"),
    ("all_gather", "ring", "none"),
    ("broadcast", "native", "none"),
)
QUICK = CollectiveProtocol(warmup=2, iterations=5)


def stream_queue(device: torch.device) -> Seen:
    """A job of kernels beside the caller's stream: who waits, in which order, what a call costs, what fails."""
    torch.cuda.set_device(device)
    torch.cuda._sleep(1000)
    torch.cuda.synchronize(device)
    queue = StreamQueue()
    values = torch.zeros(1 << 20, device=device)

    def job() -> None:
        torch.cuda._sleep(int(SLEEP_S * CYCLES_PER_S))
        values.add_(1)

    queue.run(lambda: None, [values], "first").wait()
    torch.cuda.synchronize(device)
    begin = time.perf_counter()
    work = queue.run(job, [values], "sleep")
    run_s = time.perf_counter() - begin
    begin = time.perf_counter()
    work.wait()
    wait_s = time.perf_counter() - begin
    behind = values.clone()  # on the caller's stream, so behind the job
    right = bool((behind == 1).all())
    begin = time.perf_counter()
    for _ in range(CALLS):
        queue.run(lambda: None, [values], "empty").wait()
    torch.cuda.synchronize(device)
    call_s = (time.perf_counter() - begin) / CALLS
    failed = ""
    try:
        queue.run(_fail, [values], "failing").wait()
    except RuntimeError as error:
        failed = str(error)
    said = (
        f"run {run_s * 1e3:.2f} ms, wait {wait_s * 1e3:.2f} ms, then {'the job' if right else 'NOT the job'}'s result"
    )
    return Seen.judged(
        f"{said}; {call_s * 1e6:.0f} us a call; a failing job says {failed!r}",
        run_s < SLEEP_S / 2 and wait_s < SLEEP_S / 2 and right and "no such kernel" in failed,
        run_s=run_s,
        wait_s=wait_s,
        call_s=call_s,
    )


def _fail() -> None:
    raise ValueError("no such kernel")


def lacking() -> str | None:
    """Why this library cannot run several ranks on one GPU."""
    version = torch.cuda.nccl.version()
    if version < SHARED_GPU_SINCE:
        return (
            f"NCCL {'.'.join(map(str, version))} runs one rank a GPU; 2.30 runs several: put a newer libnccl.so.2 "
            "before torch's with LD_PRELOAD"
        )
    os.environ |= {SHARED_GPU: "1", "NCCL_MAX_CTAS": "4"}
    return None


def nccl_trainings(device: torch.device) -> Seen:
    if why := lacking():
        return Seen.not_run(why)
    names = ("ddp", "zero1", "fsdp", "zero2", "tp", "pp", "parameter_server")
    return all_verified([case(device, backend="nccl", strategy=name, world_size=2) for name in names])


def nccl_algorithms(device: torch.device) -> Seen:
    if why := lacking():
        return Seen.not_run(why)
    return all_verified(
        [
            case(device, backend="nccl", strategy=strategy, algorithm=algorithm, world_size=2)
            for strategy in ("ddp", "fsdp", "tp")
            for algorithm in ("ring", "tree", "halving_doubling")
        ]
    )


def nccl_collectives(device: torch.device) -> Seen:
    """Single operations with exact results, average too."""
    if why := lacking():
        return Seen.not_run(why)
    return _collectives(device, "nccl")


def gloo_collectives(device: torch.device) -> Seen:
    return _collectives(device, "gloo")


def _collectives(device: torch.device, backend: str) -> Seen:
    """Each operation in a launch of its own, then all of them in turns in one."""
    cases = [
        CollectiveCase(
            op=op,
            algorithm=algorithm,
            redop=redop,
            world_size=2,
            max_bytes=4 * MIB,
            device=device.type,
            backend=backend,
        )
        for op, algorithm, redop in OPERATIONS
    ]
    seen = [launch(LaunchSpec.of(each, QUICK, deadline_s=120.0)) for each in cases]
    together = LaunchSpec(
        kind="collectives", cases=tuple(cases), protocol=replace(QUICK, rounds=ROUNDS), deadline_s=120.0
    )
    shared = launch(together)
    bad = [
        f"{each.case.label} {each.case.redop}: {each.status}: {each.failure}"
        for each in (*seen, *(shared.arms or [shared]))
        if each.status is not Status.OK
    ]
    said = "; ".join(bad)[:1500] if bad else f"{len(cases)} operations, by themselves and in turns, every element right"
    return Seen.judged(said, not bad and len(shared.arms) == len(cases))


SHARED = "on one GPU shared by 2 ranks: "
CHECKS = (
    Check("stream-queue", "run and wait return before the job is over; order kept; failures raise", 60, stream_queue),
    Check(
        "gloo-collectives",
        "every operation right, alone and in turns, gloo on CUDA",
        200,
        gloo_collectives,
        rehearsed=True,
    ),
    Check("nccl-trainings", SHARED + "every strategy verified", 300, nccl_trainings),
    Check("nccl-algorithms", SHARED + "own algorithms verified", 300, nccl_algorithms),
    Check("nccl-collectives", SHARED + "every operation right, alone and in turns", 200, nccl_collectives),
)
