"""A stream of the device that runs the collectives of a group if messages are kernels (NCCL)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from parabench.collectives.async_queue import JobQueue, WatchedWork, value_or_raise
from parabench.machine import accelerator


@dataclass(slots=True)
class Held:
    """The tensors of a job's kernels, which must not be freed before the kernels end."""

    over: accelerator.Event
    job: Callable[[], None] | None


class StreamWork(WatchedWork):
    """The work of a job whose kernels are on `stream`, up to the event `held.over`.

    As with NCCL's works, a wait lets the current stream wait. Errors of the job on the host are known at once.
    """

    def __init__(
        self, stream: accelerator.Stream, held: Held, tensors: list[Tensor], failure: Exception | None
    ) -> None:
        super().__init__()
        self._stream, self._held, self._tensors, self._failure = stream, held, tensors, failure
        self._made: Future[Any] | None = None

    def _wait(self, timeout: timedelta | None) -> bool:
        """Let the current stream wait, but not the host. Raises RuntimeError if the job failed."""
        if self._failure is not None:
            raise self._failure
        accelerator.api().current_stream(self._stream.device).wait_event(self._held.over)
        # Later work on the caller's stream runs after the job.
        self._held.job = None
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the device has finished it, or it failed."""
        return self._failure is not None or bool(self._held.over.query())

    def exception(self) -> Exception | None:
        """Return the exception of the job, or None."""
        return self._failure

    def result(self) -> list[Tensor]:
        return self._tensors

    def _future(self) -> Future[Any]:
        """Create a future on request, because this reads all tensors."""
        if self._made is None:
            end: Future[Any] = Future(devices=[self._stream.device])
            if self._failure is None:
                # It records the position of this stream: the end of the job, or later.
                with accelerator.api().stream(self._stream):
                    end.set_result(self._tensors)
                self._made = end
            else:
                end.set_result(self._failure)
                self._made = end.then(value_or_raise)
        return self._made


class StreamQueue(JobQueue):
    """A separate stream for overlapping jobs. If the caller waits, its stream is used.

    The jobs of a group run one after the other, because they share buffers.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, accelerator.Stream] = {}
        self._last: dict[torch.device, accelerator.Event] = {}
        self._held: deque[Held] = deque()

    def run(self, job: Callable[[], None], tensors: Sequence[Tensor], what: str, *, waits: bool = False) -> StreamWork:
        """Enqueue `job`, which finishes `tensors`, after the caller's work. Errors name `what`.

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
            interrupt = self._perform(job, what)
        over = self._last[device] = accelerator.api().Event()
        over.record(stream)
        held = Held(over, None if waits else job)
        # Drop jobs that have ended without a wait. A caller may use only the future.
        while self._held and (self._held[0].job is None or self._held[0].over.query()):
            self._held.popleft().job = None
        if not waits:
            self._held.append(held)
        if interrupt is not None:
            raise interrupt
        return StreamWork(stream, held, list(tensors), self.failure)

    def stream(self, device: torch.device) -> accelerator.Stream:
        """Return the queue's stream. It has a high priority, so that its kernels do not wait for backward."""
        if device not in self._streams:
            self._streams[device] = accelerator.api().Stream(device, priority=-1)
        return self._streams[device]

    def empty(self, numel: int, **options: Any) -> Tensor:
        """Return a buffer for jobs on any stream. When it is too small, its memory is reused only by this queue."""
        with accelerator.api().stream(self.stream(options["device"])):
            return torch.empty(numel, **options)

    def stop(self) -> None:
        """Do nothing: streams end with the process."""
