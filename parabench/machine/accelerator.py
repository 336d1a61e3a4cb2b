"""Use torch's accelerator: its name, its devices, torch's module, and timestamps. Only `api` imports torch.

NVIDIA's devices, and AMD's in ROCm builds, are `cuda` for torch. Another accelerator needs another TYPE and BACKEND.
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

# A reading of the host's clock on the CPU, or an event on a stream on an accelerator.
Moment: TypeAlias = "float | Event"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One visible device."""

    name: str
    memory_bytes: int | None
    # The number in NVML, which also counts hidden devices; torch's number if NVML does not read the device.
    index: int = 0
    # The PCI address identifies the device in all processes. It is not recorded.
    address: str | None = None
    # The target of torch's compiler, such as `gfx942`, and the number of multiprocessors (AMD: compute units). They are
    # known only if torch found the device.
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
    """Make an accelerator `device` the current one in a `with` block.

    Waiting for an event or a query can create a context on the current device, which takes some 500 MB.
    """
    on: AbstractContextManager[None] = api().device(device) if device.type == TYPE else nullcontext()
    return on


def current_stream(device: torch.device) -> Stream:
    """Return the calling thread's current stream of an accelerator `device`."""
    stream: Stream = api().current_stream(device)
    return stream


def record_event(stream: Stream) -> Event:
    """Record an event with a time on `stream`."""
    event: Event = api().Event(enable_timing=True)
    event.record(stream)
    return event


def clock_of(device: torch.device) -> Callable[[], Moment]:
    """Return a function that takes a timestamp: on an accelerator of its current stream, on the CPU of the host."""
    return (lambda: record_event(current_stream(device))) if device.type == TYPE else perf_counter


def elapsed_s(earlier: Moment, later: Moment) -> float:
    """Return the seconds between two timestamps of the same clock. The device must have reached events.

    For events, this is a float32 of milliseconds: after a minute, its resolution is 4 us, after 17 minutes 62 us.
    """
    if isinstance(earlier, float):
        assert isinstance(later, float), "timestamps of two clocks"
        return later - earlier
    assert not isinstance(later, float), "timestamps of two clocks"
    return float(earlier.elapsed_time(later)) / 1e3
