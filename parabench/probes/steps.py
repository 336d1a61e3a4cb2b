"""The step clock: when each part of each step began, on the clock that all processes of a host share.

The marks live in memory that outlives the rank, so that what a rank measured before it was killed is kept, and
a hang shows which rank stopped first.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt
import torch

from parabench.probes.moments import Moments

# A step is five marks; between them lie data, forward, backward, optimizer.
MARKS = 5


class StepClock:
    """Five marks a step. On the CPU a mark is one clock read; on CUDA it also records an event.

    GPU work runs behind the host, so there the events are what counts: `finish` reads them, after the last step.
    `moments` is the clock that it reads.
    """

    def __init__(self, path: Path, steps: int, device: torch.device) -> None:
        self._marks = np.memmap(path, dtype=np.float64, mode="w+", shape=(steps * MARKS,))
        self._marks[:] = np.nan
        self._at = 0
        self._cuda = device.type == "cuda"
        self.moments = Moments(device)
        self._events: list[torch.cuda.Event] = []
        if self._cuda:
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(steps * MARKS)]

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


def read_marks(path: Path, steps: int, width: int = MARKS) -> npt.NDArray[np.float64]:
    """A rank's marks, shape (steps, width), in seconds; NaN where the rank never came. All NaN when it never began."""
    if not path.exists() or path.stat().st_size != steps * width * 8:
        return np.full((steps, width), np.nan)
    return np.fromfile(path, dtype=np.float64).reshape(steps, width)
