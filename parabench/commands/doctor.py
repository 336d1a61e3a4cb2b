"""`parabench doctor`: devices, versions, backends, and what would make numbers untrustworthy here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parabench import __version__
from parabench.registry import working_directory
from parabench.store.record import Finding

if TYPE_CHECKING:
    from parabench.machine.machine import Machine

# A benchmark shares its cores with whatever else runs; below this share of them nothing is noticed.
BUSY_SHARE = 0.25

# Samples of CPU use are taken over this long.
LOOK_S = 0.5


@click.command
def doctor() -> None:
    """Show devices, versions and backends, and warn of what would disturb measurements."""
    working_directory()
    raise SystemExit(examine(click.echo))


def examine(tell: Callable[[str], None]) -> int:
    """Tell, line by line, what is here and each problem; returns 1 when nothing could be launched at all."""
    import torch.distributed as dist

    from parabench.machine.gpu_checks import check
    from parabench.machine.machine import environment, this_machine

    machine = this_machine()
    facts = environment(machine)
    tell(f"host      {facts['host']}, {facts['os']}, Python {facts['python']}")
    tell(f"cpu       {facts['cpu']}, {facts['cores']} core(s), {facts['memory_bytes'] / 1e9:.1f} GB")
    tell(f"numa      {_nodes(facts['numa'])}")
    tell(f"network   {_network(facts['network'])}")
    tell(f"container {facts['container']['kind'] or 'none'}")
    gpus = [f"{gpu['name']}" for gpu in facts["gpus"]]
    tell(f"gpus      {', '.join(gpus) or 'none: ' + str(facts['nvml']['reason'])}")
    if gpus:
        tell(f"driver    {facts['driver']['version'] or 'unknown'}, CUDA {facts['driver']['cuda'] or 'unknown'}")
    for at, row in enumerate((facts["links"]["matrix"] or []) if len(gpus) > 1 else []):
        tell(f"links     GPU{at}: {'  '.join(cell or 'unknown' for cell in row)}")
    for row in check(machine, facts["gpus"]):
        tell(f"check     {row}")
    tell(f"samplers  {_samplers()}")
    versions = f"parabench {__version__}, " + ", ".join(
        f"{name} {version}" for name, version in facts["versions"].items() if version
    )
    tell(f"versions  {versions}")
    backends = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available()}
    told = ", ".join(f"{name} {'yes' if there else 'no'}" for name, there in backends.items())
    tell(f"backends  {told}")
    findings = list(problems(machine))
    if not findings:
        tell("No problems found.")
    for finding in findings:
        tell(f"warning   {finding.code}: {finding.message}; {finding.advice}")
    if not any(backends.values()):
        tell("no backend, so nothing can be launched; install a torch built with gloo or NCCL")
        return 1
    return 0


def _nodes(numa: dict[str, Any]) -> str:
    nodes = [f"node {node['node']} has CPUs {node['cpus']}" for node in numa["nodes"] or []]
    return ", ".join(nodes) or f"unknown: {numa['reasons']['nodes']}"


def _network(network: dict[str, Any]) -> str:
    cards = [*network["interfaces"], *network["infiniband"]]
    speeds = [(card["name"], card["bits_per_s"]) for card in cards]
    return ", ".join(f"{name} {'speed unknown' if s is None else f'{s / 1e9:g} Gb/s'}" for name, s in speeds) or "none"


def _samplers() -> str:
    """What is read around a launch here, and what of it cannot be."""
    from parabench.probes.devices import unreadable_metrics

    devices, why = unreadable_metrics()
    said = ["resident sets and other processes' share of the CPU"]
    for index, unread in devices:
        lacking = [f"{', '.join(metrics)} ({reason})" for reason, metrics in _by_reason(unread).items()]
        said.append(f"device {index}" + (f" without {'; '.join(lacking)}" if lacking else ""))
    return "; ".join(said if why is None else [*said, f"no device: {why}"])


def _by_reason(unread: dict[str, str]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for metric, reason in unread.items():
        reasons.setdefault(reason, []).append(metric)
    return reasons


def problems(machine: Machine) -> Iterator[Finding]:
    """What would disturb a measurement on this machine now."""
    import psutil

    if not machine.gpus:
        yield Finding(
            "shared_cpu",
            "ranks run on CPU cores, which other processes share",
            "a launch's step time is the 10th percentile of its steps, not the median; use more launches",
        )
    busy = psutil.cpu_percent(interval=LOOK_S) / 100
    if busy > BUSY_SHARE:
        yield Finding(
            "busy",
            f"{100 * busy:.0f} % of the CPU time is used by other processes",
            "end them, or measure when the machine is idle",
        )
    if machine.cores < 2:
        yield Finding(
            "one_core",
            "there is one core",
            "ranks share it; compare cases with each other, not times with those of other machines",
        )
    if machine.cores < (os.cpu_count() or 1):
        yield Finding(
            "limited_cores",
            f"this process may use {machine.cores} of {os.cpu_count()} cores",
            "other processes can still disturb caches and memory",
        )
    governors = {
        path.read_text().strip() for path in Path("/sys/devices/system/cpu").glob("cpu*/cpufreq/scaling_governor")
    }
    if governors - {"performance"}:
        yield Finding(
            "governor",
            f"the CPU frequency governor is {', '.join(sorted(governors))}",
            "set it to performance, so that clocks don't move while measuring",
        )
    memory = psutil.virtual_memory()
    if memory.available < 2e9:
        yield Finding(
            "little_memory",
            f"{memory.available / 1e9:.1f} GB of memory is free",
            "a model that swaps measures the disk; use a smaller one",
        )
    if not os.access("/dev/shm", os.W_OK):
        yield Finding(
            "no_shared_memory",
            "/dev/shm cannot be written, so ranks keep their marks on disk",
            "mount it, or expect a little disk traffic during steps",
        )
