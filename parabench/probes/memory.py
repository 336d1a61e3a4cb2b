"""The memory of a rank: peaks of the measured steps, memory of each part of an instrumented step, and model states."""

from __future__ import annotations

import functools
import gc
import os
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from parabench.machine import accelerator
from parabench.probes import CaseReport, Probe, ProbedRank
from parabench.probes.step_clock import AroundClock
from parabench.strategies.base import OptimizerLike, StepMarker, local_part, stored_parts


class MemoryProbe(Probe):
    """Record peak memory, the memory of each part of an instrumented step, and the model states.

    Parameters are counted at the end of forward, when gathered ones may still be held, and after backward. The larger
    number counts.
    """

    def __init__(self, rank: ProbedRank) -> None:
        super().__init__(rank)
        self._device = rank.info.device
        forget_building(self._device)
        self._numbers: dict[str, float] = {}
        self._readings: list[tuple[int, str, float]] = []
        self._hook: RemovableHandle | None = None
        # TorchScript does not have hooks, and does not gather.
        if rank.parallel.counted and not isinstance(rank.module, torch.jit.ScriptModule):
            self._hook = rank.module.register_forward_hook(lambda *_: self._count_parameters())

    def after_first_backward(self) -> None:
        if self.rank.parallel.counted:
            if self._hook is not None:
                self._hook.remove()
            self._count_parameters()
            gradients = (p.grad for p in self._own() if p.grad is not None)
            self._numbers["gradient_bytes"] = held_bytes(gradients)

    def after_first_step(self) -> None:
        if self.rank.parallel.counted:
            self._numbers["optimizer_bytes"] = state_bytes(self.rank.optimizer)

    def _count_parameters(self) -> None:
        self._numbers["parameter_bytes"] = max(self._numbers.get("parameter_bytes", 0), held_bytes(self._own()))

    def _own(self) -> list[Tensor]:
        """Return the parameters that this rank updates or differentiates, sharded ones as their shards."""
        updated = [p for group in self.rank.optimizer.param_groups for p in group["params"]]
        return [*updated, *self.rank.module.parameters()]

    def before_measured(self) -> None:
        # The first step also allocates buffers that later steps reuse.
        forget_peak(self._device)

    def after_measured(self) -> None:
        self._numbers |= peak_memory(self._device)

    @contextmanager
    def instrumented(self, clock: StepMarker) -> Iterator[StepMarker]:
        watched = MemoryClock(clock, self._device, self.rank.clock.steps)
        yield watched
        self._readings = watched.readings

    def report(self, report: CaseReport) -> None:
        report.numbers |= self._numbers
        report.readings += self._readings


def state_bytes(optimizer: OptimizerLike) -> int:
    """Return the bytes of an optimizer's state that this rank holds."""
    # ZeroRedundancyOptimizer has the optimizer of this rank in `optim`.
    inner: OptimizerLike = getattr(optimizer, "optim", optimizer)
    # Scalars, such as the number of steps, are not counted.
    states = (each for state in inner.state.values() for each in state.values())
    return held_bytes(each for each in states if isinstance(each, Tensor) and each.dim() > 0)


def held_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of this rank's parts of `tensors`. Shared storage counts once."""
    seen: dict[tuple[int, int], int] = {}
    for tensor in tensors:
        for local in stored_parts(local_part(tensor)):
            if local.numel():
                seen[local.data_ptr(), local.nbytes] = local.nbytes
    return sum(seen.values())


def forget_building(device: torch.device) -> None:
    """Free memory that was needed only to build models, such as whole layers of other ranks."""
    gc.collect()
    if device.type == accelerator.TYPE:
        accelerator.api().empty_cache()


def forget_peak(device: torch.device) -> None:
    """Reset the peaks of torch's allocator on CUDA to the current memory."""
    if device.type == accelerator.TYPE:
        for each in range(accelerator.api().device_count()):
            accelerator.api().reset_peak_memory_stats(each)


def peak_memory(device: torch.device) -> dict[str, float]:
    """Return {metric: bytes} of the peak resident set, and on CUDA of the highest allocator peaks of a device."""
    # Linux counts ru_maxrss in KiB.
    peaks = {"peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0}
    if device.type == accelerator.TYPE:
        devices = range(accelerator.api().device_count())
        peaks["peak_allocated_bytes"] = float(max(map(accelerator.api().max_memory_allocated, devices)))
        peaks["peak_reserved_bytes"] = float(max(map(accelerator.api().max_memory_reserved, devices)))
    return peaks


# The part that ends at each of the five marks of a step; None at the second, after the batch.
ENDS = ("begin", None, "forward", "backward", "optimizer")
Reading = tuple[str, float]


class MemoryClock(AroundClock):
    """Record memory after each mark of a step in ENDS: torch's allocator on CUDA, the resident set on the CPU.

    An allocation belongs to the part that requested it. `before_reading` is called before a reading resets the peaks.
    """

    def __init__(
        self,
        clock: StepMarker,
        device: torch.device,
        first: int,
        width: int = len(ENDS),
        before_reading: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(clock, width)
        self._step, self._skipped = first, False
        self._before_reading = before_reading
        self._read: Callable[[str], list[Reading]] = (
            partial(allocator, device=device) if device.type == accelerator.TYPE else resident_set
        )
        self.readings: list[tuple[int, str, float]] = []

    def marked(self, at: int, *, exists: bool) -> None:
        part = ENDS[at] if at < len(ENDS) else None
        if exists and part is not None:
            self._before_reading()
            part = "forward_backward" if part == "backward" and self._skipped else part
            self.readings += [(self._step, f"{part}_{name}", value) for name, value in self._read(part)]
        self._skipped |= not exists
        if at == self._width - 1:
            self._step, self._skipped = self._step + 1, False


def allocator(part: str, device: torch.device) -> list[Reading]:
    """Return (name, bytes) of torch's allocator, and reset its peaks.

    Allocated and reserved memory are peaks since the last reading, or the current values when a step starts. The other
    values are the memory that no tensor uses.
    """
    counts: dict[str, Any] = accelerator.api().memory.memory_stats_as_nested_dict(device)
    allocated, reserved = counts["allocated_bytes"]["all"], counts["reserved_bytes"]["all"]
    which = "current" if part == "begin" else "peak"
    accelerator.api().reset_peak_memory_stats(device)
    return [
        ("allocated_bytes", float(allocated[which])),
        ("reserved_bytes", float(reserved[which])),
        ("unused_bytes", float(reserved["current"] - allocated["current"])),
        ("inactive_split_bytes", float(counts["inactive_split_bytes"]["all"]["current"])),
    ]


@functools.cache
def _statm(pid: int) -> int:
    """Return the descriptor of this process's statm. It stays open to make readings fast; a fork opens its own."""
    return os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)


def resident_set(part: str) -> list[Reading]:
    """Return (name, bytes) of the resident set of this process."""
    pages = int(os.pread(_statm(os.getpid()), 128, 0).split()[1])
    return [("rss_bytes", float(pages * os.sysconf("SC_PAGE_SIZE")))]
