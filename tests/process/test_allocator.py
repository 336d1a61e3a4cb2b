"""Memory after each part of an instrumented step: a fake of torch's allocator, and the real resident set."""

from typing import Any

import pytest
import torch

from parabench.metrics import METRICS
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.probes.memory import MemoryClock
from parabench.store.record import Phase
from real_launches import succeeded
from trained_helpers import Marks

CUDA = torch.device("cuda", 0)


class FakeAllocator:
    """Counts the bytes given to `hold` as torch's allocator does; it never returns reserved memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.peak = self.reserved = self.peak_reserved = 0
        monkeypatch.setattr(torch.cuda.memory, "memory_stats_as_nested_dict", self.stats)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)

    def hold(self, size: int) -> None:
        self.now += size
        self.peak, self.reserved = max(self.peak, self.now), max(self.reserved, self.now)
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def stats(self, device: torch.device) -> dict[str, Any]:
        assert device == CUDA
        return {
            "allocated_bytes": {"all": {"current": self.now, "peak": self.peak}},
            "reserved_bytes": {"all": {"current": self.reserved, "peak": self.peak_reserved}},
            "inactive_split_bytes": {"all": {"current": (self.reserved - self.now) // 2, "peak": 0}},
        }

    def reset(self, device: torch.device) -> None:
        self.peak, self.peak_reserved = self.now, self.reserved


def readings(clock: MemoryClock, step: int) -> dict[str, float]:
    return {name: value for of, name, value in clock.readings if of == step}


def test_each_part_has_a_peak_and_the_idle_memory_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator, marks = FakeAllocator(monkeypatch), Marks()
    clock = MemoryClock(marks, CUDA, 7)
    allocator.hold(500)
    allocator.hold(-400)  # the peak of building was 500, which is not part of a step
    for grows in (40, 30):  # kept by forward for backward in each step
        clock.mark()
        clock.mark()
        allocator.hold(grows)
        clock.mark()
        allocator.hold(60)
        allocator.hold(-grows - 60)
        clock.mark()
        allocator.hold(5)
        allocator.hold(-5)
        clock.mark()
    assert marks.calls == ["mark"] * 10
    assert readings(clock, 7) == {
        "begin_allocated_bytes": 100, "begin_reserved_bytes": 500,
        "begin_unused_bytes": 400, "begin_inactive_split_bytes": 200,
        "forward_allocated_bytes": 140, "forward_reserved_bytes": 500,
        "forward_unused_bytes": 360, "forward_inactive_split_bytes": 180,
        "backward_allocated_bytes": 200, "backward_reserved_bytes": 500,
        "backward_unused_bytes": 400, "backward_inactive_split_bytes": 200,
        "optimizer_allocated_bytes": 105, "optimizer_reserved_bytes": 500,
        "optimizer_unused_bytes": 400, "optimizer_inactive_split_bytes": 200,
    }  # fmt: skip
    second = readings(clock, 8)
    assert (second["forward_allocated_bytes"], second["backward_allocated_bytes"]) == (130, 190)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({}, {"begin", "forward", "backward", "optimizer"}),
        ({"grad_accumulation": 2}, {"begin", "forward_backward", "optimizer"}),
    ],
)
def test_on_the_cpu_instrumented_steps_tell_the_resident_set(options: dict[str, Any], parts: set[str]) -> None:
    case = Case(strategy="ddp", device="cpu", backend="gloo", **options)
    launched = succeeded(case, Protocol(warmup=2, steps=1, instrumented=2))
    seen = {(s.step, s.metric): s.value for s in launched.samples if s.metric.endswith("_rss_bytes") and s.step}
    assert set(seen) == {(step, f"{part}_rss_bytes") for step in (3, 4) for part in parts}
    assert {s.phase for s in launched.samples if s.metric in {name for _, name in seen}} == {Phase.INSTRUMENT}
    peak = next(s.value for s in launched.samples if s.metric == "peak_rss_bytes")
    assert all(0.5 * peak < value < 1.5 * peak for value in seen.values())
    assert {name for _, name in seen} <= set(METRICS)
