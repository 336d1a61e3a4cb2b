"""Find the devices that this process may use, with NVML or else with torch, and describe their limits, state and links.

If the driver does not report a value, it is None, with a reason in `reasons`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pynvml

from parabench.errors import runs
from parabench.machine import versions
from parabench.machine.accelerator import Gpu
from parabench.machine.host import ROOT, facts
from parabench.machine.nvml import address_of, asked, mig_instance, session, visible_devices

# The names of `nvidia-smi topo -m` for the path between two devices.
LEVELS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "PSB",
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}

# The end of an NVLink to a switch.
SWITCH = "switch"

# The oldest compute capability of CUDA 13.
TURING = 7, 5

# NVML counts clocks in MHz and power in mW.
MEGA, MILLI = 10**6, 1e-3

# Prints the devices that torch finds if NVML reports none: AMD's, and NVIDIA's in a container without NVML. It runs in
# a child process: if this process initialized CUDA, forked processes could not use it.
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

Handle = Any
Ask = Callable[[Any], Any]

QUESTIONS: dict[str, Ask] = {
    "name": lambda handle: pynvml.nvmlDeviceGetName(handle),
    "memory_bytes": lambda handle: int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
    "compute_capability": lambda handle: ".".join(map(str, pynvml.nvmlDeviceGetCudaComputeCapability(handle))),
    "power_limit_w": lambda handle: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) * MILLI,
    "power_default_w": lambda handle: pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) * MILLI,
    "power_max_w": lambda handle: pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)[1] * MILLI,
    "sm_clock_hz": lambda handle: int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)) * MEGA,
    "sm_clock_max_hz": lambda handle: int(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)) * MEGA,
    "memory_clock_hz": lambda handle: int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)) * MEGA,
    "memory_clock_max_hz": lambda handle: int(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM)) * MEGA,
    "mig": lambda handle: bool(pynvml.nvmlDeviceGetMigMode(handle)[0]),
    "ecc": lambda handle: bool(pynvml.nvmlDeviceGetEccMode(handle)[0]),
    "pcie_generation": lambda handle: int(pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
    "pcie_generation_max": lambda handle: int(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
    "pcie_width": lambda handle: int(pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
    "pcie_width_max": lambda handle: int(pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
    "cpus": lambda handle: _cpus(handle),
}
DRIVER: dict[str, Ask] = {
    "version": lambda _: pynvml.nvmlSystemGetDriverVersion(),
    # The newest version that it supports. NVML's 12040 is 12.4.
    "cuda": lambda _: "{}.{}".format(*divmod(pynvml.nvmlSystemGetCudaDriverVersion() // 10, 100)),
}


def find_devices() -> tuple[tuple[Gpu, ...], str | None]:
    """Return the devices that this process may use, and the reason if NVML does not read them.

    If NVML reports no device, torch searches for them, unless it is a CPU build or the user hides the devices.
    """
    if importlib.metadata.version("torch").endswith("+cpu"):
        return (), "this torch is a CPU build"
    hip = versions.torch_hip()
    found: tuple[Gpu, ...] | None = None
    reason: str | None = "NVML does not read AMD devices"
    if hip is None:
        found, reason = asked(lambda: tuple(map(_gpu, visible_devices())))
    if found:
        return found, None
    if found is not None:
        reason = "no CUDA device is visible"
        if "CUDA_VISIBLE_DEVICES" in os.environ:
            return (), reason
    if hip is None and versions.torch_cuda()[0] is None:
        return (), reason
    if device_file() is None:
        return (), f"{reason}; the system has no GPU device file"
    seen = ask_torch()
    gpus = tuple(Gpu(**each) for each in seen["devices"])
    return gpus, reason if gpus else f"{reason}; torch finds no device: {seen['error'] or 'it reports none'}"


def _gpu(index: int) -> Gpu:
    whole = pynvml.nvmlDeviceGetHandleByIndex(index)
    part = mig_instance(index) or whole
    memory, _ = _asked(QUESTIONS["memory_bytes"], part)
    address, _ = _asked(address_of, whole)
    return Gpu(QUESTIONS["name"](part), memory, index, address)


def device_file() -> str | None:
    """Return the path of a device file of a GPU driver; None if there is none."""
    return next((str(path) for pattern in DEVICE_FILES for path in sorted(DEV.glob(pattern))), None)


@functools.cache
def ask_torch() -> dict[str, Any]:
    """Return {"devices": the fields of Gpu for each device that torch finds, "error": the reason if it finds none}."""
    return {"devices": []} | in_child(PROBE)


def in_child(script: str) -> dict[str, Any]:
    """Run a script in a child process, and return the JSON of its last line; {"error": reason} if there is none."""
    command = [sys.executable, "-c", script]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S, check=False)
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": f"it did not answer within {PROBE_S:g} s"}
    except (OSError, IndexError, ValueError) as error:
        return {"error": f"its process ended without an answer ({type(error).__name__})"}
    return answer


def why_unused(found: Sequence[Gpu], reason: str | None) -> str | None:
    """Return why no GPU was found although torch is built for GPUs or a GPU driver is here; otherwise None."""
    if found:
        return None
    if versions.torch_cuda()[0] is not None or versions.torch_hip() is not None:
        return reason
    there = device_file()
    return None if there is None else f"{reason}, and the system has a GPU device file ({there})"


def describe(found: Sequence[Gpu], reason: str | None = None, root: Path = ROOT) -> dict[str, Any]:
    """Return {"gpus": [...], "links": {...}, "driver": {...}} of devices.

    If NVML does not read them, for the given `reason` or because it fails, most values are None. No UUIDs or serial
    numbers are read, because they identify a device.
    """
    if found and reason is None:
        try:
            with session():
                handles = [pynvml.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in found]
                return {
                    "gpus": [{"index": gpu.index} | _device(gpu.index, root) for gpu in found],
                    "links": links(handles),
                    "driver": facts({name: _asked(ask, None) for name, ask in DRIVER.items()}),
                }
        except pynvml.NVMLError as error:
            reason = f"NVML: {error}"
    reasons = {"reasons": {"all": reason}}
    return {
        "gpus": [
            {"name": gpu.name, "memory_bytes": gpu.memory_bytes, "index": gpu.index}
            | {name: value for name in ("architecture", "multiprocessors") if (value := getattr(gpu, name)) is not None}
            for gpu in found
        ],
        "links": {"matrix": None, **reasons},
        "driver": {"version": None, "cuda": None, **reasons},
    }


def cuda_fault(driver: Mapping[str, Any], gpus: Sequence[Mapping[str, Any]], torch_cuda: str | None) -> str | None:
    """Return the reason why torch for CUDA `torch_cuda` cannot compute with this driver and these devices; else None.

    A driver supports its major version of CUDA and older ones ("CUDA Compatibility"). CUDA 13 requires Turing.
    """
    if torch_cuda is None:
        return None
    major, newest = int(torch_cuda.partition(".")[0]), driver.get("cuda")
    if newest is not None and int(newest.partition(".")[0]) < major:
        return (
            f"its driver {driver.get('version') or '(version unknown)'} runs CUDA {newest} at most, and this torch "
            f"is built for CUDA {torch_cuda}; install a newer driver, or a torch that is built for CUDA {newest}"
        )
    for gpu in gpus:
        capability = gpu.get("compute_capability")
        if major >= 13 and capability is not None and tuple(map(int, capability.split("."))) < TURING:
            return (
                f"{gpu['name']} has compute capability {capability}, and this torch is built for CUDA {torch_cuda}, "
                f"which requires {TURING[0]}.{TURING[1]}; install a torch that is built for CUDA 12"
            )
    return None


def links(handles: Sequence[Handle]) -> dict[str, Any]:
    """Return {"matrix": the connection of each pair of devices, "reasons"}, with the names of `nvidia-smi topo -m`.

    `NV4` is four active NVLinks, directly or through switches. `NV?` is an unknown number, None an unknown connection.
    """
    buses = [_asked(lambda h: address_of(h).lower(), handle)[0] for handle in handles]
    seen = [_asked(_nvlinks, handle) for handle in handles]
    reasons = {str(at): reason for at, (_, reason) in enumerate(seen) if reason}
    to_peers = [found or Counter() for found, _ in seen]

    def over_nvlink(pair: tuple[Handle, Handle]) -> int:
        return int(pynvml.nvmlDeviceGetP2PStatus(*pair, pynvml.NVML_P2P_CAPS_INDEX_NVLINK))

    matrix: list[list[str | None]] = [["X"] * len(handles) for _ in handles]
    for a in range(len(handles)):
        for b in range(a + 1, len(handles)):
            pair = handles[a], handles[b]
            direct = to_peers[a][buses[b]] or to_peers[b][buses[a]]
            count = direct or min(to_peers[a][SWITCH], to_peers[b][SWITCH])
            if count:
                cell: str | None = f"NV{count}"
            elif _asked(over_nvlink, pair)[0] == pynvml.NVML_P2P_STATUS_OK:
                # A virtual machine may hide the ends of NVLinks.
                cell = "NV?"
            elif str(a) in reasons or str(b) in reasons:
                cell = None
            else:
                cell, reason = _asked(lambda pair: LEVELS[pynvml.nvmlDeviceGetTopologyCommonAncestor(*pair)], pair)
                if reason:
                    reasons[f"{a}-{b}"] = reason
            matrix[a][b] = matrix[b][a] = cell
    return {"matrix": matrix, "reasons": reasons}


def _nvlinks(handle: Handle) -> Counter[str | None]:
    """Return the number of active NVLinks to each PCI address and to switches."""
    found: Counter[str | None] = Counter()
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            active = pynvml.nvmlDeviceGetNvLinkState(handle, link)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            break  # after the last link of this kind of device
        if not active:
            continue
        if pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            found[SWITCH] += 1
        else:
            found[pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId.lower()] += 1
    return found


def _device(index: int, root: Path) -> dict[str, Any]:
    whole = pynvml.nvmlDeviceGetHandleByIndex(index)
    part = mig_instance(index) or whole
    questions = QUESTIONS | {"numa_node": lambda of: _numa_node(of, root)}
    of_part = ("name", "memory_bytes")  # the others are read from the whole device
    return facts({name: _asked(ask, part if name in of_part else whole) for name, ask in questions.items()})


def _asked(ask: Ask, handle: Any) -> tuple[Any, str | None]:
    """Return (the result of `ask(handle)`, None); (None, the reason) if it is unknown."""
    try:
        return ask(handle), None
    except pynvml.NVMLError as error:
        return None, f"NVML: {error}"
    except OSError as error:
        return None, str(error.strerror or error)
    except LookupError as error:
        return None, f"unknown value: {error}"


def _numa_node(handle: Handle, root: Path) -> int:
    # /sys has four digits for the domain, NVML eight.
    domain, _, rest = address_of(handle).lower().partition(":")
    node = int((root / "sys/bus/pci/devices" / f"{domain[-4:]}:{rest}" / "numa_node").read_text())
    if node < 0:
        raise LookupError("the kernel does not name its NUMA node")
    return node


def _cpus(handle: Handle) -> str:
    """Return the CPUs near a device in the kernel's format: `0-15,32-47`. NVML has a bit for each, in 64-bit words."""
    words = pynvml.nvmlDeviceGetCpuAffinity(handle, -(-(os.cpu_count() or 1) // 64))
    return runs((64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1), ",")
