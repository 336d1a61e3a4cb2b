"""Moments on the clock that all processes of a host share: read on the host, or on a stream of the device.

On the CPU a moment is a reading of the host's monotonic clock. Work for a CUDA device runs behind the host, so there a
moment is an event on the current stream, and becomes a reading of the same clock afterwards: the time of one event,
recorded while the device stood still, is known on both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import torch

Moment = float | torch.cuda.Event


class Moments:
    """Takes moments of what runs on `device`, and says when they were. On CUDA it waits for the device once, now."""

    def __init__(self, device: torch.device) -> None:
        self.now: Callable[[], Moment] = perf_counter
        self._first: torch.cuda.Event | None = None
        self._begin = 0.0
        if device.type == "cuda":
            self.now = event
            torch.cuda.synchronize(device)
            self._first, self._begin = event(), perf_counter()

    def synchronize(self) -> None:
        """Wait until every moment that was taken is over."""
        if self._first is not None:
            torch.cuda.synchronize()

    def seconds(self, moment: Moment) -> float:
        """The clock's reading at `moment`. On CUDA only after the device was waited for."""
        if isinstance(moment, float):
            return moment
        assert self._first is not None
        return self._begin + float(self._first.elapsed_time(moment)) / 1e3


def event(stream: torch.cuda.Stream | None = None) -> torch.cuda.Event:
    """An event with a time, recorded on `stream`, by default the current one."""
    moment = torch.cuda.Event(enable_timing=True)
    moment.record(stream)
    return moment


def step_of(second: float, begins: Sequence[float]) -> int | None:
    """The step that `second` lies in; None outside of all. `begins` are the steps' beginnings, and the last's end."""
    for step in range(len(begins) - 2, -1, -1):
        if begins[step] <= second:
            return step if second <= begins[-1] else None
    return None
