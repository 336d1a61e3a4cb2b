"""The step clock: when each part of each step began, on the clock that all processes of a host share.

The marks live in memory that outlives the rank, so that what a rank measured before it was killed is kept, and
a hang shows which rank stopped first.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt
import torch

from parabench.plan.protocol import Counts
from parabench.probes.moments import Moments, between
from parabench.strategies.base import Clock

# A step is five marks; between them lie data, forward, backward, optimizer.
MARKS = 5

# On CUDA as many steps have events at a time, twice: those of the block before are read, between two steps, and used
# again. So a launch of a million steps holds some thousand events, and a rank that is killed leaves what it measured.
BLOCK = 128
EVENTS = 2 * BLOCK * MARKS


class StepClock:
    """Five marks a step. On the CPU a mark is one clock read; on CUDA it also records an event.

    GPU work runs behind the host: there a mark is what the device's event says, once it is over, and what the host
    read when it enqueued the event is kept apart. In a launch that does not finish, marks that the device did not come
    to stay unknown. `moments` is the clock that events are read by.
    """

    def __init__(self, path: Path, steps: int, device: torch.device) -> None:
        self._path = path
        path.write_bytes(b"")
        self._at = 0
        self._cuda = device.type == "cuda"
        self.moments = Moments(device)
        self._events: list[torch.cuda.Event] = []
        # When the host had enqueued each mark; NaN where there is none.
        self._enqueued: npt.NDArray[np.float64] = np.empty(0)
        if self._cuda:
            # How many marks are read, the last event of them, and its seconds by the device's clock.
            self._read, self._last, self._last_s = 0, self.moments.first, 0.0
            self._reading = threading.Lock()
        self._room = 0
        self.make_room(steps)

    def make_room(self, steps: int) -> None:
        """Make room for so many steps in all, the first ones included; for less than there is, nothing is done."""
        more = steps * MARKS - self._room
        if more <= 0:
            return
        with self._path.open("ab") as file:
            file.write(np.full(more, np.nan).tobytes())
        self._room += more
        self._marks = np.memmap(self._path, dtype=np.float64, mode="r+", shape=(self._room,))
        if self._cuda:
            self._enqueued = np.concatenate([self._enqueued, np.full(more, np.nan)])
            lacking = min(self._room, EVENTS) - len(self._events)
            self._events += [_event() for _ in range(lacking)]

    def mark(self) -> None:
        """The next of the five moments of a step is now."""
        if self._cuda:
            if self._at % (BLOCK * MARKS) == 0 and self._at >= EVENTS:
                self._use_again()
            self._events[self._at % EVENTS].record()
            self._enqueued[self._at] = perf_counter()
        else:
            self._marks[self._at] = perf_counter()
        self._at += 1

    def skip(self) -> None:
        """The next of the five moments does not exist: forward and backward take turns in this step."""
        self._at += 1

    def finish(self) -> None:
        """On CUDA wait for the device and read every mark, placed between two comparisons of the clocks."""
        if not self._cuda:
            return
        self.moments.synchronize()
        self.read(keep=True)
        self.moments.close()
        self.moments.put_on_host(self._marks[: self._at])

    def read(self, *, upto: int | None = None, keep: bool = False) -> None:
        """On CUDA take over the marks that the device has come to, and wait for none; from any thread.

        With `keep` their events are not used again: other moments are read against them.
        """
        if not self._cuda:
            return
        with self._reading:
            for at in range(self._read, self._at if upto is None else upto):
                if not np.isnan(self._enqueued[at]):
                    slot = at % EVENTS
                    event = self._events[slot]
                    if not event.query():
                        break
                    self._last_s += between(self._last, event)
                    self._last = event
                    self._marks[at] = self.moments.begin_s + self._last_s
                    if keep and at % MARKS == 0:
                        self.moments.know(event, self._last_s)
                self._read = at + 1

    def _use_again(self) -> None:
        """Read the block of steps whose events are to be used again. The device is at most a launch queue behind, so
        this waits only where steps are that short, and then for steps that are long enqueued."""
        upto = self._at - BLOCK * MARKS
        slot = (upto - 1) % EVENTS
        self._events[slot].synchronize()
        self.read(upto=upto)
        # The next mark is read against it, and so are other moments of these steps.
        self.moments.know(self._last, self._last_s)
        self._events[slot] = _event()

    @property
    def steps(self) -> int:
        """How many steps are over."""
        return self._at // MARKS

    @property
    def enqueued(self) -> int | None:
        """How many moments the host has come to, where the device comes to them later; None where it is the host's."""
        return self._at if self._cuda else None

    def lags(self) -> list[tuple[int, str, float]]:
        """On CUDA (step, metric, seconds) of how long after the host had enqueued a mark the device came to it, the
        longest of each step; after `finish`."""
        if not self._cuda:
            return []
        whole = slice(0, self.steps * MARKS)
        late = np.nanmax((self._marks[whole] - self._enqueued[whole]).reshape(-1, MARKS), axis=1)
        return [(step, "device_lag_s", float(seconds)) for step, seconds in enumerate(late)]

    def begins(self) -> list[float]:
        """The beginnings of all steps so far, and the end of the last, in seconds; after `finish`."""
        marks = self._marks[: self._at].reshape(-1, MARKS)
        return [*marks[:, 0].tolist(), float(marks[-1, -1])]


class Awaited:
    """Marks what `clock` marks, and lets the host wait for the device where a step ends: of instrumented steps only."""

    def __init__(self, clock: Clock, moments: Moments) -> None:
        self._clock, self._moments, self._at = clock, moments, 0

    def mark(self) -> None:
        """The next of the five moments of a step is now."""
        self._clock.mark()
        self._next()

    def skip(self) -> None:
        """The next of the five moments does not exist."""
        self._clock.skip()
        self._next()

    def _next(self) -> None:
        self._at = (self._at + 1) % MARKS
        if self._at == 0:
            self._moments.synchronize()


def _event() -> torch.cuda.Event:
    """One that whoever waits for it sleeps until, instead of spinning."""
    return torch.cuda.Event(enable_timing=True, blocking=True)


def read_marks(path: Path, steps: int | None, width: int = MARKS) -> npt.NDArray[np.float64]:
    """A rank's marks, shape (steps, width), in seconds; NaN where the rank never came. All NaN when it never began.

    Where the rank itself found out how many steps it takes, `steps` is None: as many as it had made room for.
    """
    size = path.stat().st_size if path.exists() else 0
    if steps is None:
        steps = max(1, size // (width * 8))
    if size != steps * width * 8:
        return np.full((steps, width), np.nan)
    return np.fromfile(path, dtype=np.float64).reshape(steps, width)


def tell_counts(folder: Path, rank: int, counts: Counts) -> None:
    """Leave in a launch's folder how many steps its ranks agreed to take, whatever becomes of the rank."""
    part = folder / f"counts{rank}.part"
    part.write_text(f"{counts.warmup} {counts.measured}")
    part.replace(folder / f"counts{rank}")


def told_counts(folder: Path, ranks: Iterable[int]) -> tuple[int, int] | None:
    """(warm-up steps, measured ones) that any of these ranks left there; None where none was told to find them out, or
    came so far."""
    told = next((path for rank in ranks if (path := folder / f"counts{rank}").exists()), None)
    if told is None:
        return None
    warmup, measured = told.read_text().split()
    return int(warmup), int(measured)
