"""How much memory each part of an instrumented step holds at most, and how much of it lies idle between tensors."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from parabench.strategies.base import Clock

# What ends at each of a step's five marks; at the second, where the batch is there, nothing does.
ENDS = ("begin", None, "forward", "backward", "optimizer")
Reading = tuple[str, float]


class MemoryClock:
    """Marks what `clock` marks, and reads memory after each: wrapped around the clock of instrumented steps only.

    On CUDA it asks torch's allocator, whose count follows the host, not the device: what a part asked for is counted to
    it, wherever its kernels are. On the CPU torch keeps no count; there it is the process' resident set.
    """

    def __init__(self, clock: Clock, device: torch.device, first: int) -> None:
        self._clock, self._step, self._at, self._skipped = clock, first, 0, False
        self._read: Callable[[str], list[Reading]] = Allocator(device) if device.type == "cuda" else ResidentSet()
        self.readings: list[tuple[int, str, float]] = []

    def mark(self) -> None:
        """The next of the five moments of a step is now."""
        self._clock.mark()
        part = ENDS[self._at]
        if part is not None:
            part = "forward_backward" if part == "backward" and self._skipped else part
            self.readings += [(self._step, f"{part}_{name}", value) for name, value in self._read(part)]
        self._next()

    def skip(self) -> None:
        """The next of the five moments does not exist: forward and backward take turns in this step."""
        self._clock.skip()
        self._skipped = True
        self._next()

    def _next(self) -> None:
        self._at += 1
        if self._at == len(ENDS):
            self._at, self._step, self._skipped = 0, self._step + 1, False


class Allocator:
    """torch's CUDA allocator since the last look: its peaks, and what it holds in no tensor now."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(self, part: str) -> list[Reading]:
        """(name, bytes) each; at a step's begin what is held, not a peak. The next peak counts from here."""
        counts: dict[str, Any] = torch.cuda.memory.memory_stats_as_nested_dict(self._device)
        allocated, reserved = counts["allocated_bytes"]["all"], counts["reserved_bytes"]["all"]
        which = "current" if part == "begin" else "peak"
        torch.cuda.reset_peak_memory_stats(self._device)
        return [
            ("allocated_bytes", float(allocated[which])),
            ("reserved_bytes", float(reserved[which])),
            ("unused_bytes", float(reserved["current"] - allocated["current"])),
            ("inactive_split_bytes", float(counts["inactive_split_bytes"]["all"]["current"])),
        ]


class ResidentSet:
    """The process' resident set now, as /proc/self/statm has it; the file stays open, so that a look costs little."""

    def __init__(self) -> None:
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._page = os.sysconf("SC_PAGE_SIZE")

    def __call__(self, part: str) -> list[Reading]:
        """(name, bytes)."""
        return [("rss_bytes", float(int(os.pread(self._statm, 128, 0).split()[1]) * self._page))]

    def __del__(self) -> None:
        os.close(self._statm)
