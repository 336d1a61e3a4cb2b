"""Describe the run, the machine and the software of a session as text. Older sessions recorded fewer facts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from parabench.analysis import format
from parabench.analysis.session import Session

# The keys of a session's environment that describe the machine, not the run or its software.
MACHINE = (
    "host", "os", "cpu", "cores", "processor", "memory_bytes", "numa", "gpus", "links", "driver", "nvml", "network",
    "container", "nodes", "cluster", "node",
)  # fmt: skip

# The kinds of connections between two devices, as `nvidia-smi topo -m` writes them.
LEGEND = {
    "NV": "NV# is that many NVLinks, directly or by way of switches, NV? an unknown number",
    "PSB": "PSB a PCIe switch on the same board",
    "PIX": "PIX at most one PCIe bridge",
    "PXB": "PXB several PCIe bridges, but not the CPU's own",
    "PHB": "PHB the PCIe host bridge, which is the CPU",
    "NODE": "NODE the link between host bridges of a NUMA node",
    "SYS": "SYS the link between NUMA nodes",
}
# The rows of settings whose recorded names are not words.
SETTINGS = {
    "aa_test": "A/A test",
    "budget_s": "time limit of racing, s",
    "deadline_s": "time limit of a launch, s",
    "measure_s": "measured time, s",
    "memory_snapshot": "memory snapshot",
    "nccl_files": "NCCL's configuration files",
    "warmup_s": "warm-up time, s",
}

Record = Mapping[str, Any]
Rows = list[tuple[str, ...]]


def machine_pairs(environment: Record) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of the facts of a machine: cores, memory, network, container, devices, driver."""
    groups = ("processor", "numa", "network", "container", "nvml", "driver")
    processor, numa, network, container, nvml, driver = (environment.get(name) or {} for name in groups)
    for name, key in (("host", "host"), ("OS", "os"), ("CPU", "cpu"), ("cores for ranks", "cores")):
        yield name, format.or_unknown(environment.get(key))
    if processor:
        counts = (("sockets", "socket"), ("physical_cores", "core"), ("logical_cores", "hardware thread"))
        known = [format.count(processor[name], word) for name, word in counts if processor.get(name) is not None]
        yield "cores of the host", ", ".join(known) or _why(processor, "physical_cores")
    yield "memory", format.gibibytes(environment.get("memory_bytes"))
    if numa:
        each = [
            f"node {node['node']}: CPUs {format.or_unknown(node['cpus'])}, {format.gibibytes(node['memory_bytes'])}"
            for node in numa.get("nodes") or []
        ]
        yield "NUMA", "; ".join(each) or _why(numa, "nodes")
    if network:
        cards = [f"{card['name']}: {speed(card['bits_per_s'])}" for card in network.get("interfaces") or []]
        ports = [
            f"{port['name']} port {port['port']}: {speed(port['bits_per_s'])}, {port['state']}"
            + (f", {port['layer']}" if port.get("layer") else "")
            for port in network.get("infiniband") or []
        ]
        yield "network", "; ".join(cards) or "none is up"
        yield "InfiniBand", "; ".join(ports) or "none"
    if "reasons" in container:
        why, cores, memory = container["reasons"], container["cores"], container["memory_bytes"]
        yield "container", str(container["kind"] or why.get("kind", format.UNKNOWN))
        yield "cores it may use", why.get("cores", format.UNKNOWN) if cores is None else f"{cores:g}"
        yield "memory it may use", format.gibibytes(memory) if memory else why.get("memory_bytes", format.UNKNOWN)
    yield "GPUs", devices_text(environment)
    if environment.get("gpus") and driver:
        for name, key in (("driver", "version"), ("newest CUDA it runs", "cuda")):
            yield name, _why(driver, key) if driver.get(key) is None else str(driver[key])
    if nvml.get("available") is not None:
        yield "NVML", "available" if nvml["available"] else f"not available: {nvml.get('reason') or format.UNKNOWN}"


def _why(group: Record, name: str) -> str:
    reasons = group.get("reasons") or {}
    reason = reasons.get(name) or reasons.get("all")
    return f"{format.UNKNOWN}: {reason}" if reason else format.UNKNOWN


def speed(bits_per_s: float | None) -> str:
    """Return the speed of a network card."""
    return f"{format.digits(bits_per_s / 1e9)} Gb/s" if bits_per_s else "speed unknown"


def devices_text(environment: Record) -> str:
    """Return the devices of a machine as text: '8 × NVIDIA H200 (140 GiB)', or 'none'."""
    named = [
        f"{gpu.get('name')} ({format.gibibytes(gpu.get('memory_bytes'))})" for gpu in environment.get("gpus") or []
    ]
    return "; ".join(each.removeprefix("1 × ") for each in format.kinds(named, "×")) or "none"


def gpu_rows(environment: Record) -> tuple[tuple[str, ...], Rows, list[str]]:
    """Return (head, rows, reasons) of a table of the devices' limits, and their states at the start of the session.

    Equal devices share a column. The reasons are for unknown facts.
    """
    gpus = [gpu for gpu in environment.get("gpus") or [] if "reasons" in gpu]
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for at, gpu in enumerate(gpus):
        alike.setdefault(tuple(_gpu_facts(gpu).items()), []).append(f"GPU{at}")
    head = ("", *(", ".join(names) for names in alike.values()))
    rows: Rows = [(facts[0][0], *(text for _, text in facts)) for facts in zip(*alike, strict=True)]
    why = (f"{name.replace('_', ' ')} ({reason})" for gpu in gpus for name, reason in gpu["reasons"].items())
    return head, rows, list(dict.fromkeys(why))


def _gpu_facts(gpu: Record) -> dict[str, str]:
    """Return {name: text} of the limits and states of a device."""

    def number(name: str, unit: float = 1.0) -> str:
        return format.UNKNOWN if gpu[name] is None else f"{gpu[name] / unit:,.0f}"

    def clock(name: str) -> str:
        return f"{number(f'{name}_clock_hz', 1e6)} MHz; at most {number(f'{name}_clock_max_hz', 1e6)}"

    def switch(name: str) -> str:
        return {True: "on", False: "off", None: format.UNKNOWN}[gpu[name]]

    limit, default, most = (number(f"power_{name}_w") for name in ("limit", "default", "max"))
    link, widest = (f"{number(f'pcie_generation{of}')} ×{number(f'pcie_width{of}')}" for of in ("", "_max"))
    return {
        "Name": format.or_unknown(gpu["name"]),
        "Memory": format.gibibytes(gpu["memory_bytes"]),
        "Compute capability": format.or_unknown(gpu["compute_capability"]),
        "Power limit": f"{limit} W; by default {default}, at most {most}",
        "SM clock": clock("sm"),
        "Memory clock": clock("memory"),
        "PCIe": f"generation {link}; at most {widest}",
        "ECC": switch("ecc"),
        "MIG": switch("mig"),
    }


def link_rows(environment: Record) -> tuple[tuple[str, ...], Rows, list[str]]:
    """Return (head, rows, legend) of the matrix of connections between devices, with their CPUs and NUMA nodes."""
    links, gpus = environment.get("links") or {}, environment.get("gpus") or []
    matrix = links.get("matrix") or []
    head = ("", *(f"GPU{at}" for at in range(len(matrix))), "CPUs", "NUMA node")
    rows: Rows = [
        (f"GPU{at}", *map(format.or_unknown, [*row, gpus[at].get("cpus"), gpus[at].get("numa_node")]))
        for at, row in enumerate(matrix)
    ]
    cells = {cell for row in matrix for cell in row if cell}
    used = [text for mark, text in LEGEND.items() if any(cell == mark or cell[:2] == mark for cell in cells)]
    unknown = dict.fromkeys((links.get("reasons") or {}).values())
    return head, rows, [*used, *(f"unknown where {why}" for why in unknown)]


def environment_rows(session: Session) -> list[tuple[str, str]]:
    """Return (name, text) of the facts of a run, its protocol and its software, without options that are off."""
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
    groups = [session.plan.get("protocol") or {}, *(known.pop(name, None) or {} for name in ("versions", "env"))]
    rows += [
        (str(name), _text(value)) for group in groups for name, value in group.items() if value not in (None, False, 0)
    ]
    for reason in dict.fromkeys(unknown.values()):
        names = ", ".join(name for name, why in unknown.items() if why == reason)
        rows.append((names, f"{format.UNKNOWN}: {reason}"))
    rows += [(name, _text(value)) for name, value in known.items() if value != []]
    return [(SETTINGS.get(name, name), text) for name, text in rows]


def commit(git: Record) -> str:
    """Return the commit of the project under test: '3f2a90c1b5d7, with changes that are not committed'."""
    if git.get("commit") is None:
        return f"{format.UNKNOWN}: {(git.get('reasons') or {}).get('commit')}"
    state = {True: ", with changes that are not committed", False: "", None: ", perhaps with changes"}
    return str(git["commit"])[:12] + state[git.get("dirty")]


def _text(value: object) -> str:
    return value if isinstance(value, str) else format.UNKNOWN if value is None else json.dumps(value)
