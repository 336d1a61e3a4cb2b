"""What a process that stays can put back between two launches; the rest is why its launches replicate less."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import torch

from parabench.launch.rank import local_device
from parabench.machine import accelerator
from parabench.store.record import SHARED_PROCESSES, Finding

SHARED = Finding(
    SHARED_PROCESSES,
    "All launches share the processes that somebody else started. Between launches memory is given back, peaks and "
    "compiled code are forgotten, and each makes its own process group; allocators, caches and libraries stay warm. So "
    "launches differ by less than fresh processes do, and intervals may be too narrow.",
    "Where you may start processes yourself, use `parabench run`: it gives every launch fresh ones.",
)

# Writing 5 there resets the peak of the resident set ("proc_pid_clear_refs(5)").
CLEAR_REFS = Path("/proc/self/clear_refs")
FORGET_PEAK = "5"


def reset_process() -> bool:
    """Give back what earlier launches left in this process; whether its peak resident set counts anew.

    The random state and the peaks of CUDA's allocator are each launch's own business, which sets them itself.
    """
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    if accelerator.api().is_initialized():
        # The current device is a thread's own: in this one it is device 0, where a call without a device would make
        # a context, and wait for the wrong one (c10/cuda/CUDAEvent.h says as much of cudaEventElapsedTime).
        accelerator.api().set_device(local_device())
        accelerator.api().synchronize()
        accelerator.api().empty_cache()
    try:
        CLEAR_REFS.write_text(FORGET_PEAK)
    except OSError:
        return False
    return True
