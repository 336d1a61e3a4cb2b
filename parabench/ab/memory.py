"""Whether launches of both sides fit into memory at the same time: into the host's, or into that of the devices that
their ranks use."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import psutil

from parabench.machine.host import memory_limit
from parabench.machine.sharing import free_memory
from parabench.plan.case import Case
from parabench.plan.cohorts import SEEN_SHARE, launch_bytes
from parabench.store.record import GB

# What a rank takes of its device besides what torch's allocator has reserved: CUDA's context with the kernels that are
# loaded, a few hundred MB by common experience with CUDA 12, and NCCL's buffers for the groups of a few cases. An
# assumption, not yet measured on a GPU.
CONTEXT_BYTES = 1 << 30

Need = dict[str, Any]


def host_need(cases: Sequence[Case], peaks: Mapping[str, Sequence[float]]) -> Need:
    """{"bytes"}: what a launch that the cases share takes of the host, as far as launches of their own have shown it;
    `peaks` are of each case's ranks, by its id."""
    own = psutil.Process().memory_info().rss  # about what a rank has before it builds anything
    seen = (peaks.get(case.id, ()) for case in cases)
    return {"bytes": sum(max(0.0, peak - own) for each in seen for peak in each)}


def device_need(cases: Sequence[Case], held: Mapping[str, float]) -> Need:
    """{"bytes": of the host, not counted, "devices": what the launch takes of each device that its ranks use, and what
    is free there}; with why it is "unknown" where it is. A rank of each case has `held` so much, by the case's id, in a
    launch of its own."""
    unseen = next((case.label for case in cases if case.id not in held), None)
    if unseen is not None:
        return {"bytes": 0.0, "unknown": f"what the ranks of {unseen} hold of their devices is not known"}
    size = max(case.world_size for case in cases)
    there = free_memory(size)
    if not there:
        return {"bytes": 0.0, "unknown": "NVML does not tell which devices the ranks use"}
    needs = -(-size // len(there)) * (launch_bytes(cases, held) + CONTEXT_BYTES)
    return {"bytes": 0.0, "devices": [asdict(each) | {"bytes": needs} for each in there]}


def lack_of_memory(needs: Sequence[Need]) -> str | None:
    """Why launches that have these needs cannot be there at the same time; None where they can."""
    for each in needs:
        if "unknown" in each:
            return str(each["unknown"])
    by_device: dict[str, list[dict[str, Any]]] = {}
    for each in needs:
        for device in each.get("devices", ()):
            by_device.setdefault(device["address"], []).append(device)
    for of in by_device.values():
        number, free = of[0]["number"], [device["free_bytes"] for device in of]
        if None in free:
            return f"how much memory of device {number} is free is not known"
        if (least := sum(device["bytes"] for device in of)) > (most := SEEN_SHARE * min(free)):
            return (
                f"both sides at once need {least / GB:.1f} GB of device {number}, and of its free memory "
                f"{most / GB:.1f} GB may be taken"
            )
    most = min(psutil.virtual_memory().available, memory_limit() or sys.maxsize)
    if (least := sum(each["bytes"] for each in needs)) > most:
        return f"both sides at once need {least / GB:.1f} GB of memory, and {most / GB:.1f} GB are free"
    return None
