"""Devices that torch finds if NVML reports none: AMD's, and NVIDIA's in a container without NVML. Free of torch.

A child process imports torch: if this process initialized CUDA, forked processes could not use it.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parabench.machine import versions
from parabench.machine.accelerator import Gpu

PROBE = """
import json, torch
seen = {"devices": [], "error": None}
try:
    torch.cuda.init()
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        place = [getattr(about, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
        seen["devices"].append({
            "name": about.name,
            "memory_bytes": about.total_memory,
            "index": index,
            "address": None if None in place else "{:08X}:{:02X}:{:02X}.0".format(*place),
            "architecture": about.gcnArchName if torch.version.hip else f"sm_{about.major}{about.minor}",
            "multiprocessors": about.multi_processor_count,
        })
except Exception as error:
    seen["error"] = (str(error).strip() or type(error).__name__).splitlines()[0]
print(json.dumps(seen))
"""
# The first import of torch from a cold network file system takes minutes.
PROBE_S = 180.0

# Device files of drivers: NVIDIA's (also Jetson), AMD's, and WSL's. Without one, torch is not imported.
DEVICE_FILES = ("nvidia[0-9]*", "nvidiactl", "nvhost*", "nvmap", "kfd", "dxg")
DEV = Path("/dev")


def devices(reason: str | None) -> tuple[tuple[Gpu, ...], str | None]:
    """Return torch's devices and the `reason` why NVML does not read them; or no devices, and all reasons."""
    if versions.torch_cuda()[0] is None and versions.torch_hip() is None:
        return (), reason
    if device_file() is None:
        return (), f"{reason}; the system has no GPU device file"
    seen = ask()
    found = tuple(Gpu(**each) for each in seen["devices"])
    return found, reason if found else f"{reason}; torch finds no device: {seen['error'] or 'it reports none'}"


def device_file() -> str | None:
    """Return a device file of a GPU driver; None if there is none."""
    return next((str(path) for pattern in DEVICE_FILES for path in sorted(DEV.glob(pattern))), None)


@functools.cache
def ask(run: Callable[..., Any] = subprocess.run) -> dict[str, Any]:
    """Return the report of a child process: {"devices": fields of Gpu for each, "error": the reason if none}."""
    return {"devices": []} | in_child(PROBE, run)


def in_child(script: str, run: Callable[..., Any] = subprocess.run) -> dict[str, Any]:
    """Run a script in a child process, and return the JSON of its last line; {"error": reason} if there is none."""
    try:
        done = run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PROBE_S, check=False)
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": f"it did not answer within {PROBE_S:g} s"}
    except (OSError, IndexError, ValueError) as error:
        return {"error": f"its process ended without an answer ({type(error).__name__})"}
    return answer


def unused(found: tuple[Gpu, ...], reason: str | None) -> str | None:
    """Return why no GPU is used although torch or a driver is made for one; None if a GPU is `found`, or neither is."""
    if found:
        return None
    if versions.torch_cuda()[0] is not None or versions.torch_hip() is not None:
        return reason
    there = device_file()
    return None if there is None else f"{reason}, and the system has a GPU device file ({there})"
