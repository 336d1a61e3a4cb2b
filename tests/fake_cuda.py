"""A CUDA device as far as clocks go: streams that run ahead of nobody, events, and NCCL's works on a stream of its own.

Every stream has its own time in seconds. Work on it moves that time on; to wait for an event moves it to the event's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from parabench import Model
from parabench.probes.backend_calls import native_calls
from parabench.strategies.base import ParallelModel, StrategyContext
from parabench.strategies.data_parallel import single


class Device:
    """The default stream and NCCL's; `torch.cuda` sees them while the test runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        device = self

        class Stream:
            def __init__(self) -> None:
                self.time = 0.0

            def wait_event(self, event: Any) -> None:
                self.time = max(self.time, event.time)

            def wait_stream(self, stream: Any) -> None:
                self.wait_event(stream.record_event())

            def record_event(self) -> Any:
                event = Event()
                event.record(self)
                return event

        class Event:
            def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
                self.time = -1.0

            def record(self, stream: Any = None) -> None:
                self.time = (stream or device.current).time

            def elapsed_time(self, other: Any) -> float:
                return float(1e3 * (other.time - self.time))

            def synchronize(self) -> None:
                device.busy = False

        self.compute, self.nccl, self.pool = Stream(), Stream(), Stream()
        self.current = self.compute
        self.stream_type = Stream
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: self.current)
        self.busy = False
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: setattr(self, "busy", False))

    def computes(self, seconds: float) -> None:
        """Kernels of the training."""
        self.current.time += seconds

    def collective(self, seconds: float, *, timed: bool = True, futured: bool = True) -> NcclWork:
        """What c10d does for an asynchronous call: NCCL's stream waits for the caller's, then the kernel runs there."""
        self.nccl.time = max(self.nccl.time, self.current.time) + seconds
        self.busy = True
        return NcclWork(self, self.nccl.time, seconds if timed else None, futured=futured)


class Behind:
    """A device whose one stream runs behind the host: both have a clock, and the device's counts `drift` too much.

    The test says what the host spends and what kernels take. Events are CUDA's: they are over when the device came to
    them, which asking does not wait for, and the time between two is a float32 of milliseconds.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, drift: float = 0.0, latency_s: Iterator[float]) -> None:
        behind = self
        # Readings of a host that has been up for a month.
        self.host_s = self.device_s = 2.6e6
        self.stuck = False
        self.made = 0

        class Event:
            def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
                self.at_s: float | None = None
                self.timed = enable_timing
                behind.made += 1

            def record(self, stream: Any = None) -> None:
                behind.device_s = max(behind.device_s, behind.host_s)
                self.at_s = float("inf") if behind.stuck else behind.device_s

            def query(self) -> bool:
                return self.at_s is None or self.at_s <= behind.host_s

            def synchronize(self) -> None:
                assert self.at_s is not None
                assert self.at_s < float("inf"), "the test would wait for ever"
                behind.host_s = max(behind.host_s, self.at_s) + next(latency_s)

            def elapsed_time(self, other: Any) -> float:
                assert self.timed, "both events must be created with argument 'enable_timing=True'"
                assert other.timed, "both events must be created with argument 'enable_timing=True'"
                assert self.query(), "cudaErrorNotReady"
                assert other.query(), "cudaErrorNotReady"
                return float(np.float32(1e3 * (other.at_s - self.at_s) * (1 + drift)))

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
        monkeypatch.setattr("parabench.probes.step_clock.perf_counter", lambda: self.host_s)

    def synchronize(self, device: Any = None) -> None:
        """Wait for all kernels."""
        assert not self.stuck, "the test would wait for ever"
        self.host_s = max(self.host_s, self.device_s)

    def computes(self, seconds: float) -> None:
        """Kernels that the host enqueues now."""
        self.device_s = max(self.device_s, self.host_s) + seconds

    def host(self, seconds: float) -> None:
        """What the host spends."""
        self.host_s += seconds


class NcclWork:
    """WorkNCCL: `wait` blocks the current stream, the future is there at once and runs callbacks on a stream of the
    pool that waits for the kernel."""

    def __init__(self, device: Device, end: float, duration: float | None, *, futured: bool) -> None:
        self._device, self._end, self._duration, self._futured = device, end, duration, futured

    def wait(self, timeout: Any = None) -> bool:
        self._device.current.time = max(self._device.current.time, self._end)
        return True

    def get_future(self) -> NcclWork:
        assert self._futured, "c10d would wrap a null pointer"
        return self

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        device = self._device
        before, device.current = device.current, device.pool
        device.pool.time = max(device.pool.time, self._end)
        callback(self)
        device.current = before

    def done(self) -> bool:
        return True

    def is_completed(self) -> bool:
        """The host runs ahead: for all it knows nothing is over before it has waited for the device."""
        return not self._device.busy

    def _get_duration(self) -> float:
        assert self.is_completed(), "the events are not there yet"
        if self._duration is None:
            raise RuntimeError("getDuration only works if timing was enabled")
        return 1e3 * self._duration


class Group:
    """A group of two that NCCL serves."""

    group_name = "fake"

    def __init__(self) -> None:
        self.timed = 0

    def size(self) -> int:
        return 2

    def _get_backend(self, device: torch.device) -> Group:
        return self

    def name(self) -> str:
        return "nccl"

    def _enable_collectives_timing(self) -> None:
        self.timed += 1


def writes_nccls_log(model: Model, context: StrategyContext) -> ParallelModel:
    """A strategy under which this rank's NCCL writes the log that it was asked for."""
    path = Path(os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid())))
    path.write_text(f"h:1:1 [0] NCCL INFO AllReduce: {4 + context.rank} Bytes -> Algo TREE proto LL")
    return single(model, context)


def works_that_are_none(rank: int, size: int) -> Iterator[str]:
    """An operator whose work nobody gets, as NCCL's in a coalesced block: what the kernel returned is handed on, and
    who asked to wait is known to have."""
    waited = []

    class Nobody:
        def follow(self, op: str, group: Any, results: Any, call: Callable[[], Any], *, waits: bool = False) -> None:
            waited.append(waits)
            call().wait()

    tensor, gathered = torch.full((4,), rank + 1.0), torch.empty(4 * size)
    observer: Any = Nobody()
    with native_calls(observer, "cpu"):
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, async_op=True)
        dist.all_gather_into_tensor(gathered, tensor)
    if waited != [True, False, True]:
        yield f"known to wait: {waited}"
    if not torch.equal(gathered, torch.full((4 * size,), 6.0)):
        yield f"gathered {gathered}"
