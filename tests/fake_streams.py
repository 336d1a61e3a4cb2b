"""A CUDA device as far as order goes: streams are queues, events hold one up for another, and the test says who runs.

Kernels are functions. `torch.cuda` sees the streams while the test runs; every thread begins on the default one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from guard import GUARD_S

CUDA = torch.device("cuda", 0)


class Tensor:
    """What a queue looks at of a tensor. It has no `record_stream`, so that a queue that calls it fails."""

    device = CUDA


class Device:
    """Nothing runs before `run` or `drain` is called; `log` are the names of the kernels that ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        device = self
        self.log: list[str] = []
        self.streams: list[Any] = []
        self.set_in: list[str] = []
        self.moved = threading.Condition()
        self._here = threading.local()

        class Stream:
            device = CUDA

            def __init__(self, of: Any = None, priority: int = 0) -> None:
                self.queue: deque[tuple[str, Any]] = deque()
                self.priority = priority
                device.streams.append(self)

            def wait_event(self, event: Event) -> None:
                if event.stream is not None:
                    self.queue.append(("wait", (event, event.recorded)))

            def wait_stream(self, other: Stream) -> None:
                event = Event()
                event.record(other)
                self.wait_event(event)

        class Event:
            def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
                self.stream: Any = None
                self.recorded = self.reached = 0

            def record(self, stream: Any = None) -> None:
                self.stream = stream or device.current
                self.recorded += 1
                self.stream.queue.append(("record", (self, self.recorded)))

            def query(self) -> bool:
                return self.reached >= self.recorded

            def synchronize(self) -> None:
                with device.moved:
                    assert device.moved.wait_for(self.query, timeout=GUARD_S), "nobody lets the device run"

        self.default = Stream()
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self.on)
        monkeypatch.setattr(torch.cuda, "set_device", lambda to: self.set_in.append(threading.current_thread().name))

    @property
    def current(self) -> Any:
        return getattr(self._here, "stream", self.default)

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """torch.cuda.stream."""
        before, self._here.stream = self.current, stream
        try:
            yield
        finally:
            self._here.stream = before

    def kernel(self, name: str, does: Callable[[], object] = lambda: None) -> None:
        """Give the current stream a kernel."""
        self.current.queue.append(("kernel", (name, does)))

    def run(self, stream: Any) -> bool:
        """Let the stream's next piece of work run; whether it could."""
        if not stream.queue:
            return False
        kind, what = stream.queue[0]
        if kind == "wait" and what[0].reached < what[1]:
            return False
        stream.queue.popleft()
        with self.moved:
            if kind == "record":
                what[0].reached = what[1]
            elif kind == "kernel":
                self.log.append(what[0])
                what[1]()
            self.moved.notify_all()
        return True

    def drain(self, first: Sequence[Any] = ()) -> list[str]:
        """Run everything; where several streams could go on, the earliest of `first`. Returns the log."""
        while any(self.run(stream) for stream in (*first, *self.streams)):
            pass
        assert not any(stream.queue for stream in self.streams), "streams wait for one another"
        return self.log
