"""What a session's record says of its run, its machine and its software, as rows of text. Older records lack what newer
ones have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from parabench.analysis import format
from parabench.analysis.session import Session

# The keys of a session's environment that are the machine's, as against the run's and its software's.
MACHINE = (
    "host", "os", "cpu", "cores", "processor", "memory_bytes", "numa", "gpus", "links", "driver", "nvml", "network",
    "container", "nodes", "cluster", "node",
)  # fmt: skip

# What lies between two devices, as `nvidia-smi topo -m` writes it.
LEGEND = {
    "NV": "NV# is that many NVLinks, directly or by way of switches, NV? an unknown number",
    "PSB": "PSB a PCIe switch on the same board",
    "PIX": "PIX at most one PCIe bridge",
    "PXB": "PXB several PCIe bridges, but not the CPU's own",
    "PHB": "PHB the PCIe host bridge, which is the CPU",
    "NODE": "NODE the link between host bridges of a NUMA node",
    "SYS": "SYS the link between NUMA nodes",
}

Rows = list[tuple[str, ...]]


def machine_pairs(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of the host, its cores, memory, container and devices."""
    processor, numa = _group(environment, "processor"), _group(environment, "numa")
    pairs = [("host", format.or_unknown(environment.get("host"))), ("OS", format.or_unknown(environment.get("os")))]
    pairs.append(("CPU", format.or_unknown(environment.get("cpu"))))
    pairs.append(("cores for ranks", format.or_unknown(environment.get("cores"))))
    if processor:
        counts = (("sockets", "socket"), ("physical_cores", "core"), ("logical_cores", "hardware thread"))
        said = [format.count(processor[name], word) for name, word in counts if processor.get(name) is not None]
        pairs.append(("cores of the host", ", ".join(said) or _why(processor, "physical_cores")))
    pairs.append(("memory", format.gibibytes(environment.get("memory_bytes"))))
    if numa:
        nodes = numa.get("nodes")
        each = [
            f"node {node['node']}: CPUs {format.or_unknown(node['cpus'])}, {format.gibibytes(node['memory_bytes'])}"
            for node in nodes or []
        ]
        pairs.append(("NUMA", "; ".join(each) or _why(numa, "nodes")))
    pairs += [*_network(_group(environment, "network")), *_container(_group(environment, "container"))]
    return [*pairs, *_devices(environment)]


def _network(network: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if not network:
        return
    cards = [f"{card['name']}: {_speed(card['bits_per_s'])}" for card in network.get("interfaces") or []]
    yield "network", "; ".join(cards) or "none is up"
    ports = [
        f"{port['name']} port {port['port']}: {_speed(port['bits_per_s'])}, {port['state']}"
        + (f", {port['layer']}" if port.get("layer") else "")
        for port in network.get("infiniband") or []
    ]
    yield "InfiniBand", "; ".join(ports) or "none"


def _container(container: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if "reasons" not in container:  # a record from before its limits were read
        return
    reasons, cores, memory = container["reasons"], container["cores"], container["memory_bytes"]
    yield "container", str(container["kind"] or reasons.get("kind", format.UNKNOWN))
    yield "cores it may use", reasons.get("cores", format.UNKNOWN) if cores is None else f"{cores:g}"
    yield (
        "memory it may use",
        reasons.get("memory_bytes", format.UNKNOWN) if memory is None else format.gibibytes(memory),
    )


def devices_said(environment: Mapping[str, Any]) -> str:
    """'8 × NVIDIA H200 (140 GiB)', or 'none'."""
    named = [
        f"{gpu.get('name')} ({format.gibibytes(gpu.get('memory_bytes'))})" for gpu in environment.get("gpus") or []
    ]
    return "; ".join(each.removeprefix("1 × ") for each in format.kinds(named, "×")) or "none"


def _devices(environment: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    gpus, nvml, driver = environment.get("gpus") or [], _group(environment, "nvml"), _group(environment, "driver")
    yield "GPUs", devices_said(environment)
    if gpus and driver:
        for name, key in (("driver", "version"), ("newest CUDA it runs", "cuda")):
            yield name, _why(driver, key) if driver.get(key) is None else str(driver[key])
    if nvml.get("available") is not None:
        why = nvml.get("reason") or format.UNKNOWN
        yield "NVML", "available" if nvml["available"] else f"not available: {why}"


def gpu_rows(environment: Mapping[str, Any]) -> tuple[tuple[str, ...], Rows, list[str]]:
    """(head, rows, why): a column for the devices that are alike, a row for each of their limits and states when the
    session began, and why what is unknown is unknown."""
    gpus = [gpu for gpu in environment.get("gpus") or [] if "reasons" in gpu]
    alike: dict[tuple[str, ...], list[str]] = {}
    for at, gpu in enumerate(gpus):
        alike.setdefault(tuple(say(gpu) for say in _GPU.values()), []).append(f"GPU{at}")
    head = ("", *(", ".join(names) for names in alike.values()))
    rows: Rows = [(name, *(values[i] for values in alike)) for i, name in enumerate(_GPU)]
    why = (f"{name.replace('_', ' ')} ({reason})" for gpu in gpus for name, reason in gpu["reasons"].items())
    return head, rows if gpus else [], list(dict.fromkeys(why))


_GPU: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "Name": lambda gpu: format.or_unknown(gpu["name"]),
    "Memory": lambda gpu: format.gibibytes(gpu["memory_bytes"]),
    "Compute capability": lambda gpu: format.or_unknown(gpu["compute_capability"]),
    "Power limit": lambda gpu: (
        f"{_number(gpu['power_limit_w'])} W; by default {_number(gpu['power_default_w'])}, "
        f"at most {_number(gpu['power_max_w'])}"
    ),
    "SM clock": lambda gpu: f"{_number(gpu['sm_clock_hz'], 1e6)} MHz; at most {_number(gpu['sm_clock_max_hz'], 1e6)}",
    "Memory clock": lambda gpu: (
        f"{_number(gpu['memory_clock_hz'], 1e6)} MHz; at most {_number(gpu['memory_clock_max_hz'], 1e6)}"
    ),
    "PCIe": lambda gpu: (
        f"generation {format.or_unknown(gpu['pcie_generation'])} ×{format.or_unknown(gpu['pcie_width'])}; "
        f"at most {format.or_unknown(gpu['pcie_generation_max'])} ×{format.or_unknown(gpu['pcie_width_max'])}"
    ),
    "ECC": lambda gpu: _switch(gpu["ecc"]),
    "MIG": lambda gpu: _switch(gpu["mig"]),
}


def link_rows(environment: Mapping[str, Any]) -> tuple[tuple[str, ...], Rows, list[str]]:
    """(head, rows, legend): what lies between each two devices, and which CPUs and NUMA node each is next to."""
    links, gpus = _group(environment, "links"), environment.get("gpus") or []
    matrix = links.get("matrix") or []
    head = ("", *(f"GPU{at}" for at in range(len(matrix))), "CPUs", "NUMA node")
    rows: Rows = [
        (f"GPU{at}", *map(format.or_unknown, [*row, gpus[at].get("cpus"), gpus[at].get("numa_node")]))
        for at, row in enumerate(matrix)
    ]
    cells = {cell for row in matrix for cell in row if cell}
    used = [said for mark, said in LEGEND.items() if any(cell == mark or cell[:2] == mark for cell in cells)]
    reasons = dict.fromkeys((links.get("reasons") or {}).values())
    return head, rows, [*used, *(f"unknown where {reason}" for reason in reasons)]


def _group(environment: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return environment.get(name) or {}


def _why(group: Mapping[str, Any], name: str) -> str:
    reasons = group.get("reasons") or {}
    reason = reasons.get(name) or reasons.get("all")
    return f"{format.UNKNOWN}: {reason}" if reason else format.UNKNOWN


def _speed(bits_per_s: float | None) -> str:
    return "speed unknown" if bits_per_s is None else f"{format.digits(bits_per_s / 1e9)} Gb/s"


def _number(value: float | None, unit: float = 1.0) -> str:
    return format.UNKNOWN if value is None else f"{value / unit:,.0f}"


def _switch(value: bool | None) -> str:
    return format.UNKNOWN if value is None else "on" if value else "off"


# Of a protocol: what is not asked for.
NOTHING = (None, False, 0)


def environment_rows(session: Session) -> list[tuple[str, str]]:
    """(name, value) of what is known about the run, its protocol and its software; of the machine its section tells.
    What a protocol leaves out (0 rounds, no profile) is left out here too."""
    rows = [
        ("suite", session.suite),
        ("seed", str(session.seed)),
        ("parabench", session.version),
        ("started", format.when(session.started_utc)),
        ("finished", format.when(session.finished_utc) if session.finished_utc else "not finished"),
    ]
    known = {name: value for name, value in session.environment.items() if name not in MACHINE}
    git, unknown = known.pop("git", None), known.pop("unknown_versions", None) or {}
    if git is not None:
        rows.append(("commit", commit(git)))
    groups = [
        session.plan.get("protocol") or {},
        *(known.pop(name, None) or {} for name in ("versions", "env")),
    ]
    rows += [(str(name), _said(value)) for group in groups for name, value in group.items() if value not in NOTHING]
    for reason in dict.fromkeys(unknown.values()):
        names = ", ".join(name for name, why in unknown.items() if why == reason)
        rows.append((names, f"{format.UNKNOWN}: {reason}"))
    return rows + [(name, _said(value)) for name, value in known.items() if value != []]


def commit(git: Mapping[str, Any]) -> str:
    """The commit of the project under test: '3f2a90c1b5d7, with changes that are not committed'."""
    if git.get("commit") is None:
        return f"{format.UNKNOWN}: {(git.get('reasons') or {}).get('commit')}"
    state = {True: ", with changes that are not committed", False: "", None: ", perhaps with changes"}
    return str(git["commit"])[:12] + state[git.get("dirty")]


def _said(value: object) -> str:
    if value is None:
        return format.UNKNOWN
    return value if isinstance(value, str) else json.dumps(value)
