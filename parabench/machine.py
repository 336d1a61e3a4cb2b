"""What this machine has: what may run here, and what the record says of where it ran. Free of torch."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

# On the CPU more ranks than cores still compute the right thing, slowly; beyond this it measures the scheduler.
RANKS_PER_CORE = 4

VERSIONS = ("torch", "numpy", "pandas", "scipy", "plotly", "pytest-benchmark", "nvidia-ml-py")

# Only these are recorded: what changes how training runs, and nothing that could be a secret.
ENVIRONMENT_VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "GLOO_SOCKET_IFNAME",
    "KMP_AFFINITY", "MKL_NUM_THREADS", "NCCL_ALGO", "NCCL_DEBUG", "NCCL_IB_DISABLE", "NCCL_NET", "NCCL_P2P_DISABLE",
    "NCCL_PROTO", "NCCL_SHM_DISABLE", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS", "OMP_PROC_BIND",
    "PYTORCH_CUDA_ALLOC_CONF", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gpu:
    """One visible NVIDIA device."""

    name: str
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Machine:
    """What the planner needs. `gpus_reason` says why `gpus` is empty."""

    cores: int
    gpus: tuple[Gpu, ...] = ()
    gpus_reason: str | None = None

    def ranks(self, device: str) -> int:
        """How many ranks may run on `device` ("cpu" or "cuda")."""
        return len(self.gpus) if device == "cuda" else self.cores * RANKS_PER_CORE


def this_machine() -> Machine:
    """What this process may use: its cores, and the devices that NVML and CUDA_VISIBLE_DEVICES show."""
    gpus, reason = _gpus()
    return Machine(cores=cores(), gpus=gpus, gpus_reason=reason)


def cores() -> int:
    """Cores this process may use: its affinity, or the container's share when that is less."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return allowed if quota == "max" else max(1, min(allowed, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return allowed


def _gpus() -> tuple[tuple[Gpu, ...], str | None]:
    import pynvml

    if importlib.metadata.version("torch").endswith("+cpu"):
        return (), "this torch is a CPU build"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return (), f"NVML is not available: {error}"
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            try:
                memory: int | None = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
            except pynvml.NVMLError:
                memory = None
            name = pynvml.nvmlDeviceGetName(handle)
            found.append(Gpu(name if isinstance(name, str) else name.decode(), memory))
    except pynvml.NVMLError as error:
        return (), f"NVML failed: {error}"
    finally:
        pynvml.nvmlShutdown()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        # CUDA stops at the first entry it does not know; names other than indices are counted as one device each.
        entries = [entry.strip() for entry in visible.split(",") if entry.strip() and entry.strip() != "-1"]
        found = [found[int(e)] if e.isdigit() and int(e) < len(found) else found[0] for e in entries] if found else []
    return tuple(found), None if found else "no CUDA device is visible"


def environment(machine: Machine) -> dict[str, Any]:
    """What is recorded of `machine`, this one, with a session; JSON-able. Unknown is None with a reason beside it."""
    return {
        "host": socket.gethostname(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "cpu": _cpu_name(),
        "cores": machine.cores,
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": [asdict(gpu) for gpu in machine.gpus],
        "nvml": {"available": bool(machine.gpus), "reason": machine.gpus_reason},
        "versions": {name: _version(name) for name in VERSIONS},
        "env": {name: os.environ[name] for name in ENVIRONMENT_VARIABLES if name in os.environ},
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
