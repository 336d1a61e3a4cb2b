"""Decide whether launches of both variants fit into memory at the same time, on the host or on the ranks' devices.

A variant describes its `Need` as {"parts": [{"place", "bytes", "free_bytes"}]}, or {"unknown": reason}.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from parabench.machine.host import memory_limit
from parabench.machine.nvml import free_memory
from parabench.plan.case import Case
from parabench.plan.cohorts import SEEN_SHARE, launch_bytes
from parabench.store.record import GB

# The device memory of a rank beyond the memory that torch's allocator reserves: CUDA's context and NCCL's buffers. This
# is an assumption. It was not measured on a GPU.
CONTEXT_BYTES = 1 << 30

Need = dict[str, Any]


def host_need(cases: Sequence[Case], peaks: Mapping[str, Sequence[float]]) -> Need:
    """Return the host memory that a CPU launch of these cases needs. `peaks` has the bytes of each rank, by case id."""
    own = psutil.Process().memory_info().rss  # about the memory of a rank before it builds anything
    needs = sum(max(0.0, peak - own) for case in cases for peak in peaks.get(case.id, ()))
    free = min(psutil.virtual_memory().available, memory_limit() or sys.maxsize)
    return {"parts": [{"place": "host memory", "bytes": needs, "free_bytes": free}]}


def device_need(cases: Sequence[Case], held: Mapping[str, float]) -> Need:
    """Return the memory that a launch of these cases needs on devices. `held` has the bytes of a rank, by case id."""
    unseen = next((case.label for case in cases if case.id not in held), None)
    if unseen is not None:
        return {"unknown": f"the device memory of the ranks of {unseen} is not known"}
    size = max(case.world_size for case in cases)
    there = free_memory(size)
    if not there:
        return {"unknown": "NVML does not list the devices that the ranks use"}
    needs = -(-size // len(there)) * (launch_bytes(cases, held) + CONTEXT_BYTES)
    free_bytes = {f"device {each.number} ({each.address})": free and SEEN_SHARE * free for each, free in there}
    return {"parts": [{"place": place, "bytes": needs, "free_bytes": free} for place, free in free_bytes.items()]}


def lack_of_memory(needs: Sequence[Need]) -> str | None:
    """Return why launches with these needs cannot run at the same time; `None` if they can."""
    if unknown := next((each["unknown"] for each in needs if "unknown" in each), None):
        return str(unknown)
    parts = [part for each in needs for part in each["parts"]]
    for place in dict.fromkeys(part["place"] for part in parts):
        of_place = [part for part in parts if part["place"] == place]
        free = [part["free_bytes"] for part in of_place]
        if None in free:
            return f"the free memory of {place} is not known"
        if (least := sum(part["bytes"] for part in of_place)) > (most := min(free)):
            return f"both variants at once need {least / GB:.1f} GB of {place}, and {most / GB:.1f} GB may be taken"
    return None
