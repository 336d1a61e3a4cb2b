"""Collectives in instrumented steps: every form of a call is recorded, and the contents of DDP's buckets."""

import itertools
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from guard import GUARD_S
from parabench.collectives.process_group import groups
from parabench.models.factory import build_model
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.probes.backend_calls import native_calls
from parabench.probes.communication import Call, Recorder
from parabench.probes.step_clock import Moments
from parabench.store.record import MIB, WAIT, Launch, Phase, Status
from parabench.workloads.verify import reference_of, verify
from ranks_helpers import Check, complaints_of_ranks, one_by_one
from real_launches import succeeded

FEW = Protocol(warmup=2, steps=2, instrumented=2)


CPU = torch.device("cpu")
NUMEL = 6
BYTES = 4 * NUMEL


def ones(numel: int = NUMEL) -> torch.Tensor:
    return torch.ones(numel)


def exchange(rank: int) -> None:
    """Exchange with the other rank in c10d's batch of sends and receives."""
    got = torch.empty(NUMEL)
    both = [dist.P2POp(dist.isend, ones(), 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    assert got.sum() == NUMEL


def gather_parts(rank: int) -> list[torch.Tensor] | None:
    """Return the buffers of rank 0, which gathers or scatters."""
    return [ones(), ones()] if rank == 0 else None


def world() -> Any:
    return dist.group.WORLD


# {form: (recorded operations, bytes of the whole buffer on 2 ranks, the call)}
WAYS: dict[str, tuple[str, int, Callable[[int], Any]]] = {
    "all_reduce": ("all_reduce", BYTES, lambda rank: dist.all_reduce(ones())),
    "all_reduce async": ("all_reduce", BYTES, lambda rank: dist.all_reduce(ones(), async_op=True).wait()),
    "functional all_reduce": ("all_reduce", BYTES, lambda rank: functional.all_reduce(ones(), "sum", world()) + 0),
    "all_gather": ("all_gather", 2 * BYTES, lambda rank: dist.all_gather([ones(), ones()], ones())),
    "all_gather_into_tensor": ("all_gather", 2 * BYTES, lambda rank: dist.all_gather_into_tensor(ones(12), ones())),
    "functional all_gather": (
        "all_gather", 2 * BYTES, lambda rank: functional.all_gather_tensor(ones(), 0, world()) + 0
    ),
    "reduce_scatter_tensor": (
        "reduce_scatter", 2 * BYTES, lambda rank: dist.reduce_scatter_tensor(ones(), ones(12))
    ),
    "functional reduce_scatter": (
        "reduce_scatter", 2 * BYTES, lambda rank: functional.reduce_scatter_tensor(ones(12), "sum", 0, world()) + 0
    ),
    "broadcast": ("broadcast", BYTES, lambda rank: dist.broadcast(ones(), 0)),
    "reduce": ("reduce", BYTES, lambda rank: dist.reduce(ones(), 0)),
    "gather": ("gather", 2 * BYTES, lambda rank: dist.gather(ones(), gather_parts(rank))),
    "scatter": ("scatter", 2 * BYTES, lambda rank: dist.scatter(ones(), gather_parts(rank))),
    "all_to_all": ("all_to_all", 2 * BYTES, lambda rank: dist.all_to_all_single(ones(12), ones(12))),
    "isend, irecv": ("send recv", BYTES, exchange),
    "barrier": ("barrier", 0, lambda rank: dist.barrier()),
}  # fmt: skip


def check_every_way(rank: int, size: int) -> Iterator[str]:
    """Check that each form of a call is recorded once and correctly, and only with an observer."""
    for name, (ops, total, call) in WAYS.items():
        recorder = Recorder(Moments(CPU), CPU, "native")
        call(rank)
        with native_calls(recorder, "cpu"):
            for group in groups:
                group.observer = recorder
            before = time.perf_counter()
            call(rank)
            after = time.perf_counter()
            for group in groups:
                group.observer = None
        call(rank)
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
    """Check that results of finished calls are freed while the calls are observed."""
    recorder = Recorder(Moments(CPU), CPU, "native")
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0
    with native_calls(recorder, "cpu"):
        for _ in range(60):
            given, summed = torch.ones(NUMEL), torch.ones(NUMEL)
            gathered = functional.all_gather_tensor(given, 0, dist.group.WORLD) + 0
            dist.all_reduce(summed, async_op=True).get_future().wait()
            # A tensor that C++ still holds, as a work does, keeps its Python object alive.
            alive = [*(ref for ref in alive if ref() is not None), weakref.ref(given), weakref.ref(summed)]
            del given, summed, gathered
            most = max(most, len(alive))
        recorder.settle()
    if len(recorder.calls) != 120:
        yield f"{len(recorder.calls)} calls seen"
    if most > 20:
        yield f"{most} of 120 tensors are alive at once"
    patience = time.monotonic() + GUARD_S
    while any(ref() is not None for ref in alive):  # gloo's thread drops what it finished a moment after its end
        if time.monotonic() > patience:
            yield "some tensors are never freed"
            break
        time.sleep(0.01)


def check_a_custom_group(rank: int, size: int) -> Iterator[str]:
    """Check that calls of a custom group are recorded with its ranks."""
    recorder = Recorder(Moments(CPU), CPU, "native")
    alone = dist.new_group([rank], use_local_synchronization=True)
    with native_calls(recorder, "cpu"):
        dist.all_reduce(ones(), group=alone)
    if [call.ranks for call in recorder.calls] != [(rank,)]:
        yield f"groups are {[call.ranks for call in recorder.calls]}"


@pytest.mark.parametrize(
    ("algorithm", "checks"),
    [
        ("native", (check_every_way, check_nothing_is_kept, check_a_custom_group)),
        ("ring", (check_every_way,)),
    ],
)
def test_observed_calls_are_complete_and_freed(algorithm: str, checks: tuple[Check, ...], tmp_path: Path) -> None:
    case = Case(algorithm=algorithm, world_size=2, device="cpu", backend="gloo")
    asked = [(check, ()) for check in checks]
    assert complaints_of_ranks(one_by_one, case, tmp_path, asked) == [[], []]


def seen(**fields: Any) -> Launch:
    return succeeded(Case(**({"world_size": 2, "device": "cpu", "backend": "gloo", "seq_len": 8} | fields)), FEW)


def dealt_to_buckets(sizes: Sequence[int], caps: list[int]) -> list[list[int]]:
    """Return the indices of the parameters in each bucket by torch's own rule, from their sizes in bytes."""
    tensors = [torch.empty(size // 4) for size in sizes]
    groups, _ = dist._compute_bucket_assignment_by_size(tensors, caps, [False] * len(tensors))  # type: ignore[attr-defined]
    return sorted(map(list, groups))


@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({"algorithm": "ring"}, 1),
        ({"find_unused_parameters": True}, 1),
        ({"grad_accumulation": 2, "no_sync": False}, 2),
        ({"strategy": "zero1", "grad_accumulation": 2}, 1),
    ],
    ids=lambda value: str(value),
)
def test_each_bucket_is_reduced_after_its_last_gradient(options: dict[str, Any], passes: int) -> None:
    launched = seen(bucket_mib=0.5, **options)
    buckets = launched.facts["buckets"]
    assert [bucket["bytes"] for bucket in buckets] == launched.facts["bucket_bytes"]
    assert launched.facts["bucket_cap_bytes"] == 2**19
    assert sum(launched.facts["bucket_bytes"]) == 4 * launched.facts["model"]["parameters"]
    assert "buckets_reason" not in launched.facts
    names = [name for bucket in buckets for name in bucket["parameters"]]
    assert len(names) == len(set(names)) > len(buckets) > 1
    reduced = defaultdict(list)
    for call in launched.collectives:
        if call.bucket is not None:
            reduced[call.rank, call.step].append(call)
    assert set(reduced) == {(rank, step) for rank in range(2) for step in (4, 5)}
    for calls in reduced.values():
        assert [call.bucket for call in calls] == list(range(len(buckets))) * passes
        for call in calls:
            assert call.bytes == buckets[call.bucket]["bytes"]
            assert call.ready_s <= call.made_s <= call.start_s
            assert call.duration_s > 0


def test_a_list_caps_each_bucket_in_the_order_of_reduction() -> None:
    caps = (0.25, 0.75, 1.25)
    launched = seen(bucket_mib=caps, static_graph=True)
    buckets = launched.facts["buckets"]
    sizes = {name: each.nbytes for name, each in build_model(launched.case).module.named_parameters()}
    order = [name for bucket in buckets for name in bucket["parameters"]]
    groups = dealt_to_buckets([sizes[name] for name in order], [int(cap * MIB) for cap in caps])
    assert [bucket["parameters"] for bucket in buckets] == [[order[at] for at in group] for group in groups]
    assert [bucket["bytes"] for bucket in buckets] == launched.facts["bucket_bytes"]
    assert len(buckets) >= len(caps)
    reference = seen(strategy="single", world_size=1)
    verify(launched, reference_of(reference))
    assert launched.status is Status.OK, launched.failure


def test_parts_of_instrumented_steps_share_one_clock() -> None:
    launched = seen(strategy="fsdp")
    assert {call.op for call in launched.collectives} == {"all_gather", "reduce_scatter"}
    assert {call.phase for call in launched.collectives} == {Phase.INSTRUMENT}
    steps = defaultdict(list)
    for span in launched.spans:
        steps[span.rank, span.step].append(span)
    assert set(steps) == {(rank, step) for rank in range(2) for step in (4, 5)}
    for spans in steps.values():
        parts = [span for span in spans if span.name != WAIT]
        assert [span.name for span in parts] == ["data", "forward", "backward", "optimizer"]
        assert all(one.end_s == next.start_s for one, next in itertools.pairwise(parts))
        waits = [span for span in spans if span.name == WAIT]
        assert waits
        assert all(parts[0].start_s <= span.start_s <= span.end_s <= parts[-1].end_s for span in waits)
    # Two ranks of one host: the same collectives are under way at the same time.
    first, second = (sorted(c.start_s for c in launched.collectives if c.rank == rank) for rank in range(2))
    assert first[-1] > second[0]
    assert second[-1] > first[0]
