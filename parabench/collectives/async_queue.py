"""Where a group's collectives run: on a thread beside the training, so that they overlap with backward.

Where messages are kernels they run on a stream (`stream_queue`). An instrument may watch the calls.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed import Work
from torch.futures import Future

from parabench.machine import accelerator

# What an instrument that watches collectives must offer; `probes.collective_calls.Recorder` is the real one. Groups
# carry none while steps are timed: then every call pays one comparison with None.


class Watch(Protocol):
    """One call that is being watched."""

    def timed(self, job: Callable[[], None]) -> Callable[[], None]:
        """`job`, which notes when it begins and ends."""

    def handing(self, *, waits: bool) -> AbstractContextManager[None]:
        """Around handing the job over; with `waits` the caller is blocked meanwhile."""

    def waiting(self) -> AbstractContextManager[None]:
        """Around a caller's waiting for the outcome."""

    def futured(self) -> None:
        """The caller has taken the future: where it waits for it is not seen."""


class Observer(Protocol):
    """Watches the calls of a process' groups."""

    def called(
        self, op: str, group: Any, results: Iterable[Tensor], algorithm: str | None = None, *, on_stream: bool
    ) -> Watch:
        """A call begins. `results` are the tensors that it finishes; `algorithm` is None where the backend does it;
        `on_stream` says that the job is kernels on the stream that is current then."""

    def follow(
        self, op: str, group: Any, results: Iterable[Tensor], call: Callable[[], Any], *, waits: bool = False
    ) -> Any:
        """Make a call that the backend does, and return its work, watched; with `waits` its caller waits for it."""


class WatchedWork(Work):
    """A Work whose waiting an instrument may watch."""

    watch: Watch | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the job; raises RuntimeError when it failed."""
        if self.watch is None:
            return self._wait(timeout)
        with self.watch.waiting():
            return self._wait(timeout)

    def _wait(self, timeout: timedelta | None) -> bool:
        raise NotImplementedError

    def get_future(self) -> Future[Any]:
        """What DDP chains its own work to."""
        if self.watch is not None:
            self.watch.futured()
        return self._future()

    def _future(self) -> Future[Any]:
        raise NotImplementedError

    def is_success(self) -> bool:
        """Whether it is over, and all was well."""
        return self.is_completed() and self.exception() is None


class FutureWork(WatchedWork):
    """A Work that ends when `finish` is called. c10d's own wrapper of a future is not enough: its `wait` returns as if
    all were well when the job failed, and training would go on with half a reduction."""

    def __init__(self, device: torch.device, help: Callable[[], object] | None = None) -> None:
        super().__init__()
        self._end: Future[Any] = Future(devices=[] if device.type == "cpu" else [device])
        # Future.set_exception stores a value that only Python takes for an error; DDP, in C++, crashes on it. What a
        # callback raises is an error to both.
        self._outcome = self._end.then(value_or_raise)
        self._help = help

    def finish(self, outcome: list[Tensor] | Exception) -> None:
        """The job is over: with the tensors that it finished, or with what it raised."""
        self._end.set_result(outcome)

    def _wait(self, timeout: timedelta | None) -> bool:
        """Return when the job is done; raises RuntimeError when it failed, or is not over after `timeout`. Without one
        the wire keeps the group's."""
        if timeout:
            over = threading.Event()
            self._end.add_done_callback(lambda _: over.set())
            if not over.wait(timeout.total_seconds()):
                raise RuntimeError(f"a collective is not over after {timeout.total_seconds():g} s")
        elif self._help is not None and not self._end.done():
            self._help()
        if (failure := self.exception()) is not None:
            raise failure
        self._outcome.wait()
        return True

    def is_completed(self) -> bool:
        return self._outcome.done()

    def exception(self) -> Exception | None:
        """What the job raised; None while it runs, or when all was well."""
        value = self._end.value() if self._end.done() else None
        return value if isinstance(value, Exception) else None

    def result(self) -> list[Tensor]:
        value: list[Tensor] = self._outcome.value()
        return value

    def _future(self) -> Future[Any]:
        return self._outcome


def value_or_raise(end: Future[Any]) -> Any:
    """What a future ended with: its value, or an exception that stands for a failure, raised."""
    value = end.value()
    if isinstance(value, Exception):
        raise value
    return value


Job = tuple[Callable[[], None], FutureWork, list[Tensor], str, torch.device]


class JobOrder:
    """A group's jobs in the order they were called. After a failure this rank is out of step with its peers, so
    whatever is behind it fails too, and sends nothing that they would take for something else."""

    def __init__(self) -> None:
        self.failure: RuntimeError | None = None

    def perform(self, job: Callable[[], None], what: str) -> BaseException | None:
        """Run `job`; a failure names `what`. Returns what is to be raised when all is tidied up: Ctrl-C in the middle
        of a caller's own job."""
        interrupt = None
        if self.failure is None:
            try:
                # As the caller may be in inference mode, and buffers are kept from one call to the next.
                with torch.inference_mode():
                    job()
            except BaseException as error:
                said = str(error) if type(error) is RuntimeError else f"{type(error).__name__}: {error}"
                self.failure = RuntimeError(f"{what}: {said}")
                self.failure.__cause__ = error
                interrupt = None if isinstance(error, Exception) else error
        return interrupt


class ThreadQueue:
    """One thread that runs a group's collectives in the order they were called.

    `run` returns an unfinished Work at once: that is what lets DDP go on with backward. A caller that has nothing else
    to do than to wait does the job itself, unless the thread is at it: handing over costs two wake-ups. What is called
    from a job's callback is done there and then, for the callback may wait for it.

    Of tensors on a CUDA device the job's copies run on a stream of the queue's own, behind what the caller's stream had
    been given: on the caller's they would wait for all of backward that is enqueued by then.
    """

    def __init__(self, name: str) -> None:
        self._order = JobOrder()
        self._jobs: deque[Job] = deque()
        self._running = threading.RLock()  # held by whoever runs jobs: the thread, or a caller that waits
        self._runner: int | None = None
        self._streams: dict[torch.device, accelerator.Stream] = {}
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def run(self, job: Callable[[], None], tensors: Sequence[Tensor], what: str, *, waits: bool = False) -> FutureWork:
        """Queue `job`, which finishes `tensors`; a failure names `what`. With `waits` it is over on return."""
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
        """Finish what is queued and end the thread."""
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
                # The future notes the stream that it is finished on.
                with nullcontext() if device.type == "cpu" else self._beside(device):
                    interrupt = self._order.perform(job, what)
                    work.finish(tensors if self._order.failure is None else self._order.failure)
                if interrupt is not None:
                    raise interrupt
        finally:
            self._runner = before

    def _beside(self, device: torch.device) -> AbstractContextManager[None]:
        """The queue's stream of `device`, made the current one. Of high priority: what waits for messages is short."""
        if device not in self._streams:
            self._streams[device] = accelerator.api().Stream(device, priority=-1)
        if threading.current_thread() is self._thread:
            # Every thread begins on device 0, and would make a context there.
            accelerator.api().set_device(device)
        beside: AbstractContextManager[None] = accelerator.api().stream(self._streams[device])
        return beside

    def _loop(self) -> None:
        goes_on = True
        while goes_on:
            goes_on = self._wake.get()
            with self._running:
                self._run_jobs()


def _after_current_stream(job: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """`job`, to be run on another stream, once the caller's stream has got this far. When it returns the device has
    done all of it: only then may the tensors that it holds go."""
    ready = accelerator.api().Event()
    ready.record(accelerator.api().current_stream(device))

    def run() -> None:
        accelerator.api().current_stream(device).wait_event(ready)
        job()
        arrive()

    return run


def arrive() -> None:
    """Return when the current stream has done what it was given; the core is free meanwhile, for the ranks that need
    it."""
    done = accelerator.api().Event(blocking=True)
    done.record()
    done.synchronize()
