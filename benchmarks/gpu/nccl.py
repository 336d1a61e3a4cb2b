"""NCCL with a communicator of one rank, which every version of NCCL runs on one GPU."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu.check import Outcome, Target, check
from benchmarks.gpu.launches import SHORT, case, failure, few, launched, succeeded
from parabench import Model
from parabench.launch import hang
from parabench.probes.communication import enable_nccl_timing
from parabench.session.runner import EXPLAINING
from parabench.store.record import Status
from parabench.strategies.base import ParallelModel, StrategyContext
from parabench.strategies.data_parallel import ddp
from parabench.workloads.verify import reference_of, verify

STRATEGIES = ("ddp", "zero1", "fsdp", "zero2")
# With one rank FSDP2 has nothing to gather, so it makes no calls.
CALLING = ("ddp", "zero1")
REPLAYS = 3
# NCCL's watchdog looks at calls that are over from time to time.
RETIRED_S = 3.0
# Required entries of NCCL's log.
TOLD = ("version", "network", "channels")


@check(
    "nccl-one-rank",
    "strategies verified; version, network and channels in NCCL's log; timing, flight recorder and graph work",
    200,
)
def one_rank(target: Target) -> Outcome:
    """Train with each strategy on one rank; then read NCCL's log, timings, flight recorder and a captured graph."""
    backend = "gloo" if target.is_cpu else "nccl"
    bad, calls = [], {}
    reference = reference_of(succeeded(case(target)))
    for strategy in few(target, STRATEGIES, 2):
        seen = launched(case(target, strategy=strategy, world_size=1, backend=backend), SHORT)
        verify(seen, reference)
        if seen.status is not Status.OK:
            bad.append(failure(seen))
        durations = [call.duration_s for call in seen.collectives]
        calls[strategy] = len(durations)
        if strategy in CALLING and not durations:
            bad.append(f"{strategy}: no call of a collective was recorded")
        if any(each is None or not 0 <= each < math.inf for each in durations):
            bad.append(f"{strategy}: durations of calls are {durations}")
    by_hand = case(target, strategy="benchmarks.gpu.nccl:by_hand", world_size=1, backend=backend)
    seen = launched(by_hand, EXPLAINING)
    if seen.status is not Status.OK:
        return Outcome.judged("; ".join([*bad, failure(seen)])[:1500], False)
    found = seen.facts["by_hand"]
    bad += found["faults"]
    log = (seen.facts.get("nccl") or [{}])[0]
    if not target.is_cpu:
        bad += [f"NCCL's log has no {name}" for name in TOLD if not log.get(name)]
    text = f"calls {calls}; NCCL {', '.join(str(log.get(name)) for name in TOLD)}; "
    text += f"all_reduce {found['duration_s']} s; {found['calls']} calls in the flight recorder; graph {found['graph']}"
    return Outcome.judged(
        ("; ".join(bad) + "; " if bad else "")[:1500] + text, not bad, calls=calls, log=log, by_hand=found
    )


def by_hand(model: Model, context: StrategyContext) -> ParallelModel:
    """DDP that, after training, uses its process group by hand and reports what it found as a fact."""
    parallel = ddp(model, context)
    return replace(parallel, facts=lambda: parallel.facts() | {"by_hand": use_group(context.device)})


def use_group(device: torch.device) -> dict[str, Any]:
    """Capture an all_reduce in a CUDA graph, time one, and read the flight recorder: numbers, and what is wrong."""
    faults = []
    graph_value = duration_s = None
    if device.type == "cuda":
        graph_value = _captured(device)
        if graph_value != REPLAYS:
            faults.append(f"a graph of add and all_reduce, replayed {REPLAYS} times, gives {graph_value}")
        enable_nccl_timing(device)
        work = dist.all_reduce(torch.ones(1 << 20, device=device), async_op=True)
        work.wait()
        torch.cuda.synchronize(device)
        duration_s = work._get_duration() / 1e3
        if not 0 <= duration_s < 1:
            faults.append(f"an all_reduce of 4 MiB took {duration_s} s by NCCL's timing")
    groups = hang.flight()
    until = time.monotonic() + RETIRED_S
    while any(group["pending"] for group in groups.values()) and time.monotonic() < until:
        time.sleep(0.1)
        groups = hang.flight()
    calls = sum(group["last"] for group in groups.values())
    pending = [group["pending"] for group in groups.values() if group["pending"]]
    if not calls or pending:
        faults.append(f"the flight recorder has {calls} calls, and pending ones: {pending}")
    return {"faults": faults, "graph": graph_value, "duration_s": duration_s, "calls": calls}


def _captured(device: torch.device) -> float:
    value = torch.zeros(1, device=device)
    graph = torch.cuda.CUDAGraph()
    # NCCL's watchdog queries events in another thread meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        value.add_(1)
        dist.all_reduce(value)
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize(device)
    graph.reset()  # before its communicator is destroyed
    return float(value)
