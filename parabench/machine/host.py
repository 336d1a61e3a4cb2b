"""What the host is made of, read from /sys and /proc: cores, NUMA nodes, network, and what its container allows.

Every group of facts is a dict that JSON can hold; where a value is None its `reasons` say why. `root` is where /sys and
/proc are looked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

ROOT = Path("/")

# Below this a control group of version 1 writes a limit; "none" is the largest multiple of a page that fits 63 bits.
NO_LIMIT_BYTES = 1 << 60


def processor(root: Path = ROOT) -> dict[str, Any]:
    """Sockets, cores and hardware threads of the whole host, whatever of them this process may use."""
    threads = [path / "topology" for path in (root / "sys/devices/system/cpu").glob("cpu[0-9]*")]
    where = [(_text(each / "physical_package_id"), _text(each / "core_id")) for each in threads]
    known = [pair for pair in where if None not in pair]
    reason = "the kernel does not tell in /sys/devices/system/cpu"
    return facts(
        {
            "sockets": (len({package for package, _ in known}) or None, reason),
            "physical_cores": (len(set(known)) or None, reason),
            "logical_cores": (len(known) or None, reason),
        }
    )


def numa(root: Path = ROOT) -> dict[str, Any]:
    """{"nodes": [{"node", "cpus", "memory_bytes"}]}: each node's cores as in `0-15,32-47`, and its memory."""
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
    return facts({"nodes": (nodes or None, "the kernel does not tell in /sys/devices/system/node")})


def network(root: Path = ROOT) -> dict[str, Any]:
    """{"interfaces": [{"name", "bits_per_s", "mtu"}], "infiniband": [{"name", "port", "bits_per_s", "state", "layer"}]}

    Interfaces that are up; a virtual one has no speed. No addresses are read.
    """
    interfaces = [
        {"name": name, "bits_per_s": stats.speed * 10**6 if stats.speed > 0 else None, "mtu": stats.mtu}
        for name, stats in sorted(psutil.net_if_stats().items())
        if stats.isup
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
    """{"kind", "cores", "memory_bytes"}: the container that this runs in, and what its control groups allow."""
    kind = next((kind for kind, is_one in _KINDS.items() if is_one(root, environ)), None)
    no_limit = "no limit is set"
    return facts(
        {
            "kind": (kind, "nothing here looks like one"),
            "cores": (core_limit(root), no_limit),
            "memory_bytes": (memory_limit(root), no_limit),
        }
    )


_KINDS: dict[str, Callable[[Path, Mapping[str, str]], bool]] = {
    "kubernetes": lambda root, environ: "KUBERNETES_SERVICE_HOST" in environ,
    "apptainer": lambda root, environ: bool({"APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"} & environ.keys()),
    "docker": lambda root, environ: (root / ".dockerenv").exists(),
    "podman": lambda root, environ: (root / "run/.containerenv").exists(),
    "lxc": lambda root, environ: (_text(root / "run/systemd/container") or "") == "lxc",
}


def core_limit(root: Path = ROOT) -> float | None:
    """How many cores' worth of time the control groups allow, as in 1.5; None without a limit."""
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
    """How many bytes the control groups allow; None without a limit."""
    limits = []
    for folder in _groups(root, "memory"):
        said = _text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes") or "max"
        if said != "max" and int(said) < NO_LIMIT_BYTES:
            limits.append(int(said))
    return min(limits, default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The control groups that this process is in, and those above them: each may have a limit. Version 2 has one tree
    for all controllers, version 1 one each; a container sees its own group as the root."""
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
    """{name: value}, and `reasons` for what is None."""
    known: dict[str, Any] = {name: value for name, (value, _) in values.items()}
    return known | {"reasons": {name: reason for name, (value, reason) in values.items() if value is None}}


def _text(path: Path) -> str | None:
    """A file's text without its line end; None where there is none to read."""
    try:
        return path.read_text().strip() or None
    except (OSError, ValueError):
        return None
