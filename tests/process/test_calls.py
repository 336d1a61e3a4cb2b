"""Collectives in instrumented steps: every form of a call is recorded, and the contents of DDP's buckets."""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from parabench.models.factory import build_model
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.probes.ddp import Buckets
from parabench.probes.step_clock import Moments
from parabench.store.record import MIB, WAIT, Launch, Phase, Status
from parabench.workloads.verify import reference_of, verify
from ranks_helpers import Check, complaints_of_ranks, one_by_one
from real_launches import succeeded
from watched_helpers import check_every_way, check_nothing_is_kept, check_the_results

FEW = Protocol(warmup=2, steps=2, instrumented=2)


@pytest.mark.parametrize(
    ("algorithm", "checks"),
    [
        ("native", (check_every_way, check_nothing_is_kept, check_the_results)),
        ("ring", (check_every_way,)),
        ("tree", (check_the_results,)),
    ],
)
def test_observed_calls_are_complete_freed_and_unchanged(
    algorithm: str, checks: tuple[Check, ...], tmp_path: Path
) -> None:
    case = Case(algorithm=algorithm, world_size=2, device="cpu", backend="gloo")
    asked = [(check, ()) for check in checks]
    assert complaints_of_ranks(one_by_one, case, tmp_path, asked) == [[], []]


def seen(protocol: Protocol = FEW, **fields: Any) -> Launch:
    case = Case(**({"world_size": 2, "device": "cpu", "backend": "gloo", "seq_len": 8} | fields))
    launched = succeeded(case, protocol)
    return launched


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


class UnusedDdp:
    """A fake of DDP with `find_unused_parameters`, which does not report the parameters in its buckets."""

    bucket_bytes_cap, bucket_bytes_cap_default = 8 * 2**20, True
    bucket_bytes_cap_list: tuple[int, ...] = ()

    def __init__(self, sizes: str) -> None:
        # Parameters of 2, 6 and 4 MiB in the order of the module. The first bucket has one of them and is full.
        self.module = torch.nn.ParameterDict(
            {name: torch.zeros(n * 2**18) for name, n in zip("abc", (2, 6, 4), strict=True)}
        )
        self._sizes = sizes

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        return {"bucket_sizes": self._sizes, "bucket_cap_bytes": self.bucket_bytes_cap}


@pytest.mark.parametrize(
    ("sizes", "parameters", "reason"),
    [
        (f"{10 * 2**20}, {2 * 2**20}", [["b", "c"], ["a"]], None),
        (f"{8 * 2**20}, {4 * 2**20}", [None, None], "DDP does not report the contents of its buckets"),
    ],
)
def test_unreported_ddp_buckets_follow_its_rule_or_are_unknown(
    sizes: str, parameters: list[list[str] | None], reason: str | None
) -> None:
    module: Any = UnusedDdp(sizes)
    facts = Buckets(module, Moments(torch.device("cpu"))).facts()
    assert [bucket["parameters"] for bucket in facts["buckets"]] == parameters
    assert [bucket["bytes"] for bucket in facts["buckets"]] == [int(size) for size in sizes.split(",")]
    assert facts.get("buckets_reason", "").startswith(reason or "")
    assert ("buckets_reason" in facts) is (reason is not None)


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


def test_launch_without_instruments_records_no_calls() -> None:
    launched = seen(Protocol(warmup=2, steps=2, instrumented=0))
    assert (launched.spans, launched.collectives) == ([], [])
    assert {sample.phase for sample in launched.samples} == {Phase.WARMUP, Phase.MEASURE}
