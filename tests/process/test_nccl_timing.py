"""What the instruments make of NCCL's works and streams, on a stand-in for the device. Not yet run on a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import ProcessGroup

from fake_cuda import Device, Group, works_that_are_none
from guard import GUARD_S
from parabench.launch.processes import run_processes
from parabench.plan.case import Case
from parabench.probes import CaseReport
from parabench.probes.backend_calls import coalesced_calls, key_of, stream_waits
from parabench.probes.collective_calls import Recorder, enable_nccl_timing, is_nccl
from parabench.probes.communication import CommunicationProbe
from parabench.probes.step_clock import Moments
from parabench.strategies.base import RankInfo
from ranks_helpers import in_group

CUDA = torch.device("cuda", 0)
GROUP: Any = Group()
DATA: Any = SimpleNamespace(nbytes=1024, dtype=torch.float32, device=CUDA, layout=torch.strided)


class Bench:
    """The probe of communication around calls that the test makes; `read` gives seconds since they began."""

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
        """([(op, made, begin, duration)], [(begin, end) of standing still])."""
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


def test_one_that_queues_behind_another_begins_when_its_kernel_does(bench: Bench) -> None:
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


def test_a_synchronous_call_runs_on_the_trainings_stream_and_returns_no_work(bench: Bench) -> None:
    device = bench.device
    device.computes(1.0)
    assert bench.call(lambda: device.computes(4.0), waits=True) is None
    [(_, *moments)], [stood] = bench.read()
    assert moments == about(1.0, 1.0, 4.0)
    assert stood == about(1.0, 5.0)


def coalesced(bench: Bench, monkeypatch: pytest.MonkeyPatch, seconds: float) -> tuple[Any, Any]:
    """A send and a receive that NCCL makes together; returns the context that watches, and how to make them."""
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


def test_messages_that_nccl_sends_together_end_when_somebody_had_to_wait(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching, make = coalesced(bench, monkeypatch, 4.0)
    with watching:
        work = make()
        bench.device.computes(1.0)
        work.wait()
    calls, [stood] = bench.read()
    assert [call[0] for call in calls] == ["send", "recv"]
    assert [call[1:] for call in calls] == [about(0.0, 0.0, 4.0)] * 2
    assert stood == about(1.0, 4.0)


def test_messages_that_were_over_before_are_put_where_they_were_called(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching, make = coalesced(bench, monkeypatch, 0.5)
    with watching:
        bench.device.computes(1.0)
        work = make()
        bench.device.computes(8.0)
        work.wait()
    calls, _ = bench.read()
    assert [call[1:] for call in calls] == [about(1.0, 1.0, 0.5)] * 2


def test_c10ds_coalescing_is_its_own_again_afterwards(bench: Bench) -> None:
    before = ProcessGroup._start_coalescing, ProcessGroup._end_coalescing
    with coalesced_calls(bench.recorder):
        assert ProcessGroup._end_coalescing is not before[1]
    assert (ProcessGroup._start_coalescing, ProcessGroup._end_coalescing) == before


def test_the_trainings_stream_stands_still_for_events_as_fsdp2_waits(bench: Bench) -> None:
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
        side.wait_stream(device.compute)  # another stream's waiting is nobody's loss
    assert device.stream_type.wait_event is own
    device.compute.wait_event(side.record_event())
    _, stood = bench.read()
    assert stood == [about(2.0, 7.0), about(8.0, 9.0)]


def test_an_operator_that_returns_no_work_keeps_what_it_returned(tmp_path: Path) -> None:
    case = Case(world_size=2, device="cpu", backend="gloo")
    ended = run_processes(
        in_group, (works_that_are_none, case, tmp_path), size=2, deadline_s=GUARD_S, logs=tmp_path / "logs"
    )
    assert [json.loads(path.read_text()) for path in tmp_path.glob("rank*.json")] == [[], []]
    assert ended.ok


def test_nccls_timing_is_switched_on_for_its_groups_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group()
    monkeypatch.setattr(type(dist.distributed_c10d._world), "pg_map", property(lambda world: {group: None}))
    enable_nccl_timing(torch.device("cpu"))
    assert group.timed == 0
    enable_nccl_timing(CUDA)
    assert group.timed == 1


def test_a_call_is_watched_on_the_device_of_its_tensors(bench: Bench) -> None:
    """A group may serve both: what lies in host memory goes by gloo, whatever the case's device."""
    begun = bench.recorder.called
    told: list[bool] = []
    bench.recorder.called = lambda *a, on_stream, **k: told.append(on_stream) or begun(*a, on_stream=on_stream, **k)
    bench.recorder.follow("all_reduce", GROUP, [torch.zeros(4)], lambda: None)
    bench.recorder.follow("all_reduce", GROUP, [DATA], lambda: None)
    bench.recorder.follow("barrier", GROUP, [], lambda: None)
    assert told == [False, True, True]


def test_a_group_without_a_backend_for_the_device_is_not_nccls() -> None:
    class HostOnly(Group):
        def _get_backend(self, device: torch.device) -> Group:
            raise RuntimeError(f"No backend type associated with device type {device.type}")

    assert not is_nccl(HostOnly(), CUDA)
    assert is_nccl(GROUP, CUDA)


def test_an_operator_is_called_by_the_key_of_its_tensors_device() -> None:
    with FakeTensorMode():
        on_device = torch.empty(1, device="cuda")
    keys = [key_of(arguments, "cuda") for arguments in (([torch.zeros(1)], 3), ([[on_device]],), (7,))]
    assert keys == [torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA, torch._C.DispatchKey.CUDA]
    assert key_of(([torch.eye(2).to_sparse()],), "cuda") == torch._C.DispatchKey.SparseCPU
