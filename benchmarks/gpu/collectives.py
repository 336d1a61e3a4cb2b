"""The streams of custom algorithms, and single collective operations among ranks that share a GPU."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import torch

from benchmarks.gpu.check import Check, Outcome, Run, Target, check
from benchmarks.gpu.launches import DEADLINE_S, all_verified, case, few
from parabench.analysis.collectives.bus import bus_factor
from parabench.collectives.async_queue import StreamQueue
from parabench.launch.launcher import launch
from parabench.launch.spec import LaunchSpec
from parabench.machine.versions import SHARED_GPU, SHARED_GPU_SINCE
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.collective_protocol import ROUNDS, CollectiveProtocol
from parabench.store.record import MIB, Launch, Status

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
# The limits of plausible bus bandwidths in bytes per second. Memory bounds ranks that share a GPU, and gloo.
BUS_LIMITS = {"gloo": (1e6, 1e12), "nccl": (1e7, 1e13)}
QUICK = CollectiveProtocol(warmup=2, iterations=5)
# What lets several ranks of NCCL 2.30 share a GPU.
SHARING = {SHARED_GPU: "1", "NCCL_MAX_CTAS": "4"}


@check("stream-queue", "run and wait return early; order kept; failures raise", 60, rehearsed=False, holds_gpu=True)
def stream_queue(target: Target) -> Outcome:
    """Run a job of kernels next to the caller's stream: its order, its waits, its cost per call, and its errors."""
    torch.cuda.set_device(target.device)
    queue = StreamQueue()
    values = torch.zeros(1 << 20, device=target.device)

    def job(cycles: int = int(SLEEP_S * CYCLES_PER_S)) -> None:
        torch.cuda._sleep(cycles)
        values.add_(1)

    # CUDA loads a kernel when it is first called, and may wait for the device then.
    queue.run(lambda: job(1000), [values], "first").wait()
    values.clone()
    torch.cuda.synchronize(target.device)
    begin = time.perf_counter()
    work = queue.run(job, [values], "sleep")
    run_s = time.perf_counter() - begin
    begin = time.perf_counter()
    work.wait()
    wait_s = time.perf_counter() - begin
    behind = values.clone()  # on the caller's stream, so after the job
    in_order = bool((behind == 2).all())
    begin = time.perf_counter()
    for _ in range(CALLS):
        queue.run(lambda: None, [values], "empty").wait()
    torch.cuda.synchronize(target.device)
    call_s = (time.perf_counter() - begin) / CALLS
    error = ""
    try:
        queue.run(_fail, [values], "failing").wait()
    except RuntimeError as raised:
        error = str(raised)
    text = f"run {run_s * 1e3:.2f} ms, wait {wait_s * 1e3:.2f} ms, then {'the' if in_order else 'NOT the'} job's result"
    return Outcome.judged(
        f"{text}; {call_s * 1e6:.0f} us per call; a failing job raises {error!r}",
        run_s < SLEEP_S / 2 and wait_s < SLEEP_S / 2 and in_order and "no such kernel" in error,
        run_s=run_s,
        wait_s=wait_s,
        call_s=call_s,
    )


def _fail() -> None:
    raise ValueError("no such kernel")


def shared(name: str, expected: str) -> Callable[[Run], Check]:
    """A check of two ranks that share a GPU over NCCL. Before NCCL 2.30 it is not run."""

    def made(run: Run) -> Check:
        def run_if_possible(target: Target) -> Outcome:
            version = torch.cuda.nccl.version()
            if version >= SHARED_GPU_SINCE:
                return run(target)
            older = f"NCCL {'.'.join(map(str, version))} runs one rank on a GPU; 2.30 runs several"
            return Outcome.not_run(f"{older}: load a newer libnccl.so.2 with LD_PRELOAD")

        options = {"rehearsed": False, "environment": SHARING}
        return Check(name, f"2 ranks share the GPU: {expected}", 300, run_if_possible, **options)

    return made


@shared("nccl-strategies", "every strategy verified")
def nccl_strategies(target: Target) -> Outcome:
    names = ("ddp", "zero1", "fsdp", "zero2", "tp", "pp", "parameter_server")
    return all_verified(target, [case(target, backend="nccl", strategy=name, world_size=2) for name in names])


@shared("nccl-algorithms", "custom algorithms verified")
def nccl_algorithms(target: Target) -> Outcome:
    names = itertools.product(("ddp", "fsdp", "tp"), ("ring", "tree", "halving_doubling"))
    return all_verified(
        target, [case(target, backend="nccl", strategy=name, algorithm=own, world_size=2) for name, own in names]
    )


@shared("nccl-collectives", "every operation right, alone and together; plausible bus bandwidth")
def nccl_collectives(target: Target) -> Outcome:
    return _collectives(target, "nccl")


@check("gloo-collectives", "every operation right, alone and together; plausible bus bandwidth", 200)
def gloo_collectives(target: Target) -> Outcome:
    return _collectives(target, "gloo")


def _collectives(target: Target, backend: str) -> Outcome:
    """Launch each operation alone, then all of them in one launch; check every element and the bus bandwidth."""
    common = {"world_size": 2, "max_bytes": 4 * MIB, "device": target.type, "backend": backend}
    chosen = few(target, OPERATIONS, 2)
    cases = [CollectiveCase(op=op, algorithm=algorithm, redop=redop, **common) for op, algorithm, redop in chosen]
    seen = [launch(LaunchSpec.of(each, QUICK, deadline_s=DEADLINE_S)) for each in cases]
    together = LaunchSpec(
        kind="collectives", cases=tuple(cases), protocol=QUICK.replace(rounds=ROUNDS), deadline_s=DEADLINE_S
    )
    whole = launch(together)
    everyone = [*seen, *(whole.arms or [whole])]
    bad = [f"{each.case.label}: {each.status}: {each.failure}" for each in everyone if each.status is not Status.OK]
    if bad or len(whole.arms) != len(cases):
        return Outcome.judged("; ".join(bad)[:1500] or f"{len(whole.arms)} of {len(cases)} arms", False)
    rates = {each.case.label: bus_rates(each) for each in everyone}
    known = [rate for found in rates.values() for rate in found]
    least, most = BUS_LIMITS[backend]
    odd = [label for label, found in rates.items() if not found or not all(least < rate < most for rate in found)]
    text = f"{len(cases)} operations, alone and together, every element right; bus "
    text += f"{min(known, default=0) / 1e9:.3g} to {max(known, default=0) / 1e9:.3g} GB/s at the largest size"
    return Outcome.judged(text + (f", implausible: {', '.join(odd)}" if odd else ""), not odd, bus_bytes_per_s=rates)


def bus_rates(seen: Launch) -> list[float]:
    """The bus bandwidth of each measured reading at the largest size, in bytes per second."""
    case = seen.case
    assert isinstance(case, CollectiveCase)
    size = case.sizes[-1]
    return [size / each * bus_factor(case.op, case.world_size) for each in seen.call_durations(size)]
