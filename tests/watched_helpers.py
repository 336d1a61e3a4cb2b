"""Ranks that call collectives in every way while they are watched."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psutil
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from parabench import Model
from parabench.collectives.process_group import groups
from parabench.probes.backend_calls import native_calls
from parabench.probes.collective_calls import Call, Recorder
from parabench.probes.step_clock import Moments
from parabench.strategies.base import ParallelModel, StrategyContext
from parabench.strategies.data_parallel import ddp

CPU = torch.device("cpu")
NUMEL = 6
BYTES = 4 * NUMEL
LARGE = 2**21

Ways = dict[str, tuple[str, int, Callable[[int, int], Any]]]


def ones(numel: int = NUMEL) -> torch.Tensor:
    return torch.ones(numel)


def exchange(rank: int, size: int) -> None:
    """Everybody to the next, through c10d's own batch."""
    got = torch.empty(NUMEL)
    to, back = (rank + 1) % size, (rank - 1) % size
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, ones(), to), dist.P2POp(dist.irecv, got, back)]):
        work.wait()
    assert got.sum() == NUMEL


# {what is called: (what it is, bytes of the whole buffer on 2 ranks, the call)}.
WAYS: Ways = {
    "all_reduce": ("all_reduce", BYTES, lambda rank, size: dist.all_reduce(ones())),
    "all_reduce async": ("all_reduce", BYTES, lambda rank, size: dist.all_reduce(ones(), async_op=True).wait()),
    "functional all_reduce": (
        "all_reduce",
        BYTES,
        lambda rank, size: functional.all_reduce(ones(), "sum", dist.group.WORLD) + 0,
    ),
    "all_gather": ("all_gather", 2 * BYTES, lambda rank, size: dist.all_gather([ones() for _ in range(size)], ones())),
    "all_gather_into_tensor": (
        "all_gather",
        2 * BYTES,
        lambda rank, size: dist.all_gather_into_tensor(ones(NUMEL * size), ones()),
    ),
    "functional all_gather": (
        "all_gather",
        2 * BYTES,
        lambda rank, size: functional.all_gather_tensor(ones(), 0, dist.group.WORLD) + 0,
    ),
    "reduce_scatter_tensor": (
        "reduce_scatter",
        2 * BYTES,
        lambda rank, size: dist.reduce_scatter_tensor(ones(), ones(NUMEL * size)),
    ),
    "functional reduce_scatter": (
        "reduce_scatter",
        2 * BYTES,
        lambda rank, size: functional.reduce_scatter_tensor(ones(NUMEL * size), "sum", 0, dist.group.WORLD) + 0,
    ),
    "broadcast": ("broadcast", BYTES, lambda rank, size: dist.broadcast(ones(), 0)),
    "reduce": ("reduce", BYTES, lambda rank, size: dist.reduce(ones(), 0)),
    "gather": (
        "gather",
        2 * BYTES,
        lambda rank, size: dist.gather(ones(), [ones() for _ in range(size)] if rank == 0 else None),
    ),
    "scatter": (
        "scatter",
        2 * BYTES,
        lambda rank, size: dist.scatter(ones(), [ones() for _ in range(size)] if rank == 0 else None),
    ),
    "all_to_all": ("all_to_all", 2 * BYTES, lambda rank, size: dist.all_to_all_single(ones(12), ones(12))),
    "isend, irecv": ("send recv", BYTES, exchange),
    "barrier": ("barrier", 0, lambda rank, size: dist.barrier()),
}


def check_every_way(rank: int, size: int) -> Iterator[str]:
    """Each way is seen once, as what it is, and over when it returns; none is seen when nobody looks."""
    for name, (ops, total, call) in WAYS.items():
        recorder = Recorder(Moments(CPU), CPU, "native")
        call(rank, size)
        with native_calls(recorder, "cpu"):
            for group in groups:
                group.observer = recorder
            before = time.perf_counter()
            call(rank, size)
            after = time.perf_counter()
            for group in groups:
                group.observer = None
        call(rank, size)
        yield from (f"{name}: {said}" for said in wrong(recorder.calls, ops.split(), total, before, after))
        if not recorder.waits:
            yield f"{name}: nobody stood still"


def wrong(calls: list[Call], ops: list[str], total: int, before: float, after: float) -> Iterator[str]:
    if sorted(call.op for call in calls) != sorted(ops):
        yield f"seen as {[call.op for call in calls]}"
    for call in calls:
        if call.bytes != total:
            yield f"{call.bytes} bytes, not {total}"
        if call.ranks != (0, 1):
            yield f"of ranks {call.ranks}"
        if not before <= call.made <= after:
            yield "made outside of the call"
        if call.begin is None or call.begin < call.made:
            yield "began before it was made"
        ended = call.end is not None and call.begin <= call.end <= after
        if not ended and not (call.op in ("send", "recv") and call.end is None):
            yield f"ended {call.end}, made {call.made}, returned {after}"


def check_nothing_is_kept(rank: int, size: int) -> Iterator[str]:
    """What calls finished is freed while they are watched, not after."""
    recorder = Recorder(Moments(CPU), CPU, "native")
    process = psutil.Process()
    with native_calls(recorder, "cpu"):
        before = 0
        for turn in range(60):
            if turn == 20:  # what the allocator and gloo keep for good is there
                before = process.memory_info().rss
            functional.all_gather_tensor(torch.ones(LARGE), 0, dist.group.WORLD).sum()
            dist.all_reduce(torch.ones(LARGE), async_op=True).get_future().wait()
        recorder.settle()
        grown = process.memory_info().rss - before
    if len(recorder.calls) != 120:
        yield f"{len(recorder.calls)} calls seen"
    if grown > 10 * 4 * LARGE:
        yield f"{grown / 2**20:.0f} MiB are kept"


def check_the_results(rank: int, size: int) -> Iterator[str]:
    """Watching changes no result; a group of one's own is known by its ranks."""
    recorder = Recorder(Moments(CPU), CPU, "native")
    alone = dist.new_group([rank], use_local_synchronization=True)
    with native_calls(recorder, "cpu"):
        for group in groups:
            group.observer = recorder
        total = torch.arange(5.0) + rank
        dist.all_reduce(total)
        dist.all_reduce(torch.ones(3), group=alone)
        every = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, dist.group.WORLD) + 0
        part = functional.reduce_scatter_tensor(torch.arange(4.0), "sum", 0, dist.group.WORLD) + 0
    for group in groups:
        group.observer = None
    if not torch.equal(total, 2 * torch.arange(5.0) + 1):
        yield f"all_reduce gave {total}"
    if every.tolist() != [0.0, 0.0, 1.0, 1.0]:
        yield f"all_gather gave {every}"
    if part.tolist() != [4.0 * rank, 4.0 * rank + 2]:
        yield f"reduce_scatter gave {part}"
    if [call.ranks for call in recorder.calls][:2] != [(0, 1), (rank,)]:
        yield f"groups are {[call.ranks for call in recorder.calls]}"


def ddp_inside(model: Model, context: StrategyContext) -> ParallelModel:
    """A strategy of a user's own, whose DDP is not the outermost module."""
    parallel = ddp(model, context)
    return replace(parallel, module=torch.nn.Sequential(parallel.module))
