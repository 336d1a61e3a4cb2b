"""Check the GPUs for `doctor`: can torch compute on them, and do settings make them slow?

Each check gives a row with a verdict, and with advice unless it is ok. The verdict of an unreported value is unknown.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Final, Literal

import pynvml

from parabench.machine.gpus import in_child
from parabench.machine.host import ROOT, network
from parabench.machine.machine import Machine
from parabench.machine.nvml import session
from parabench.records import Record

Level = Literal["ok", "warning", "fault", "unknown"]
OK: Final = "ok"
WARNING: Final = "warning"
FAULT: Final = "fault"
UNKNOWN: Final = "unknown"

GIB = 1 << 30
# NCCL needs some MiB for each pair of ranks, and loaders need a batch for each worker. docker's default is 64 MiB.
SHM_BYTES = GIB

# The first kernel on each device finds faults such as a missing fabric manager (802), a device in exclusive use by
# another process, missing code for the device, and broken memory.
PROBE = """
import json, torch
seen = {"archs": [], "devices": []}
try:
    torch.zeros(1, device="cuda")
    seen["archs"] = torch.cuda.get_arch_list()
    for index in range(torch.cuda.device_count()):
        try:
            torch.zeros(1, device=index).add_(1).item()
            seen["devices"].append(None)
        except Exception as error:
            seen["devices"].append(str(error).strip().splitlines()[0])
except Exception as error:
    seen["error"] = str(error).strip().splitlines()[0]
print(json.dumps(seen))
"""


class Row(Record, frozen=True):
    """The result of a check of a GPU ("GPU0") or of the host ("host"), with `advice` unless it is ok."""

    where: str
    what: str
    value: str
    verdict: Level = OK
    advice: str = ""

    def __str__(self) -> str:
        line = f"{self.where} {self.what}: {self.value}"
        return line if self.verdict == OK else f"{line} ({self.verdict}; {self.advice})"


# A value, its verdict, and advice unless it is ok.
Verdict = tuple[str, Level, str]


def check(machine: Machine, gpus: Sequence[Mapping[str, Any]], root: Path = ROOT) -> list[Row]:
    """Return the rows of all checks; no rows if the machine has no devices. `gpus` are the records of the devices."""
    if not machine.gpus:
        return []
    fit: Verdict = ("match", OK, "")
    if machine.cuda_fault is not None:
        value, _, remedy = machine.cuda_fault.rpartition("; ")
        fit = value, FAULT, remedy
    rows = [Row("host", "driver and torch", *fit), *_probed(in_child(PROBE), gpus)]
    if machine.gpus_reason is not None:
        unread = "health, clocks and energy of devices are not read"
        return [*rows, Row("host", "NVML", machine.gpus_reason, UNKNOWN, unread), *host_rows(root)]
    try:
        with session():
            handles = [pynvml.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in machine.gpus]
            for at, handle in enumerate(handles):
                rows += [_asked(f"GPU{at}", what, ask, handle) for what, ask in QUESTIONS.items()]
            for at, gpu in enumerate(gpus):
                rows += _recorded(f"GPU{at}", gpu)
            if len(handles) > 1:
                peers = partial(_peers, names=[gpu.name for gpu in machine.gpus])
                rows.append(_asked("host", "peer access", peers, handles))
    except pynvml.NVMLError as error:
        rows.append(Row("host", "NVML", str(error), UNKNOWN, "look at the device with nvidia-smi"))
    return [*rows, *host_rows(root)]


def _probed(seen: Mapping[str, Any], gpus: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Yield rows about torch from the output of PROBE: can it compute on each device, and is it built for it?"""
    if "error" in seen:
        yield Row("host", "torch on CUDA", seen["error"], FAULT, "no launch on CUDA can start; fix this first")
        return
    for at, error in enumerate(seen["devices"]):
        advice = "nothing can be launched on it; see nvidia-smi -q, and the processes that use it"
        yield Row(f"GPU{at}", "a first kernel", error or "ran", FAULT if error else OK, advice)
    for at, gpu in enumerate(gpus):
        capability = gpu.get("compute_capability")
        if capability is not None and seen["archs"] and not built_for(capability, seen["archs"]):
            value = f"{capability}, and this torch has code for {' '.join(seen['archs'])}"
            yield Row(f"GPU{at}", "compute capability", value, FAULT, "install a torch that is built for the device")


def built_for(capability: str, archs: Sequence[str]) -> bool:
    """Return whether code for these architectures (torch.cuda.get_arch_list) runs on a device.

    A cubin runs on devices with the same major version and the same or a later minor version. PTX runs on all later
    devices, too (CUDA programming guide, "Compute Capabilities").
    """
    device = tuple(map(int, capability.split(".")))
    for arch in archs:
        kind, _, digits = arch.partition("_")
        digits = digits.rstrip("af")
        code = int(digits[:-1]), int(digits[-1])
        if code <= device and (kind == "compute" or code[0] == device[0]):
            return True
    return False


def _asked(where: str, what: str, ask: Callable[[Any], Verdict], of: Any) -> Row:
    try:
        return Row(where, what, *ask(of))
    except Exception as error:  # other versions of the driver fail in many ways
        return Row(where, what, "unknown", UNKNOWN, str(error) or type(error).__name__)


def _persistence(handle: Any) -> Verdict:
    advice = "nvidia-smi -pm 1: else the driver unloads with its last user, and clock settings are lost"
    return ("on", OK, "") if pynvml.nvmlDeviceGetPersistenceMode(handle) else ("off", WARNING, advice)


def _compute_mode(handle: Any) -> Verdict:
    mode = pynvml.nvmlDeviceGetComputeMode(handle)
    if mode == pynvml.NVML_COMPUTEMODE_DEFAULT:
        return "default", OK, ""
    if mode == pynvml.NVML_COMPUTEMODE_PROHIBITED:
        return "prohibited", FAULT, "nvidia-smi -c DEFAULT: no process may compute on it"
    return "exclusive", WARNING, "nvidia-smi -c DEFAULT: one process may compute on it, so ranks cannot share it"


def _clocks(handle: Any) -> Verdict:
    reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    if reasons & CHOSEN_CLOCKS:
        return "locked by a setting", WARNING, "compare only with devices at the same clocks; nvidia-smi -rgc"
    return ("idle, so a lock is not visible" if reasons & IDLE else "free"), OK, ""


# nvmlClocksEventReason... in nvml.h.
IDLE, CHOSEN_CLOCKS = 0x1, 0x2


def _ecc(handle: Any) -> Verdict:
    kind = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    count = pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, pynvml.NVML_VOLATILE_ECC)
    advice = "reset the device, and discard its results"
    return f"{count} uncorrected since the driver was loaded", FAULT if count else OK, advice


def _remapped(handle: Any) -> Verdict:
    corrected, uncorrected, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    rows = f"{corrected + uncorrected} rows"
    if failed:
        return f"{rows}, and one more failed", FAULT, "replace the device: it has no spare rows left"
    if pending:
        return f"{rows}, others are pending", WARNING, "reset the device, so that it takes effect"
    return rows, OK, ""


def _fabric(handle: Any) -> Verdict:
    info = pynvml.c_nvmlGpuFabricInfo_t()
    pynvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    if info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        return "none", OK, ""
    if info.state != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED:
        # If the device requires the fabric, its first kernel is a FAULT above.
        return "not registered", UNKNOWN, "if CUDA fails with error 802, start nvidia-fabricmanager"
    if info.status != pynvml.NVML_SUCCESS:
        return "registration failed", FAULT, "see the log of nvidia-fabricmanager"
    return "registered", OK, ""


QUESTIONS: dict[str, Callable[[Any], Verdict]] = {
    "persistence mode": _persistence,
    "compute mode": _compute_mode,
    "clocks": _clocks,
    "ECC errors": _ecc,
    "remapped rows": _remapped,
    "fabric": _fabric,
}


def _recorded(where: str, gpu: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows that need only the record of a device."""
    limit, default = gpu.get("power_limit_w"), gpu.get("power_default_w")
    if limit is not None and default is not None:
        advice = "nvidia-smi -pl: the device is slower than others of its kind"
        value = f"{limit:g} W, by default {default:g}"
        yield Row(where, "power limit", value, WARNING if limit < default else OK, advice)
    if gpu.get("mig"):
        yield Row(
            where, "MIG", "on", WARNING, "ranks run on instances: NVML reads little about them, and NCCL uses only one"
        )
    width, widest = gpu.get("pcie_width"), gpu.get("pcie_width_max")
    if width is not None and widest is not None:
        advice = "reseat the device, or check the slot: its link has lost lanes"
        yield Row(where, "PCIe lanes", f"{width} of {widest}", WARNING if width < widest else OK, advice)


def _peers(handles: Sequence[Any], names: Sequence[str]) -> Verdict:
    """Check that the devices can read each other's memory."""
    apart = [
        (a, b)
        for (a, first), (b, second) in combinations(enumerate(handles), 2)
        if pynvml.nvmlDeviceGetP2PStatus(first, second, pynvml.NVML_P2P_CAPS_INDEX_READ) != pynvml.NVML_P2P_STATUS_OK
    ]
    if not apart:
        return "each device can read the memory of the others", OK, ""
    value = f"no access between {', '.join(f'GPU{a}-GPU{b}' for a, b in apart)}"
    if all("GeForce" in names[at] for pair in apart for at in pair):
        return f"{value}: GeForce devices do not have it over PCIe, so NCCL uses host memory", OK, ""
    return value, WARNING, "NCCL uses host memory between them; check ACS and the IOMMU"


def host_rows(root: Path = ROOT) -> Iterator[Row]:
    """Yield rows about the host: shared memory and, with InfiniBand, locked memory and GPUDirect."""
    yield _asked("host", "free /dev/shm", _free_shm, root)
    if not network(root)["infiniband"]:
        return
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    unlimited = limit == resource.RLIM_INFINITY
    value = "unlimited" if unlimited else f"{limit / GIB:.2g} GiB"
    advice = "ulimit -l unlimited: InfiniBand locks the memory that it sends"
    yield Row("host", "locked memory", value, OK if unlimited else WARNING, advice)
    yield Row("host", "GPUDirect RDMA", *_gpudirect(root))


def _free_shm(root: Path) -> Verdict:
    shm = os.statvfs(root / "dev/shm")
    free = shm.f_bavail * shm.f_frsize
    advice = "docker run --shm-size=8g, or --ipc=host: NCCL between processes and loaders' workers need it"
    return f"{free / GIB:.2g} GiB", WARNING if free < SHM_BYTES else OK, advice


def _gpudirect(root: Path) -> Verdict:
    if any((root / "sys/module" / name).is_dir() for name in ("nvidia_peermem", "nv_peer_mem")):
        return "by nvidia_peermem", OK, ""
    try:
        if "Open Kernel Module" in (root / "proc/driver/nvidia/version").read_text():
            return "by DMA-BUF, from Linux 5.12 on", OK, ""
    except OSError:
        pass
    return "neither nvidia_peermem nor DMA-BUF", WARNING, "modprobe nvidia_peermem: else data goes through host memory"
