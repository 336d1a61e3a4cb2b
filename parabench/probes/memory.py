"""Peak memory of a rank's measured steps, read once, after the last of them."""

from __future__ import annotations

import gc
import resource

import torch


def forget_building(device: torch.device) -> None:
    """Give back what building needed and training does not: whole layers that another rank keeps would stay reserved.

    Before the warm-up, in which the allocator asks for what steps need, so that no measured step has to.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def forget_peak(device: torch.device) -> None:
    """Count from here, where the measured steps begin; what is held and reserved now counts."""
    if device.type == "cuda":
        for each in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(each)


def peak_memory(device: torch.device) -> dict[str, float]:
    """{metric: bytes}: the process' peak resident set, and on CUDA what torch's allocator gave out and held.

    Of a process that drives several devices it is the fullest one's; on devices that it does not use the allocator has
    nothing.
    """
    # Linux counts ru_maxrss in KiB.
    peaks = {"peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0}
    if device.type == "cuda":
        devices = range(torch.cuda.device_count())
        peaks["peak_allocated_bytes"] = float(max(map(torch.cuda.max_memory_allocated, devices)))
        peaks["peak_reserved_bytes"] = float(max(map(torch.cuda.max_memory_reserved, devices)))
    return peaks
