"""Times of NCCL collectives from a fake of a CUDA device. Not yet run on a GPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from fake_cuda import Device, Group
from parabench.plan.case import Case
from parabench.probes import CaseReport
from parabench.probes.backend_calls import coalesced_calls, stream_waits
from parabench.probes.communication import CommunicationProbe, Recorder, enable_nccl_timing
from parabench.probes.step_clock import Moments
from parabench.strategies.base import RankInfo

CUDA = torch.device("cuda", 0)
GROUP: Any = Group()
DATA: Any = SimpleNamespace(nbytes=1024, dtype=torch.float32, device=CUDA, layout=torch.strided)


class Bench:
    """The communication probe with a fake device. `read` returns seconds since its start."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device = Device(monkeypatch)
        moments = Moments(CUDA)
        self._begin = moments.begin_s
        clock = SimpleNamespace(moments=moments, begins=lambda: [self._begin - 1, self._begin + 100])
        case, module = Case(device="cuda", backend="nccl"), torch.nn.Linear(1, 1)
        rank: Any = SimpleNamespace(case=case, info=RankInfo(0, 2, CUDA), clock=clock, module=module)
        self.probe = CommunicationProbe(rank)
        self.recorder: Recorder = self.probe.recorder
        self.recorder._ranks["fake"] = (0, 1)

    def call(self, work: Any, op: str = "all_reduce", *, waits: bool = False) -> Any:
        return self.recorder.follow(op, GROUP, [DATA], work, waits=waits)

    def read(self) -> tuple[list[tuple[Any, ...]], list[tuple[float, float]]]:
        """Return [(op, made, begin, duration)] of calls, and [(begin, end)] of waits."""
        report = CaseReport()
        self.probe.report(report)
        calls = [
            (
                call.op,
                call.made_s - self._begin,
                None if call.start_s is None else call.start_s - self._begin,
                call.duration_s,
            )
            for call in report.calls
        ]
        return calls, [(begin - self._begin, end - self._begin) for _, begin, end in report.stalls]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def about(*expected: Any) -> Any:
    return pytest.approx(expected, abs=1e-9)


def test_a_collective_that_overlaps_ends_where_its_kernel_does(bench: Bench) -> None:
    device = bench.device
    device.computes(1.0)
    work = bench.call(lambda: device.collective(5.0))
    device.computes(2.0)
    work.wait()
    device.computes(1.0)
    bench.recorder.let_go()
    assert len(bench.recorder._works) == 1  # its duration is not known yet
    [(op, *moments)], [stood] = bench.read()
    assert bench.recorder._works == []
    assert op == "all_reduce"
    assert moments == about(1.0, 1.0, 5.0)
    assert stood == about(3.0, 6.0)


def test_queued_call_begins_with_its_kernel(bench: Bench) -> None:
    device = bench.device
    first = bench.call(lambda: device.collective(5.0))
    second = bench.call(lambda: device.collective(2.0))
    first.wait()
    second.wait()
    calls, _ = bench.read()
    assert [call[1:] for call in calls] == [about(0.0, 0.0, 5.0), about(0.0, 5.0, 2.0)]


def test_without_nccls_timing_a_call_begins_when_it_was_made(bench: Bench) -> None:
    device = bench.device
    device.collective(3.0)
    bench.call(lambda: device.collective(2.0, timed=False)).wait()
    [(_, *moments)], _ = bench.read()
    assert moments == about(0.0, 0.0, 5.0)


def test_synchronous_call_runs_on_the_training_stream(bench: Bench) -> None:
    device = bench.device
    device.computes(1.0)
    assert bench.call(lambda: device.computes(4.0), waits=True) is None
    [(_, *moments)], [stood] = bench.read()
    assert moments == about(1.0, 1.0, 4.0)
    assert stood == about(1.0, 5.0)


def coalesced(bench: Bench, monkeypatch: pytest.MonkeyPatch, seconds: float) -> tuple[Any, Any]:
    """Return a context that records coalesced calls, and a function that makes a send and a receive."""
    monkeypatch.setattr(ProcessGroup, "_start_coalescing", lambda group, device: None)
    monkeypatch.setattr(
        ProcessGroup, "_end_coalescing", lambda group, device: bench.device.collective(seconds, futured=False)
    )
    group: Any = object()

    def make() -> Any:
        ProcessGroup._start_coalescing(group, CUDA)
        assert bench.call(lambda: None, "send") is None
        assert bench.call(lambda: None, "recv") is None
        return ProcessGroup._end_coalescing(group, CUDA)

    return coalesced_calls(bench.recorder), make


def test_coalesced_messages_end_at_the_first_wait(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    watching, make = coalesced(bench, monkeypatch, 4.0)
    with watching:
        work = make()
        bench.device.computes(1.0)
        work.wait()
    calls, [stood] = bench.read()
    assert [call[0] for call in calls] == ["send", "recv"]
    assert [call[1:] for call in calls] == [about(0.0, 0.0, 4.0)] * 2
    assert stood == about(1.0, 4.0)


def test_training_stream_waits_for_events_like_fsdp2(bench: Bench) -> None:
    device = bench.device
    own = device.stream_type.wait_event
    side = device.stream_type()
    side.time = 7.0
    with stream_waits(bench.recorder):
        device.computes(2.0)
        device.compute.wait_event(side.record_event())
        device.computes(1.0)
        side.time = 9.0
        device.compute.wait_stream(side)
        side.wait_stream(device.compute)  # another stream's wait costs nothing
    assert device.stream_type.wait_event is own
    device.compute.wait_event(side.record_event())
    _, stood = bench.read()
    assert stood == [about(2.0, 7.0), about(8.0, 9.0)]


def test_nccls_timing_is_switched_on_for_its_groups_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group()
    monkeypatch.setattr(type(dist.distributed_c10d._world), "pg_map", property(lambda world: {group: None}))
    enable_nccl_timing(torch.device("cpu"))
    assert group.timed == 0
    enable_nccl_timing(CUDA)
    assert group.timed == 1


def test_a_call_is_watched_on_the_device_of_its_tensors(bench: Bench) -> None:
    """A group may use gloo for tensors in host memory, and NCCL for tensors on the device."""
    begun = bench.recorder.called
    told: list[bool] = []
    bench.recorder.called = lambda *a, on_stream, **k: told.append(on_stream) or begun(*a, on_stream=on_stream, **k)
    bench.recorder.follow("all_reduce", GROUP, [torch.zeros(4)], lambda: None)
    bench.recorder.follow("all_reduce", GROUP, [DATA], lambda: None)
    bench.recorder.follow("barrier", GROUP, [], lambda: None)
    assert told == [False, True, True]
