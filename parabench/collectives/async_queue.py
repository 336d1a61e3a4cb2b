"""Queues that run the collectives of a group in order, overlapped with backward.

`ThreadQueue` is a thread for messages of the host (gloo), and `StreamQueue` a stream for messages that are kernels
(NCCL). Instruments may watch the calls.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed import Work
from torch.futures import Future

from parabench.machine import accelerator

# The interface of an instrument for collectives, such as `probes.communication.Recorder`. In measured steps, groups
# have none, and every call has one comparison with None.


class Watch(Protocol):
    """A collective call that an instrument records."""

    def timed(self, job: Callable[[], None]) -> Callable[[], None]:
        """Return a function that runs `job` and records its start and end."""

    def handing(self, *, waits: bool) -> AbstractContextManager[None]:
        """Return a context for starting the job. With `waits`, the caller is blocked until the job ends."""

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context for a wait of the caller for the outcome."""

    def futured(self) -> None:
        """Record that the caller has the future, so its waits are not observed."""


class Observer(Protocol):
    """An instrument that records the calls of all groups of a process."""

    def called(
        self, op: str, group: Any, results: Iterable[Tensor], algorithm: str | None = None, *, on_stream: bool
    ) -> Watch:
        """Record the start of a call with the output tensors `results`. `algorithm` is None for the backend.

        With `on_stream`, the job is kernels on the current stream.
        """

    def follow(
        self, op: str, group: Any, results: Iterable[Tensor], call: Callable[[], Any], *, waits: bool = False
    ) -> Any:
        """Make a call of the backend. Return its watched work, or None if the backend returned no work.

        `waits` means that the caller requested a blocking call.
        """


class WatchedWork(Work):
    """A Work whose waits may be watched."""

    watch: Watch | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the job. Raises RuntimeError if it failed."""
        if self.watch is None:
            return self._wait(timeout)
        with self.watch.waiting():
            return self._wait(timeout)

    def _wait(self, timeout: timedelta | None) -> bool:
        raise NotImplementedError

    def get_future(self) -> Future[Any]:
        """Return the future that DDP uses."""
        if self.watch is not None:
            self.watch.futured()
        return self._future()

    def _future(self) -> Future[Any]:
        raise NotImplementedError

    def is_success(self) -> bool:
        """Return whether it has ended without an error."""
        return self.is_completed() and self.exception() is None


class FutureWork(WatchedWork):
    """The Work of a queued job, which `finish` ends. Unlike c10d's wrapper, `wait` raises the error of a failed job."""

    def __init__(self, device: torch.device, help: Callable[[], object] | None = None) -> None:
        super().__init__()
        self._end: Future[Any] = Future(devices=[] if device.type == "cpu" else [device])
        # Future.set_exception stores a value that is an error only in Python, and DDP in C++ crashes on it. An
        # exception of a callback is an error in both.
        self._outcome = self._end.then(value_or_raise)
        self._help = help

    def finish(self, outcome: list[Tensor] | Exception) -> None:
        """End the work with the finished tensors, or with the exception of the job."""
        self._end.set_result(outcome)

    def _wait(self, timeout: timedelta | None) -> bool:
        """Wait for the job. Raises RuntimeError if it failed, or after `timeout`. The wire has the group's timeout."""
        if timeout:
            over = threading.Event()
            self._end.add_done_callback(lambda _: over.set())
            if not over.wait(timeout.total_seconds()):
                raise RuntimeError(f"a collective has not ended after {timeout.total_seconds():g} s")
        elif self._help is not None and not self._end.done():
            self._help()
        if (failure := self.exception()) is not None:
            raise failure
        self._outcome.wait()
        return True

    def is_completed(self) -> bool:
        return self._outcome.done()

    def exception(self) -> Exception | None:
        """Return the exception of the job; None while it runs, or if it succeeded."""
        value = self._end.value() if self._end.done() else None
        return value if isinstance(value, Exception) else None

    def result(self) -> list[Tensor]:
        value: list[Tensor] = self._outcome.value()
        return value

    def _future(self) -> Future[Any]:
        return self._outcome


def value_or_raise(end: Future[Any]) -> Any:
    """Return the value of a future, or raise it if it is an exception."""
    value = end.value()
    if isinstance(value, Exception):
        raise value
    return value


Job = tuple[Callable[[], None], FutureWork, list[Tensor], str, torch.device]


class JobQueue:
    """The jobs of a group in the order of their calls. After a failure, all later jobs fail without sending."""

    failure: RuntimeError | None = None

    def _perform(self, job: Callable[[], None], what: str) -> BaseException | None:
        """Run `job`, and keep an error as `failure`, with `what` in its message.

        Return Ctrl-C if it interrupted the job, so that the caller raises it after cleanup.
        """
        if self.failure is not None:
            return None
        try:
            # The caller may be in inference mode, and buffers are kept between calls.
            with torch.inference_mode():
                job()
        except BaseException as error:
            text = str(error) if type(error) is RuntimeError else f"{type(error).__name__}: {error}"
            self.failure = RuntimeError(f"{what}: {text}")
            self.failure.__cause__ = error
            if not isinstance(error, Exception):
                return error
        return None


class ThreadQueue(JobQueue):
    """One thread that runs a group's collectives in the order of their calls.

    `run` returns an unfinished Work at once, so that DDP continues with backward. A caller that waits may run the jobs.
    """

    # A waiting caller runs the jobs, because switching to the thread costs two wake-ups. Calls from a callback of a job
    # run at once, because the callback may wait for them. On CUDA, copies of a job run on a separate stream after the
    # work of the caller's stream so far. On the caller's stream, they would wait for later work of backward.

    def __init__(self, name: str) -> None:
        self._jobs: deque[Job] = deque()
        self._running = threading.RLock()  # held while jobs run, on the thread or in a waiting caller
        self._runner: int | None = None
        self._streams: dict[torch.device, accelerator.Stream] = {}
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def run(self, job: Callable[[], None], tensors: Sequence[Tensor], what: str, *, waits: bool = False) -> FutureWork:
        """Queue `job`, whose outputs are `tensors`, and return its work. Errors name `what`.

        With `waits`, the job has ended on return.
        """
        device = tensors[0].device
        work = FutureWork(device, self._help)
        if device.type != "cpu":
            job = _after_current_stream(job, device)
        self._jobs.append((job, work, list(tensors), what, device))
        if waits or self._runner == threading.get_ident():
            with self._running:
                self._run_jobs()
        else:
            self._wake.put(True)
        return work

    def stop(self) -> None:
        """Finish all queued jobs and end the thread."""
        self._wake.put(False)
        self._thread.join()

    def _help(self) -> None:
        if self._running.acquire(blocking=False):
            try:
                self._run_jobs()
            finally:
                self._running.release()

    def _run_jobs(self) -> None:
        before, self._runner = self._runner, threading.get_ident()
        try:
            while self._jobs:
                job, work, tensors, what, device = self._jobs.popleft()
                # The future records the current stream.
                with nullcontext() if device.type == "cpu" else self._on_stream(device):
                    interrupt = self._perform(job, what)
                    work.finish(tensors if self.failure is None else self.failure)
                if interrupt is not None:
                    raise interrupt
        finally:
            self._runner = before

    def _on_stream(self, device: torch.device) -> AbstractContextManager[None]:
        """Make the queue's stream of `device` current. It has a high priority, because its kernels are short."""
        if device not in self._streams:
            self._streams[device] = accelerator.api().Stream(device, priority=-1)
        if threading.current_thread() is self._thread:
            # A thread starts on device 0, and would create a context there.
            accelerator.api().set_device(device)
        current: AbstractContextManager[None] = accelerator.api().stream(self._streams[device])
        return current

    def _loop(self) -> None:
        goes_on = True
        while goes_on:
            goes_on = self._wake.get()
            with self._running:
                self._run_jobs()


def _after_current_stream(job: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Return a job for another stream. It starts after the current work of the caller's stream.

    The host waits for its end on the device, because only then its tensors may be freed.
    """
    ready = accelerator.api().Event()
    ready.record(accelerator.api().current_stream(device))

    def run() -> None:
        accelerator.api().current_stream(device).wait_event(ready)
        job()
        wait_for_stream()

    return run


def wait_for_stream() -> None:
    """Wait, without spinning, until the current stream has finished its work."""
    done = accelerator.api().Event(blocking=True)
    done.record()
    done.synchronize()


# -- messages that are kernels -------------------------------------------------------------------------------------


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
    """A separate stream for jobs that overlap. If the caller waits, the caller's stream is used.

    The jobs of a group run one after the other, because they share buffers.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, accelerator.Stream] = {}
        self._last: dict[torch.device, accelerator.Event] = {}
        self._held: deque[Held] = deque()

    def run(self, job: Callable[[], None], tensors: Sequence[Tensor], what: str, *, waits: bool = False) -> StreamWork:
        """Enqueue `job`, whose outputs are `tensors`, after the caller's work. Errors name `what`.

        With `waits`, the job runs on the caller's stream, as in NCCL. It has the priority of that stream, and its
        buffers need not be kept alive.
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
        """Return a buffer for jobs on any stream. When it is freed, only this queue's stream reuses its memory."""
        with accelerator.api().stream(self.stream(options["device"])):
            return torch.empty(numel, **options)

    def stop(self) -> None:
        """Do nothing: streams end with the process."""
