"""Peak memory of a rank, read once, after the last step."""

from __future__ import annotations

import resource

import torch


def forget_peak(device: torch.device) -> None:
    """Count from here: what building took at most, whole layers that another rank keeps, is no part of training."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> dict[str, float]:
    """{metric: bytes}: the process' peak resident set, and on CUDA what torch's allocator gave out and held."""
    # Linux counts ru_maxrss in KiB.
    peaks = {"peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0}
    if device.type == "cuda":
        peaks["peak_allocated_bytes"] = float(torch.cuda.max_memory_allocated(device))
        peaks["peak_reserved_bytes"] = float(torch.cuda.max_memory_reserved(device))
    return peaks
