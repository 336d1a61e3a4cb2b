"""Read facts of the host from /sys and /proc below `root`: cores, NUMA nodes, network, and limits of its container.

Most functions return dicts for JSON. If a value is None, its reason is in `reasons`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

ROOT = Path("/")

# Control groups of version 1 have a limit below this. "No limit" is the largest multiple of a page in 63 bits.
NO_LIMIT_BYTES = 1 << 60


def processor_name(root: Path = ROOT) -> str | None:
    """Return the model of the processor; None if the kernel does not report it."""
    found = re.search(r"^model name[^:\n]*:(.*)", _text(root / "proc/cpuinfo") or "", re.MULTILINE)
    return found[1].strip() if found else None


def processor(root: Path = ROOT) -> dict[str, Any]:
    """Return {"sockets", "physical_cores", "logical_cores"} of the whole host, even if this process may not use all."""
    threads = [path / "topology" for path in (root / "sys/devices/system/cpu").glob("cpu[0-9]*")]
    where = [(_text(each / "physical_package_id"), _text(each / "core_id")) for each in threads]
    known = [pair for pair in where if None not in pair]
    reason = "the kernel does not report it in /sys/devices/system/cpu"
    return facts(
        {
            "sockets": (len({package for package, _ in known}) or None, reason),
            "physical_cores": (len(set(known)) or None, reason),
            "logical_cores": (len(known) or None, reason),
        }
    )


def numa(root: Path = ROOT) -> dict[str, Any]:
    """Return {"nodes": [{"node", "cpus", "memory_bytes"}]} of the NUMA nodes, with CPUs such as `0-15,32-47`."""
    nodes = []
    for path in sorted((root / "sys/devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        total = re.search(r"MemTotal:\s+(\d+) kB", _text(path / "meminfo") or "")
        nodes.append(
            {
                "node": int(path.name[4:]),
                "cpus": _text(path / "cpulist"),
                "memory_bytes": int(total[1]) * 1024 if total else None,
            }
        )
    return facts({"nodes": (nodes or None, "the kernel does not report it in /sys/devices/system/node")})


def network(root: Path = ROOT) -> dict[str, Any]:
    """Return {"interfaces": network interfaces that are up, "infiniband": ports}, without loopback and addresses."""
    interfaces = [
        {"name": name, "bits_per_s": stats.speed * 10**6 if stats.speed > 0 else None}
        for name, stats in sorted(psutil.net_if_stats().items())
        if stats.isup and "loopback" not in stats.flags
    ]
    ports = []
    for path in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        rate = re.match(r"([\d.]+) Gb/sec", _text(path / "rate") or "")
        ports.append(
            {
                "name": path.parent.parent.name,
                "port": int(path.name),
                "bits_per_s": int(float(rate[1]) * 10**9) if rate else None,
                "state": (_text(path / "state") or "unknown").rpartition(": ")[2].lower(),
                "layer": _text(path / "link_layer"),
            }
        )
    return {"interfaces": interfaces, "infiniband": ports}


def container(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return {"kind" of the container of this process, "cores" and "memory_bytes" that its control groups allow}."""
    kinds = {
        "kubernetes": "KUBERNETES_SERVICE_HOST" in environ,
        "apptainer": bool({"APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"} & environ.keys()),
        "docker": (root / ".dockerenv").exists(),
        "podman": (root / "run/.containerenv").exists(),
        "lxc": _text(root / "run/systemd/container") == "lxc",
    }
    kind, no_limit = next((kind for kind, found in kinds.items() if found), None), "no limit is set"
    return facts(
        {
            "kind": (kind, "no container is detected"),
            "cores": (core_limit(root), no_limit),
            "memory_bytes": (memory_limit(root), no_limit),
        }
    )


def core_limit(root: Path = ROOT) -> float | None:
    """Return the number of cores that the control groups allow, such as 1.5; None without a limit."""
    shares = []
    for folder in _groups(root, "cpu"):
        quota, period = (_text(folder / "cpu.max") or "max 1").split()
        if quota == "max":
            quota = _text(folder / "cpu.cfs_quota_us") or "-1"
            period = _text(folder / "cpu.cfs_period_us") or "1"
        if int(quota) > 0:
            shares.append(int(quota) / int(period))
    return min(shares, default=None)


def memory_limit(root: Path = ROOT) -> int | None:
    """Return the number of bytes that the control groups allow; None without a limit."""
    limits = []
    for folder in _groups(root, "memory"):
        limit = _text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes") or "max"
        if limit != "max" and int(limit) < NO_LIMIT_BYTES:
            limits.append(int(limit))
    return min(limits, default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the control groups of this process and their parents, which may have limits.

    Version 2 has one tree for all controllers, version 1 has one tree for each.
    """
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, names, path = line.split(":", 2)
        if names == "" or controller in names.split(","):
            top = root / "sys/fs/cgroup" / (controller if names else "")
            below = top / path.lstrip("/")
            while below != top:
                yield below
                below = below.parent
            yield top


def facts(values: Mapping[str, tuple[Any, str | None]]) -> dict[str, Any]:
    """Return {name: value}, and "reasons" for the values that are None, from {name: (value, reason)}."""
    known: dict[str, Any] = {name: value for name, (value, _) in values.items()}
    return known | {"reasons": {name: reason for name, (value, reason) in values.items() if value is None}}


def _text(path: Path) -> str | None:
    """Return a file's text without surrounding space; None if it is empty or cannot be read."""
    try:
        return path.read_text().strip() or None
    except (OSError, ValueError):
        return None
