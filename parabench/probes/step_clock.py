"""The step clock: timestamps of the parts of each step, on the host's monotonic clock.

Marks are in a file that outlives the rank, so the measurements of a killed rank are kept.
"""

# A CUDA device runs behind the host, so a timestamp is an event, which is converted to the host's clock later.
# Two events of the idle device, at the start and at the end, are known on both clocks. Events between them are
# interpolated, because the clocks drift apart.

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from parabench.files import hand_over_file
from parabench.machine import accelerator
from parabench.machine.accelerator import Moment, clock_of, elapsed_s

if TYPE_CHECKING:
    from parabench.strategies.base import StepMarker

T = TypeVar("T", float, npt.NDArray[np.float64])
Marks = npt.NDArray[np.float64]

# A step has five marks. Between them are data, forward, backward, optimizer.
MARKS = 5
# The mark at the start of backward.
BACKWARD = 2

# On CUDA, two blocks of this number of steps have events. The events of the older block are read between two steps and
# reused. This limits the number of events, and keeps the measurements of a killed rank.
BLOCK = 128


class StepClock:
    """A clock that writes `width` marks per step. On CUDA, a mark is the time when the device reaches an event.

    If a launch does not finish, marks that the device did not reach are unknown.
    """

    def __init__(self, path: Path, steps: int, device: torch.device, width: int = MARKS) -> None:
        self._path = path
        self.width = width
        self._block = BLOCK * width
        path.write_bytes(b"")
        self._at = self._room = 0
        self._cuda = device.type == accelerator.TYPE
        self._device = device
        self.moments = Moments(device)
        self._events: list[accelerator.Event] = []
        # The time when the host enqueued each mark; NaN for missing ones.
        self._enqueued: Marks = np.empty(0)
        if self._cuda:
            # The number of marks that are read, the last event of them, and its seconds on the device's clock.
            self._read, self._last, self._last_s = 0, self.moments.first, 0.0
            self._reading = threading.Lock()
        self.make_room(steps)

    def make_room(self, steps: int) -> None:
        """Make room for `steps` steps in total. Raises OSError, and changes nothing, if the disk is full."""
        more = steps * self.width - self._room
        if more <= 0:
            return
        try:
            with self._path.open("ab") as file:
                file.write(np.full(more, np.nan).tobytes())
        except OSError:
            # Remove an incomplete step at the end of the file, else no mark would be read.
            os.truncate(self._path, self._room * 8)
            raise
        self._room += more
        self._marks = np.memmap(self._path, dtype=np.float64, mode="r+", shape=(self._room,))
        self._view = self._marks.data.cast("B").cast("d")  # faster for writing
        if self._cuda:
            self._enqueued = np.concatenate([self._enqueued, np.full(more, np.nan)])
            lacking = min(self._room, 2 * self._block) - len(self._events)
            self._events += [_event() for _ in range(lacking)]

    def mark(self) -> None:
        """Take the next timestamp of a step."""
        if self._cuda and self._at % self._block == 0 and self._at >= 2 * self._block:
            self._use_again()
        self._record(self._at)
        self._at += 1

    def again(self) -> None:
        """Replace the last mark by a new timestamp."""
        self._record(self._at - 1)

    def _record(self, at: int) -> None:
        if not self._cuda:
            self._view[at] = perf_counter()
            return
        self._events[at % (2 * self._block)].record(accelerator.current_stream(self._device))
        self._enqueued[at] = perf_counter()

    def skip(self) -> None:
        """Leave out the next timestamp: forward and backward alternate in this step."""
        self._at += 1

    def forget(self, back: int = 1, *, skipped: bool = False) -> None:
        """Remove the mark `back` marks ago. With `skipped`, it stays missing; otherwise, the next mark replaces it."""
        at = self._at - back
        (self._enqueued if self._cuda else self._marks)[at] = np.nan
        if not skipped:
            self._at = at

    def keep_steps(self, steps: int) -> None:
        """Remove all marks after the first `steps` steps."""
        while self._at > steps * self.width:
            self.forget()

    def finish(self) -> None:
        """On CUDA, wait for the device, compare the clocks, and convert all marks to the host's clock."""
        if not self._cuda:
            return
        self.moments.synchronize()
        self.read(keep=True)
        self.moments.close()
        marks = self._marks[: self._at]
        marks[:] = self.moments.on_host(marks - self.moments.begin_s)

    def read(self, *, upto: int | None = None, keep: bool = False) -> None:
        """On CUDA, read the marks that the device has reached, without waiting. Any thread may call this.

        With `keep`, later timestamps may be read relative to the first event of each step.
        """
        if not self._cuda:
            return
        with self._reading, accelerator.current_on(self._device):
            for at in range(self._read, self._at if upto is None else upto):
                if not np.isnan(self._enqueued[at]):
                    event = self._events[at % (2 * self._block)]
                    if not event.query():
                        break
                    self._last_s += elapsed_s(self._last, event)
                    self._last = event
                    self._marks[at] = self.moments.begin_s + self._last_s
                    if keep and at % self.width == 0:
                        self.moments.know(event, self._last_s)
                self._read = at + 1

    def _use_again(self) -> None:
        """Read the block of steps whose events are reused. This waits if the device is more than a block behind."""
        upto = self._at - self._block
        slot = (upto - 1) % (2 * self._block)
        with accelerator.current_on(self._device):
            self._events[slot].synchronize()
        self.read(upto=upto)
        # The next mark and other timestamps of these steps are read relative to it.
        self.moments.know(self._last, self._last_s)
        self._events[slot] = _event()

    @property
    def steps(self) -> int:
        return self._at // self.width

    @property
    def marked(self) -> int:
        """The number of marks, including skipped ones."""
        return self._at

    @property
    def enqueued(self) -> int | None:
        """The number of marks that the host has enqueued on CUDA; None on the CPU."""
        return self._at if self._cuda else None

    def lags(self) -> list[tuple[int, str, float]]:
        """Return the largest lag of the device in each step, as (step, metric, seconds). Without CUDA, return [].

        The lag of a mark is the time from the host enqueuing it until the device reaches it. Call this after `finish`.
        """
        if not self._cuda:
            return []
        whole = slice(0, self.steps * self.width)
        late = np.nanmax((self._marks[whole] - self._enqueued[whole]).reshape(-1, self.width), axis=1)
        return [(step, "device_lag_s", float(seconds)) for step, seconds in enumerate(late)]

    def begins(self) -> list[float]:
        """Return the starts of all steps and the end of the last one in seconds, after `finish`."""
        return [*self.came_to(0), float(self._marks[self._at - 1])]

    def came_to(self, mark: int) -> list[float]:
        """Return the time of mark number `mark` of each step, after `finish`; NaN if it was skipped."""
        moments: list[float] = self._marks[: self._at].reshape(-1, self.width)[:, mark].tolist()
        return moments


class AroundClock:
    """A clock that wraps another one with `width` marks per step, for instruments that act after each mark."""

    def __init__(self, clock: StepMarker, width: int = MARKS) -> None:
        self._clock, self._width, self._at = clock, width, 0

    def mark(self) -> None:
        self._clock.mark()
        self._next(exists=True)

    def skip(self) -> None:
        self._clock.skip()
        self._next(exists=False)

    def _next(self, *, exists: bool) -> None:
        self.marked(self._at, exists=exists)
        self._at = (self._at + 1) % self._width

    def marked(self, at: int, *, exists: bool) -> None:
        """Act after mark number `at` of a step. If it does not exist, it was skipped."""


def _event() -> accelerator.Event:
    """Return an event with a time. Waiting for it sleeps instead of spinning."""
    event: accelerator.Event = accelerator.api().Event(enable_timing=True, blocking=True)
    return event


def read_marks(path: Path, steps: int | None, width: int = MARKS) -> Marks:
    """Read a rank's marks in seconds, shape (steps, width); NaN for marks that the rank did not reach.

    If `steps` is None, it is the number of steps with room in the file.
    """
    size = path.stat().st_size if path.exists() else 0
    if steps is None:
        steps = max(1, size // (width * 8))
    if size != steps * width * 8:
        return np.full((steps, width), np.nan)
    return np.fromfile(path, dtype=np.float64).reshape(steps, width)


def write_counts(folder: Path, rank: int, counts: tuple[int, int]) -> None:
    """Write the agreed (warm-up steps, measured steps) into the launch's folder, for `read_counts` after its end."""
    hand_over_file(folder / f"counts{rank}", "{} {}".format(*counts))


def read_counts(folder: Path, ranks: Iterable[int]) -> tuple[int, int] | None:
    """Return (warm-up steps, measured steps) that a rank wrote; None if no rank did."""
    written = next((path for rank in ranks if (path := folder / f"counts{rank}").exists()), None)
    if written is None:
        return None
    warmup, measured = map(int, written.read_text().split())
    return warmup, measured


# The first tries of a process create events and modules, and other users of the device may delay a try.
ANCHOR_TRIES = 10


class Anchor(NamedTuple):
    """One event on both clocks. The host's time is correct within `error_s`."""

    event: accelerator.Event
    host_s: float
    error_s: float


class Moments:
    """Take timestamps of work on `device`, and convert them to seconds. On CUDA, creation and `close` wait for it."""

    def __init__(self, device: torch.device) -> None:
        self.now = clock_of(device)
        self.begin_s = 0.0
        self._device = device
        self._rate = 1.0
        self._first: Anchor | None = None
        self._clock: dict[str, float] = {}
        # Events that are read, and their seconds since the first anchor on the device's clock.
        self._known: list[accelerator.Event] = []
        self._known_s: list[float] = []
        if device.type == accelerator.TYPE:
            accelerator.synchronize(device)
            self._first = anchor(device)
            self.begin_s = self._first.host_s
            self.know(self._first.event, 0.0)

    @property
    def first(self) -> accelerator.Event:
        """The event of the first anchor on CUDA. The device's seconds count from it."""
        assert self._first is not None
        return self._first.event

    def synchronize(self) -> None:
        """Wait until the device has reached all timestamps."""
        if self._first is not None:
            # Sleep, because a spinning rank takes time from other ranks on the same device or cores.
            asleep = accelerator.api().Event(blocking=True)
            asleep.record(accelerator.current_stream(self._device))
            with accelerator.current_on(self._device):
                asleep.synchronize()
            accelerator.synchronize(self._device)

    def know(self, event: accelerator.Event, device_s: float) -> None:
        """Add an event at `device_s`, later than all added ones. Later timestamps are converted relative to it."""
        self._known.append(event)
        self._known_s.append(device_s)

    def close(self) -> None:
        """Wait for the device, and compare the clocks again.

        If the clocks differ by less than the errors of the anchors, the drift is unknown, and none is assumed.
        """
        if self._first is None:
            return
        self.synchronize()
        last = anchor(self._device)
        device_s = self._known_s[-1] + elapsed_s(self._known[-1], last.event)
        ahead_s = device_s - (last.host_s - self._first.host_s)
        error_s = self._first.error_s + last.error_s
        self._rate = 1.0 if abs(ahead_s) <= error_s else (last.host_s - self._first.host_s) / device_s
        self._clock = {
            "device_clock_error_s": max(self._first.error_s, last.error_s),
            "device_clock_drift": ahead_s / (last.host_s - self._first.host_s),
        }

    def numbers(self) -> dict[str, float]:
        """Return {metric: value} about the two clocks, on CUDA after `close`."""
        return self._clock

    def on_host(self, device_s: T) -> T:
        """Return the host's time at `device_s` seconds after the first anchor on the device's clock."""
        return device_s * self._rate + self.begin_s

    def seconds(self, moment: Moment) -> float:
        """Return the host's time at `moment` in seconds. On CUDA, the device must have reached it."""
        if isinstance(moment, float):
            return moment
        # The time since the first event is exact enough to find a nearby event. Take the last but one before the
        # moment, because the resolution of this time could choose an event after it.
        near = max(0, bisect_right(self._known_s, elapsed_s(self._known[0], moment)) - 2)
        return self.on_host(self._known_s[near] + elapsed_s(self._known[near], moment))


def anchor(device: torch.device) -> Anchor:
    """Record an event on an idle `device` between two readings of the host's clock. Return the best of several."""
    stream = accelerator.current_stream(device)

    def pair() -> Anchor:
        moment = accelerator.api().Event(enable_timing=True)
        before = perf_counter()
        moment.record(stream)
        moment.synchronize()
        error_s = (perf_counter() - before) / 2
        return Anchor(moment, before + error_s, error_s)

    with accelerator.current_on(device):
        return min((pair() for _ in range(ANCHOR_TRIES)), key=lambda each: each.error_s)


def step_of(second: float, begins: Sequence[float]) -> int | None:
    """Return the step that contains `second`; None if there is none. `begins` are as in `StepClock.begins`."""
    step = bisect_right(begins, second, hi=len(begins) - 1) - 1
    return step if step >= 0 and second <= begins[-1] else None
