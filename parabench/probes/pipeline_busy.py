"""How much of a pipeline's forward and backward its rank computes; the rest is the bubble, and messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import ParamSpec, TypeVar

import torch
import torch.distributed as dist

from parabench.machine.accelerator import Moment, clock_of, elapsed_s

P = ParamSpec("P")
R = TypeVar("R")

# The first step learns shapes and makes buffers. A third may be one that is timed, and must carry no instrument.
WATCHED = 1


class BusyShare:
    """Times what is `counted` while the one step that it watches runs: `share` is that time over the step's.

    All ranks enter and leave the watched step together, so that the step is as long for each of them as for all.
    On CUDA the times are the device's.
    """

    def __init__(self, device: torch.device) -> None:
        self.share: float | None = None
        self._device = device
        self._now = clock_of(device)
        self._steps = count()
        self._watching = False
        self._spans: list[tuple[Moment, Moment]] = []

    def counted(self, call: Callable[P, R]) -> Callable[P, R]:
        """`call`, timed in the watched step, and as it is in every other."""

        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            if not self._watching:
                return call(*args, **kwargs)
            begin = self._now()
            result = call(*args, **kwargs)
            self._spans.append((begin, self._now()))
            return result

        return timed

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around one step's forward and backward."""
        self._watching = next(self._steps) == WATCHED
        if not self._watching:
            yield
            return
        self._meet()
        begin = self._now()
        yield
        self._meet()
        end = self._now()
        if not isinstance(end, float):
            end.synchronize()
        self.share = sum(elapsed_s(*span) for span in self._spans) / elapsed_s(begin, end)
        self._spans.clear()
        self._watching = False

    def _meet(self) -> None:
        """Wait until all ranks have come here, and their devices."""
        nothing = torch.zeros(1, device=self._device)
        dist.all_reduce(nothing)
        nothing.item()
