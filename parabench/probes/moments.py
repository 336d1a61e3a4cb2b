"""Moments on the clock that all processes of a host share: read on the host, or on a stream of the device.

On the CPU a moment is a reading of the host's monotonic clock. Work for a CUDA device runs behind the host, so there a
moment is an event on the current stream, and becomes a reading of the same clock afterwards. Events that the device
recorded while it stood still are known on both clocks: one when measuring begins, one when it ends, and what lies
between is placed linearly, because the two clocks drift apart by tens of microseconds a second.

An event is read against another one near it. CUDA tells the time between two as a float32 of milliseconds
(c10/cuda/CUDAEvent.h, elapsed_time), which after a minute has a grid of 4 us, after 17 minutes of 62 us.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

Moment = float | torch.cuda.Event

# The first pairs of a process create events and modules, and others of the device's users may hold one up.
ANCHOR_TRIES = 10


class Anchor(NamedTuple):
    """One event on both clocks: the host's reading is right within `error_s`."""

    event: torch.cuda.Event
    host_s: float
    error_s: float


class Moments:
    """Takes moments of what runs on `device`, and says when they were. On CUDA it waits for the device now, and again
    when it is told to `close`."""

    def __init__(self, device: torch.device) -> None:
        self.now: Callable[[], Moment] = perf_counter
        self.begin_s = 0.0
        self._device = device
        self._rate = 1.0
        self._first: Anchor | None = None
        self._clock: dict[str, float] = {}
        # Events that are read already, and their seconds since the first anchor by the device's clock.
        self._known: list[torch.cuda.Event] = []
        self._known_s: list[float] = []
        if device.type == "cuda":
            self.now = event
            torch.cuda.synchronize(device)
            self._first = anchor()
            self.begin_s = self._first.host_s
            self.know(self._first.event, 0.0)

    @property
    def first(self) -> torch.cuda.Event:
        """On CUDA the first anchor's event, from which the device's seconds are counted."""
        assert self._first is not None
        return self._first.event

    def synchronize(self) -> None:
        """Wait until every moment that was taken is over."""
        if self._first is not None:
            # Asleep: where several ranks share a device or cores, one that spins takes time from those that compute.
            asleep = torch.cuda.Event(blocking=True)
            asleep.record()
            asleep.synchronize()
            torch.cuda.synchronize(self._device)

    def know(self, event: torch.cuda.Event, device_s: float) -> None:
        """`event`, later than all that are known, was at `device_s`; moments after it are read against it from now."""
        self._known.append(event)
        self._known_s.append(device_s)

    def close(self) -> None:
        """Wait for the device, and compare the clocks again: from now every moment is placed between two anchors.

        Where they differ by less than the anchors' own errors the drift is not known, and none is assumed.
        """
        if self._first is None:
            return
        self.synchronize()
        last = anchor()
        device_s = self._known_s[-1] + between(self._known[-1], last.event)
        ahead_s = device_s - (last.host_s - self._first.host_s)
        error_s = self._first.error_s + last.error_s
        self._rate = 1.0 if abs(ahead_s) <= error_s else (last.host_s - self._first.host_s) / device_s
        self._clock = {
            "device_clock_error_s": max(self._first.error_s, last.error_s),
            "device_clock_drift": ahead_s / (last.host_s - self._first.host_s),
        }

    def numbers(self) -> dict[str, float]:
        """{metric: value} of the two clocks, on CUDA after `close`."""
        return self._clock

    def on_host(self, device_s: float) -> float:
        """The clock's reading when the device's clock had counted `device_s` since the first anchor."""
        return self.begin_s + device_s * self._rate

    def put_on_host(self, marks: npt.NDArray[np.float64]) -> None:
        """Place `marks`, which were read before `close`, as `on_host` does now."""
        marks -= self.begin_s
        marks *= self._rate
        marks += self.begin_s

    def seconds(self, moment: Moment) -> float:
        """The clock's reading at `moment`. On CUDA only after the device was waited for."""
        if isinstance(moment, float):
            return moment
        # Where it lies is told well enough by the first of all, how far from one near it only by that one. The last but
        # one before it, so that the grid of the first reading cannot make it one that comes after.
        near = max(0, bisect_right(self._known_s, between(self._known[0], moment)) - 2)
        return self.on_host(self._known_s[near] + between(self._known[near], moment))


def anchor() -> Anchor:
    """An event that the device, which stands still, records between two readings of the host's clock: the narrowest of
    ANCHOR_TRIES pairs."""
    best: Anchor | None = None
    for _ in range(ANCHOR_TRIES):
        moment = torch.cuda.Event(enable_timing=True)
        before = perf_counter()
        moment.record()
        moment.synchronize()
        after = perf_counter()
        error_s = (after - before) / 2
        if best is None or error_s < best.error_s:
            best = Anchor(moment, before + error_s, error_s)
    assert best is not None
    return best


def between(earlier: torch.cuda.Event, later: torch.cuda.Event) -> float:
    """Seconds from one event to another by the device's clock; both must be over."""
    return float(earlier.elapsed_time(later)) / 1e3


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
