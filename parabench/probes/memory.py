"""A rank's memory: peaks of the measured steps, what each part of an instrumented step holds, and the training state.

The resident set of a process is mostly torch itself; the state's bytes, counted from tensors (parameters, gradients,
optimizer state), are what a strategy promises to divide.
"""

from __future__ import annotations

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
    """Peaks of the measured steps, what each part of an instrumented step holds, and the training state.

    The state's bytes are counted at the three moments of the first step at which each kind is there. Parameters are
    counted at the end of forward, when what was gathered for it and not given back is still held, and again after
    backward; the larger counts. A shard and what was gathered from it both count.
    """

    def __init__(self, rank: ProbedRank) -> None:
        super().__init__(rank)
        self._device = rank.info.device
        forget_building(self._device)
        self._numbers: dict[str, float] = {}
        self._readings: list[tuple[int, str, float]] = []
        self._hook: RemovableHandle | None = None
        # TorchScript takes no hooks; nothing is gathered for its forward either.
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
        """Those that this rank updates or differentiates: sharded ones as their shards."""
        updated = [p for group in self.rank.optimizer.param_groups for p in group["params"]]
        return [*updated, *self.rank.module.parameters()]

    def before_measured(self) -> None:
        # The first step also carried what is read once, and buffers that later ones have already.
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
    """Bytes of an optimizer's state that this rank holds."""
    # ZeroRedundancyOptimizer has the optimizer of what is this rank's inside, and calls it `optim`; importing its
    # module would bring torch.jit's into every process.
    inner: OptimizerLike = getattr(optimizer, "optim", optimizer)
    # The count of steps is a scalar for each parameter, which no formula counts.
    states = (each for state in inner.state.values() for each in state.values())
    return held_bytes(each for each in states if isinstance(each, Tensor) and each.dim() > 0)


def held_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of this rank's parts of `tensors`, what is stored once counted once."""
    seen: dict[tuple[int, int], int] = {}
    for tensor in tensors:
        for local in stored_parts(local_part(tensor)):
            if local.numel():
                seen[local.data_ptr(), local.nbytes] = local.nbytes
    return sum(seen.values())


def forget_building(device: torch.device) -> None:
    """Give back what building needed and training does not: whole layers that another rank keeps would stay reserved.

    Before the warm-up, in which the allocator asks for what steps need, so that no measured step has to.
    """
    gc.collect()
    if device.type == accelerator.TYPE:
        accelerator.api().empty_cache()


def forget_peak(device: torch.device) -> None:
    """Count from here, where the measured steps begin; what is held and reserved now counts."""
    if device.type == accelerator.TYPE:
        for each in range(accelerator.api().device_count()):
            accelerator.api().reset_peak_memory_stats(each)


def peak_memory(device: torch.device) -> dict[str, float]:
    """{metric: bytes}: the process' peak resident set, and on CUDA what torch's allocator gave out and held.

    Of a process that drives several devices it is the fullest one's; on devices that it does not use the allocator has
    nothing.
    """
    # Linux counts ru_maxrss in KiB.
    peaks = {"peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0}
    if device.type == accelerator.TYPE:
        devices = range(accelerator.api().device_count())
        peaks["peak_allocated_bytes"] = float(max(map(accelerator.api().max_memory_allocated, devices)))
        peaks["peak_reserved_bytes"] = float(max(map(accelerator.api().max_memory_reserved, devices)))
    return peaks


# What ends at each of a step's five marks; at the second, where the batch is there, nothing does.
ENDS = ("begin", None, "forward", "backward", "optimizer")
Reading = tuple[str, float]


class MemoryClock(AroundClock):
    """Reads memory after each of ENDS: wrapped around the clock of instrumented steps only.

    On CUDA it asks torch's allocator, whose count follows the host, not the device: what a part asked for is counted to
    it, wherever its kernels are. On the CPU torch keeps no count; there it is the process' resident set.

    `before_reading` is called before each reading: on CUDA the allocator's peaks count from there anew.
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
            partial(allocator, device=device) if device.type == accelerator.TYPE else ResidentSet()
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
    """(name, bytes) each of torch's allocator since the last look: its peaks, at a step's begin what is held, and what
    it holds in no tensor now. The next peak counts from here."""
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
