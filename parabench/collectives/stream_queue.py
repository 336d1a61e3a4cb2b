"""Where a group's collectives run when its messages are kernels (NCCL): on a stream of the device, with no thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from parabench.collectives.async_queue import JobOrder, WatchedWork, value_or_raise
from parabench.machine import accelerator


@dataclass(slots=True)
class Held:
    """What a job's kernels use, kept from the allocator until they are over; the job refers to all of it."""

    over: accelerator.Event
    job: Callable[[], None] | None


class StreamWork(WatchedWork):
    """The work of a job whose kernels are all enqueued on `stream`, up to the event `held.over`: as with NCCL's own, to
    wait for it is to let the current stream wait. That the job failed on the host is known at once."""

    def __init__(
        self, stream: accelerator.Stream, held: Held, tensors: list[Tensor], failure: Exception | None
    ) -> None:
        super().__init__()
        self._stream, self._held, self._tensors, self._failure = stream, held, tensors, failure
        self._made: Future[Any] | None = None

    def _wait(self, timeout: timedelta | None) -> bool:
        """Let the current stream wait; raises RuntimeError when the job failed. The host does not wait, so there is no
        timeout but the backend's own."""
        if self._failure is not None:
            raise self._failure
        accelerator.api().current_stream(self._stream.device).wait_event(self._held.over)
        # Whatever the caller's stream is given from now on comes after the job.
        self._held.job = None
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        """Whether the device has done it, or it failed."""
        return self._failure is not None or bool(self._held.over.query())

    def exception(self) -> Exception | None:
        """What the job raised; None when all was well."""
        return self._failure

    def result(self) -> list[Tensor]:
        return self._tensors

    def _future(self) -> Future[Any]:
        """Made only when it is asked for: each takes a walk through its tensors."""
        if self._made is None:
            end: Future[Any] = Future(devices=[self._stream.device])
            if self._failure is None:
                # It notes how far this stream is: at the job's end, or somewhat later.
                with accelerator.api().stream(self._stream):
                    end.set_result(self._tensors)
                self._made = end
            else:
                end.set_result(self._failure)
                self._made = end.then(value_or_raise)
        return self._made


class StreamQueue:
    """A stream of its own for what the caller goes on beside, and the caller's for what it waits for.

    A group's jobs come one after the other, whatever streams they are on: they share buffers. `seconds` is the
    host's time for giving jobs to the device, which the caller's thread spends.
    """

    def __init__(self) -> None:
        self._order = JobOrder()
        self._streams: dict[torch.device, accelerator.Stream] = {}
        self._last: dict[torch.device, accelerator.Event] = {}
        self._held: deque[Held] = deque()

    def run(self, job: Callable[[], None], tensors: Sequence[Tensor], what: str, *, waits: bool = False) -> StreamWork:
        """Enqueue `job`, which finishes `tensors`, behind the caller's work; a failure names `what`.

        With `waits` on the caller's stream itself, as NCCL does: its priority counts, and memory needs no care.
        """
        device = tensors[0].device
        callers = accelerator.api().current_stream(device)
        stream = callers if waits else self.stream(device)
        if not waits:
            stream.wait_stream(callers)
        if device in self._last:
            stream.wait_event(self._last[device])
        with accelerator.api().stream(stream):
            interrupt = self._order.perform(job, what)
        over = self._last[device] = accelerator.api().Event()
        over.record(stream)
        held = Held(over, None if waits else job)
        self._let_go()
        if not waits:
            self._held.append(held)
        if interrupt is not None:
            raise interrupt
        return StreamWork(stream, held, list(tensors), self._order.failure)

    def stream(self, device: torch.device) -> accelerator.Stream:
        """The queue's own, of high priority: its short kernels must not wait for room behind those of backward."""
        if device not in self._streams:
            self._streams[device] = accelerator.api().Stream(device, priority=-1)
        return self._streams[device]

    def empty(self, numel: int, **options: Any) -> Tensor:
        """A buffer that jobs on any stream may use: once outgrown it serves other buffers of the queue alone, whose
        jobs come after."""
        with accelerator.api().stream(self.stream(options["device"])):
            return torch.empty(numel, **options)

    def _let_go(self) -> None:
        """Drop what is over although nobody waited for it; a caller may wait for the future alone."""
        while self._held and (self._held[0].job is None or self._held[0].over.query()):
            self._held.popleft().job = None

    def stop(self) -> None:
        """Nothing to end: the streams go with the process."""
