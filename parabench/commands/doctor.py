"""`parabench doctor`: devices, versions, backends, and what would make numbers untrustworthy here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parabench import __version__, json_text
from parabench.commands.output import Command, file_option, files_in, give
from parabench.machine import gpu_checks
from parabench.records import Record, read
from parabench.registry import working_directory

if TYPE_CHECKING:
    from parabench.machine.machine import Machine

# A benchmark shares its cores with whatever else runs; below this share of them nothing is noticed.
BUSY_SHARE = 0.25

# Samples of CPU use are taken over this long.
LOOK_S = 0.5


class NumaNode(Record, frozen=True, kw_only=True):
    """A NUMA node of this host."""

    node: int
    cpus: str | None
    memory_bytes: int | None


class Numa(Record, frozen=True, kw_only=True):
    """The NUMA nodes, and the reasons for what is unknown."""

    nodes: tuple[NumaNode, ...] | None
    reasons: dict[str, str]


class Card(Record, frozen=True, kw_only=True):
    """A network interface or an InfiniBand port."""

    name: str
    bits_per_s: float | None


class Device(Record, frozen=True, kw_only=True):
    """A GPU."""

    name: str | None
    memory_bytes: int | None


class Driver(Record, frozen=True, kw_only=True):
    """The driver of the GPUs."""

    version: str | None
    cuda: str | None


class Check(gpu_checks.Row, frozen=True, kw_only=True):
    """A check of a GPU, or of the host, with its sentence."""

    sentence: str


class Problem(Record, frozen=True):
    """A condition that disturbs measurements here."""

    code: str
    message: str
    advice: str


class Examination(Record, frozen=True, kw_only=True):
    """What is here, and what would disturb measurements."""

    host: str
    os: str
    python: str
    cpu: str
    cores: int
    memory_bytes: int
    numa: Numa
    network: tuple[Card, ...]
    container: str | None
    gpus: tuple[Device, ...]
    no_gpus: str | None
    driver: Driver | None
    links: tuple[tuple[str | None, ...], ...] | None
    checks: tuple[Check, ...]
    samplers: str
    versions: dict[str, str | None]
    backends: dict[str, bool]
    warnings: tuple[Problem, ...]
    can_launch: bool


@click.command(
    cls=Command,
    examples={
        "What is here, and what would disturb measurements?": "parabench doctor",
        "The same for a script:": "parabench doctor --json -",
    },
)
@file_option("json", "Write JSON (docs/reference/json.md).")
def doctor(**options: Any) -> None:
    """Show devices, versions and backends, and warn of what would disturb measurements."""
    working_directory()
    files, found = files_in(options), examination()
    give(files, {"--json": lambda: json_text.written(found.to_dict())}, lines(found), "examination")
    raise SystemExit(0 if found.can_launch else 1)


def examination() -> Examination:
    """Examine this machine."""
    import torch.distributed as dist

    from parabench.machine.machine import environment, this_machine

    machine = this_machine()
    facts = environment(machine)
    backends = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available()}
    cards = (*facts["network"]["interfaces"], *facts["network"]["infiniband"])
    return read(
        Examination,
        {
            **{name: facts[name] for name in ("host", "os", "python", "cpu", "cores", "memory_bytes", "numa")},
            "network": [{"name": card["name"], "bits_per_s": card["bits_per_s"]} for card in cards],
            "container": facts["container"]["kind"],
            "gpus": [{name: gpu.get(name) for name in ("name", "memory_bytes")} for gpu in facts["gpus"]],
            "no_gpus": None if facts["gpus"] else str(facts["nvml"]["reason"]),
            "driver": {name: facts["driver"][name] for name in ("version", "cuda")} if facts["gpus"] else None,
            "links": facts["links"]["matrix"] if len(facts["gpus"]) > 1 else None,
            "checks": [row.to_dict() | {"sentence": str(row)} for row in gpu_checks.check(machine, facts["gpus"])],
            "samplers": _samplers(),
            "versions": {"parabench": __version__, **facts["versions"]},
            "backends": backends,
            "warnings": list(problems(machine)),
            "can_launch": any(backends.values()),
        },
        "examination",
    )


def lines(found: Examination) -> Iterator[str]:
    """Give the examination as lines for the terminal."""
    yield f"host      {found.host}, {found.os}, Python {found.python}"
    yield f"cpu       {found.cpu}, {found.cores} core(s), {found.memory_bytes / 1e9:.1f} GB"
    nodes = [f"node {node.node} has CPUs {node.cpus}" for node in found.numa.nodes or ()]
    yield f"numa      {', '.join(nodes) or 'unknown: ' + found.numa.reasons['nodes']}"
    speeds = [f"{card.name} {_speed(card.bits_per_s)}" for card in found.network]
    yield f"network   {', '.join(speeds) or 'none'}"
    yield f"container {found.container or 'none'}"
    yield f"gpus      {', '.join(str(gpu.name) for gpu in found.gpus) or f'none: {found.no_gpus}'}"
    if found.driver is not None:
        yield f"driver    {found.driver.version or 'unknown'}, CUDA {found.driver.cuda or 'unknown'}"
    for at, row in enumerate(found.links or ()):
        yield f"links     GPU{at}: {'  '.join(cell or 'unknown' for cell in row)}"
    for each in found.checks:
        yield f"check     {each.sentence}"
    yield f"samplers  {found.samplers}"
    yield f"versions  {', '.join(f'{name} {version}' for name, version in found.versions.items() if version)}"
    backends = [f"{name} {'yes' if there else 'no'}" for name, there in found.backends.items()]
    yield f"backends  {', '.join(backends)}"
    if not found.warnings:
        yield "No problems found."
    for problem in found.warnings:
        yield f"warning   {problem.code}: {problem.message}; {problem.advice}"
    if not found.can_launch:
        yield "no backend, so nothing can be launched; install a torch built with gloo or NCCL"


def _speed(bits_per_s: float | None) -> str:
    return "speed unknown" if bits_per_s is None else f"{bits_per_s / 1e9:g} Gb/s"


def _samplers() -> str:
    """Return the readings around a launch, and what cannot be read here."""
    from parabench.probes.devices import unreadable_metrics

    devices, why = unreadable_metrics()
    found = ["resident sets and other processes' share of the CPU"]
    for index, unread in devices:
        by_reason = {why: ", ".join(each for each in unread if unread[each] == why) for why in unread.values()}
        lacking = "; ".join(f"{metrics} ({reason})" for reason, metrics in by_reason.items())
        found.append(f"device {index}" + (f" without {lacking}" if lacking else ""))
    return "; ".join(found if why is None else [*found, f"no device: {why}"])


def problems(machine: Machine) -> Iterator[Problem]:
    """Yield conditions that disturb measurements on this machine now."""
    import psutil

    if not machine.gpus:
        yield Problem(
            "shared_cpu",
            "ranks run on CPU cores, which other processes share",
            "a launch's step time is the 10th percentile of its steps, not the median; use more launches",
        )
    busy = psutil.cpu_percent(interval=LOOK_S) / 100
    if busy > BUSY_SHARE:
        yield Problem(
            "busy",
            f"{100 * busy:.0f} % of the CPU time is used by other processes",
            "end them, or measure when the machine is idle",
        )
    if machine.cores < 2:
        yield Problem(
            "one_core",
            "there is one core",
            "ranks share it; compare cases with each other, not times with those of other machines",
        )
    if machine.cores < (os.cpu_count() or 1):
        yield Problem(
            "limited_cores",
            f"this process may use {machine.cores} of {os.cpu_count()} cores",
            "other processes can still disturb caches and memory",
        )
    governors = {
        path.read_text().strip() for path in Path("/sys/devices/system/cpu").glob("cpu*/cpufreq/scaling_governor")
    }
    if governors - {"performance"}:
        yield Problem(
            "governor",
            f"the CPU frequency governor is {', '.join(sorted(governors))}",
            "set it to performance, so that clocks don't move while measuring",
        )
    memory = psutil.virtual_memory()
    if memory.available < 2e9:
        yield Problem(
            "little_memory",
            f"{memory.available / 1e9:.1f} GB of memory is free",
            "a model that swaps measures the disk; use a smaller one",
        )
    if not os.access("/dev/shm", os.W_OK):
        yield Problem(
            "no_shared_memory",
            "/dev/shm cannot be written, so ranks keep their marks on disk",
            "mount it, or expect a little disk traffic during steps",
        )
