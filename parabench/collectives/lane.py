"""Where a group's reductions run: beside the training, so that they overlap with backward."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work
from torch.futures import Future


class FutureWork(Work):
    """A Work that ends when `finish` is called. c10d's own wrapper of a future is not enough: its `wait` returns as if
    all were well when the job failed, and training would go on with half a reduction."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._end: Future[Any] = Future(devices=[] if device.type == "cpu" else [device])
        # Future.set_exception stores a value that only Python takes for an error; DDP, in C++, crashes on it. What a
        # callback raises is an error to both.
        self._outcome = self._end.then(_value_or_raise)

    def finish(self, outcome: list[Tensor] | Exception) -> None:
        """The job is over: with the tensors that it finished, or with what it raised."""
        self._end.set_result(outcome)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when the job is done; raises RuntimeError when it failed. The wire itself keeps the timeout."""
        self._outcome.wait()
        return True

    def is_completed(self) -> bool:
        """Whether the job is over, however it ended."""
        return self._outcome.done()

    def get_future(self) -> Future[Any]:
        """What DDP chains its own work to."""
        return self._outcome


def _value_or_raise(end: Future[Any]) -> Any:
    value = end.value()
    if isinstance(value, Exception):
        raise value
    return value


Job = tuple[Callable[[], None], FutureWork, list[Tensor], str]


class ThreadLane:
    """One thread that runs a group's reductions in the order they were called.

    `run` returns an unfinished Work at once: that is what lets DDP go on with backward. After a failure this rank is
    out of step with its peers, so whatever is queued behind it fails too, and sends nothing that they would take
    for something else.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def run(self, job: Callable[[], None], tensors: Sequence[Tensor], what: str) -> Work:
        """Queue `job`, which finishes `tensors`; a failure names `what`."""
        device = tensors[0].device
        work = FutureWork(device)
        if device.type != "cpu":
            job = _after_current_stream(job, device)
        self._jobs.put((job, work, list(tensors), what))
        return work

    def stop(self) -> None:
        """Finish what is queued and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _loop(self) -> None:
        failure: RuntimeError | None = None
        with torch.no_grad():
            while (item := self._jobs.get()) is not None:
                job, work, tensors, what = item
                if failure is None:
                    try:
                        job()
                    except Exception as error:
                        failure = RuntimeError(f"{what}: {error}")
                work.finish(tensors if failure is None else failure)
                # Let go of tensors before the next wait, or one step's would live until the next.
                del item, job, work, tensors, what


class StreamLane:
    """The same for a backend whose messages are kernels (NCCL): a side stream of the device, no thread."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def run(self, job: Callable[[], None], tensors: Sequence[Tensor], what: str) -> Work:
        """Enqueue `job` on the side stream behind the caller's work; a failure names `what`."""
        device = tensors[0].device
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        work = FutureWork(device)
        with torch.cuda.stream(stream), torch.no_grad():
            try:
                job()
            except Exception as error:
                work.finish(RuntimeError(f"{what}: {error}"))
            else:
                for tensor in tensors:
                    tensor.record_stream(stream)
                work.finish(list(tensors))
        return work

    def stop(self) -> None:
        """Nothing to end: the streams go with the process."""


def _after_current_stream(job: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """`job`, to be run by another thread once the caller's stream has got this far."""
    ready = torch.cuda.Event()
    ready.record(torch.cuda.current_stream(device))

    def run() -> None:
        ready.synchronize()
        job()
        torch.cuda.current_stream(device).synchronize()

    return run
