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

Job = tuple[Callable[[], None], Future[Any], list[Tensor], str]


class FutureWork(Work):
    """A Work that ends with its future. Its `wait` raises when the job failed; c10d's own wrapper of a future would
    return as if all were well, and training would go on with half a reduction."""

    def __init__(self, future: Future[Any]) -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when the job is done; raises RuntimeError when it failed. The wire itself keeps the timeout."""
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        """Whether the job is over, however it ended."""
        return self._future.done()

    def get_future(self) -> Future[Any]:
        """What DDP chains its own work to."""
        return self._future


class ThreadLane:
    """One thread that runs a group's reductions in the order they were called.

    `run` returns an unfinished Work at once: that is what lets DDP go on with backward.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def run(self, job: Callable[[], None], tensors: Sequence[Tensor], what: str) -> Work:
        """Queue `job`, which finishes `tensors`; a failure names `what`."""
        device = tensors[0].device
        if device.type == "cpu":
            future: Future[Any] = Future()
            self._jobs.put((job, future, list(tensors), what))
        else:
            future = Future(devices=[device])
            self._jobs.put((_after_current_stream(job, device), future, list(tensors), what))
        return FutureWork(future)

    def stop(self) -> None:
        """Finish what is queued and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _loop(self) -> None:
        with torch.no_grad():
            while (item := self._jobs.get()) is not None:
                job, future, tensors, what = item
                try:
                    job()
                except Exception as error:
                    future.set_exception(RuntimeError(f"{what}: {error}"))
                else:
                    future.set_result(tensors)
                # Let go of tensors before the next wait, or one step's would live until the next.
                del item, job, future, tensors, what


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
        future: Future[Any] = Future(devices=[device])
        with torch.cuda.stream(stream), torch.no_grad():
            try:
                job()
            except Exception as error:
                future.set_exception(RuntimeError(f"{what}: {error}"))
            else:
                for tensor in tensors:
                    tensor.record_stream(stream)
                future.set_result(list(tensors))
        return FutureWork(future)

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
