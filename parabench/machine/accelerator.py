"""The accelerator of torch: its name, its devices, torch's module, and timestamps.

NVIDIA's devices are `cuda` for torch, and AMD's in its ROCm builds. Another accelerator whose torch module has the same
functions (as torch.xpu has) is another TYPE and BACKEND here; data of drivers is in `machine.nvml`, `machine.gpus` and
`machine.gpu_checks`. Free of torch until `api` is called.

A `Moment` is a reading of the host's clock on the CPU, and an event on a stream on an accelerator: the time between two
events is the device's, however far the host is ahead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch.cuda import Event as Event
    from torch.cuda import Stream as Stream

# torch's name of the device's type, and of the backend that communicates between such devices.
TYPE = "cuda"
BACKEND = "nccl"

Moment: TypeAlias = "float | Event"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One visible device.

    Attributes:
        index: Its number in NVML, which counts hidden devices too; torch's number if NVML does not read it.
        address: Its PCI address, which is the same in processes that see different devices. It is not recorded.
        architecture: What torch compiles for, as `gfx942`; known only if torch found the device.
        multiprocessors: Their number (AMD: compute units); known only if torch found the device.
    """

    name: str
    memory_bytes: int | None
    index: int = 0
    address: str | None = None
    architecture: str | None = None
    multiprocessors: int | None = None


@functools.cache
def api() -> Any:
    """Return torch's module of the accelerator: its streams and events, the current device, its memory."""
    import torch

    return torch.get_device_module(TYPE)


def backend_of(device: str) -> str:
    """Return the best backend for devices of a type."""
    return BACKEND if device == TYPE else "gloo"


def synchronize(device: torch.device) -> None:
    """Wait until an accelerator `device` has finished its work."""
    if device.type == TYPE:
        api().synchronize(device)


def current_on(device: torch.device) -> AbstractContextManager[None]:
    """Make an accelerator `device` the current one while a `with` block runs.

    Waiting for an event can create a context on the current device, and so can a query. If a script never calls
    `set_device`, that is device 0 on every rank, where each context takes some 500 MB.
    """
    on: AbstractContextManager[None] = api().device(device) if device.type == TYPE else nullcontext()
    return on


def current_stream(device: torch.device) -> Stream:
    """Return the calling thread's current stream of an accelerator `device`, whichever device is the current one."""
    stream: Stream = api().current_stream(device)
    return stream


def record_event(stream: Stream) -> Event:
    """Record an event with a time on `stream`."""
    event: Event = api().Event(enable_timing=True)
    event.record(stream)
    return event


def clock_of(device: torch.device) -> Callable[[], Moment]:
    """Return a function that takes a moment of work on `device`, on its current stream."""
    return (lambda: record_event(current_stream(device))) if device.type == TYPE else perf_counter


def elapsed_s(earlier: Moment, later: Moment) -> float:
    """Return the seconds between two moments of the same clock. Events must be over.

    For events it is a float32 of milliseconds (c10/cuda/CUDAEvent.h, elapsed_time): after a minute, it has a grid of
    4 us, after 17 minutes of 62 us.
    """
    if isinstance(earlier, float):
        assert isinstance(later, float), "moments of two clocks"
        return later - earlier
    assert not isinstance(later, float), "moments of two clocks"
    return float(earlier.elapsed_time(later)) / 1e3
