"""The one seam to what torch computes on besides the CPU: what it is called, and torch's module of it.

NVIDIA's devices are `cuda` to torch, and so are AMD's in its ROCm builds. Another accelerator whose module of torch has
the same functions (as torch.xpu has) is another TYPE and BACKEND here; what a driver tells of devices stands in
`machine.nvml`, `machine.gpus` and `machine.gpu_checks`. Free of torch until `api` is called.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.cuda import Event as Event
    from torch.cuda import Stream as Stream

# torch's name of the device's type, and of the backend that communicates between such devices.
TYPE = "cuda"
BACKEND = "nccl"


@functools.cache
def api() -> Any:
    """torch's module of the accelerator: its streams and events, the current device, its memory."""
    import torch

    return torch.get_device_module(TYPE)


def backend_of(device: str) -> str:
    """The backend that communicates best between devices of a type."""
    return BACKEND if device == TYPE else "gloo"
