"""Find the resources of this machine for the planner, and the facts that sessions record, without importing torch."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from parabench.errors import UsageError
from parabench.machine import accelerator, host, versions
from parabench.machine.accelerator import Gpu
from parabench.machine.versions import Nccl, this_nccl

# With more ranks on the CPU, results would depend on the scheduler.
RANKS_PER_CORE = 4

# The recorded environment variables. They affect training, and cannot be secrets.
ENVIRONMENT_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_VISIBLE_DEVICES", "ENABLE_INTRA_NODE_COMM",
    "FI_EFA_FORK_SAFE", "FI_EFA_USE_DEVICE_RDMA", "FI_PROVIDER", "GLOO_SOCKET_IFNAME", "GOMP_CPU_AFFINITY",
    "HIP_LAUNCH_BLOCKING", "HIP_VISIBLE_DEVICES",
    "IBV_FORK_SAFE", "KMP_AFFINITY", "KMP_BLOCKTIME", "MKL_NUM_THREADS", "NCCL_ALGO", "NCCL_BUFFSIZE",
    "NCCL_CROSS_NIC", "NCCL_CTA_POLICY", "NCCL_CUMEM_ENABLE", "NCCL_DEBUG", "NCCL_DMABUF_ENABLE",
    "NCCL_IB_ADAPTIVE_ROUTING", "NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX", "NCCL_IB_HCA",
    "NCCL_IB_PCI_RELAXED_ORDERING", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_SL", "NCCL_IB_TC", "NCCL_IB_TIMEOUT",
    "NCCL_LAUNCH_ORDER_IMPLICIT", "NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS",
    "NCCL_MNNVL_ENABLE",
    "NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_NET", "NCCL_NET_GDR_LEVEL", "NCCL_NTHREADS", "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_P2P_NVL_CHUNKSIZE", "NCCL_PAT_ENABLE", "NCCL_PROTO", "NCCL_PXN_DISABLE",
    "NCCL_SHM_DISABLE", "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_NTHREADS", "NCCL_WIN_ENABLE", "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND", "OPENBLAS_NUM_THREADS", "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF", "RDMAV_FORK_SAFE", "ROCR_VISIBLE_DEVICES", "TORCHINDUCTOR_COMPILE_THREADS",
    "TORCHINDUCTOR_CUDAGRAPHS",
    "TORCHINDUCTOR_FREEZING", "TORCHINDUCTOR_MAX_AUTOTUNE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_DISTRIBUTED_USE_TORCHCOMMS", "TORCH_FR_BUFFER_SIZE", "TORCH_FR_CPP_STACK",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_AVOID_RECORD_STREAMS", "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_CUDA_EVENT_CACHE", "TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_ENABLE_TIMING",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_NCCL_HIGH_PRIORITY", "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_NCCL_USE_COMM_NONBLOCKING", "UCX_NET_DEVICES", "UCX_TLS",
)  # fmt: skip

# These variables may hold paths. Only the fact that they are set is recorded.
PATH_VARIABLES = (
    "CUDA_MPS_LOG_DIRECTORY", "CUDA_MPS_PIPE_DIRECTORY", "LD_PRELOAD", "NCCL_CONF_FILE", "NCCL_GRAPH_FILE",
    "NCCL_NET_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_TOPO_FILE", "NCCL_TUNER_PLUGIN", "TORCHINDUCTOR_CACHE_DIR",
)  # fmt: skip
SET = "set"

# Files that NCCL reads (src/misc/param.cc).
NCCL_FILES = {"/etc/nccl.conf": Path("/etc/nccl.conf"), "~/.nccl.conf": Path("~/.nccl.conf")}

# {device: memory of a node for all ranks ("cpu"), or of each accelerator}; None if it is unknown.
Room = Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources of a machine, or of each node of a session on several nodes."""

    cores: int
    gpus: tuple[Gpu, ...] = ()  # the visible devices
    gpus_reason: str | None = None  # why NVML does not read the devices; None if it does
    cpu_reason: str | None = None  # why no GPU is used although torch or a driver supports one
    nodes: int = 1
    ranks_per_node: int | None = None  # the user's limit
    nccl: Nccl = field(default_factory=Nccl)
    cuda_fault: str | None = None  # why this torch cannot use `gpus`
    memory_bytes: int | None = None  # that processes may use; None if unknown

    @property
    def room(self) -> Room:
        """The memory in bytes for the training runs of one launch, by type of device."""
        known = [gpu.memory_bytes for gpu in self.gpus if gpu.memory_bytes is not None]
        return {"cpu": self.memory_bytes, accelerator.TYPE: min(known, default=None)}

    def ranks(self, device: str) -> int:
        """Return the number of ranks that a node may run on `device` ("cpu" or "cuda")."""
        most = len(self.gpus) if device == accelerator.TYPE else self.cores * RANKS_PER_CORE
        return most if self.ranks_per_node is None else min(most, self.ranks_per_node)

    def nodes_for(self, world_size: int) -> int:
        """Return the smallest number of nodes that can run `world_size` ranks, the same number each; 1 if none can."""
        if world_size < 1:
            return 1
        most = self.ranks_per_node or world_size
        return next((n for n in range(-(-world_size // most), self.nodes + 1) if world_size % n == 0), 1)

    def world_sizes(self, device: str) -> list[int]:
        """Return 1, 2, 4, ... up to a node's devices or cores, and then the world sizes of 2, 4, ... and all nodes."""
        most = self.ranks_per_node or (len(self.gpus) if device == accelerator.TYPE else self.cores)
        sizes = [2**i for i in range(max(1, most).bit_length())]
        if self.ranks_per_node is not None:
            sizes += [most * 2**i for i in range(self.nodes.bit_length())] + [most * self.nodes]
        return list(dict.fromkeys(sizes))


def this_machine() -> Machine:
    """Return what this process may use: its cores, its memory and the visible devices.

    Raises:
        UsageError: If /proc is not mounted.
    """
    from parabench.machine import gpus

    try:
        memory_bytes = psutil.virtual_memory().total
    except FileNotFoundError as error:
        raise UsageError(
            f"{error.filename} is missing, and processes are read from /proc; mount it (mount -t proc proc /proc)"
        ) from error
    found, reason = gpus.find_devices()
    fault = None
    if found and reason is None:
        record = gpus.describe(found)
        fault = gpus.cuda_fault(record["driver"], record["gpus"], versions.torch_cuda()[0])
    # The affinity of this process, or the container's share if that is less.
    allowed, limit = len(os.sched_getaffinity(0)), host.core_limit()
    return Machine(
        cores=allowed if limit is None else max(1, min(allowed, round(limit))),
        gpus=found,
        gpus_reason=reason,
        cpu_reason=gpus.why_unused(found, reason),
        nccl=this_nccl(),
        cuda_fault=fault,
        memory_bytes=min(memory_bytes, host.memory_limit() or sys.maxsize),
    )


def environment(machine: Machine) -> dict[str, Any]:
    """Return the facts of this machine that a session records, for JSON. Unknown values are None with a reason.

    They do not contain users, paths, addresses, serial numbers or remotes.
    """
    from parabench.machine import gpus

    installed, unknown_versions = versions.installed()
    nvml_reads = bool(machine.gpus) and machine.gpus_reason is None
    return {
        "host": socket.gethostname(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "cpu": host.processor_name() or platform.machine(),
        "cores": machine.cores,
        "processor": host.processor(),
        "memory_bytes": psutil.virtual_memory().total,
        "numa": host.numa(),
        **gpus.describe(machine.gpus, machine.gpus_reason),
        "nvml": {"available": nvml_reads, "reason": machine.gpus_reason},
        "network": host.network(),
        "container": host.container(),
        "versions": installed,
        "unknown_versions": unknown_versions,
        "git": versions.git(Path.cwd()),
        "env": {name: os.environ[name] for name in ENVIRONMENT_VARIABLES if name in os.environ}
        | {name: SET for name in PATH_VARIABLES if os.environ.get(name)},
        "nccl_files": [name for name, path in NCCL_FILES.items() if os.path.isfile(os.path.expanduser(path))],
    }
