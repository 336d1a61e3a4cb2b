"""The step clock: when each part of each step began, on the clock that all processes of a host share.

The marks live in memory that outlives the rank, so that what a rank measured before it was killed is kept, and
a hang shows which rank stopped first.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt
import torch

from parabench.probes.moments import Moments
from parabench.protocol import Counts

# A step is five marks; between them lie data, forward, backward, optimizer.
MARKS = 5


class StepClock:
    """Five marks a step. On the CPU a mark is one clock read; on CUDA it also records an event.

    GPU work runs behind the host, so there the events are what counts: `finish` reads them, after the last step.
    `moments` is the clock that it reads.
    """

    def __init__(self, path: Path, steps: int, device: torch.device) -> None:
        self._path = path
        path.write_bytes(b"")
        self._at = 0
        self._cuda = device.type == "cuda"
        self.moments = Moments(device)
        self._events: list[torch.cuda.Event] = []
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
            self._events += [torch.cuda.Event(enable_timing=True) for _ in range(more)]

    def mark(self) -> None:
        """The next of the five moments of a step is now."""
        if self._cuda:
            self._events[self._at].record()
        self._marks[self._at] = perf_counter()
        self._at += 1

    def skip(self) -> None:
        """The next of the five moments does not exist: forward and backward take turns in this step."""
        self._at += 1

    def finish(self) -> None:
        """On CUDA, replace host times by the device's, on the host's clock."""
        if self._cuda:
            self.moments.synchronize()
            for i in range(self._at):
                if not np.isnan(self._marks[i]):
                    self._marks[i] = self.moments.seconds(self._events[i])

    @property
    def steps(self) -> int:
        """How many steps are over."""
        return self._at // MARKS

    def begins(self) -> list[float]:
        """The beginnings of all steps so far, and the end of the last, in seconds; after `finish`."""
        marks = self._marks[: self._at].reshape(-1, MARKS)
        return [*marks[:, 0].tolist(), float(marks[-1, -1])]


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
