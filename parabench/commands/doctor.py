"""`parabench doctor`: devices, versions, backends, and what would make numbers untrustworthy here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parabench import __version__
from parabench.commands.output import Command, file_option, files_in, give
from parabench.registry import working_directory
from parabench.store import json_text
from parabench.store.record import Finding

if TYPE_CHECKING:
    from parabench.machine.machine import Machine

# A benchmark shares its cores with whatever else runs; below this share of them nothing is noticed.
BUSY_SHARE = 0.25

# Samples of CPU use are taken over this long.
LOOK_S = 0.5


@click.command(
    cls=Command,
    examples={
        "What is here, and what would disturb measurements?": "parabench doctor",
        "The same for a script:": "parabench doctor --json -",
    },
)
@file_option("json", "Write JSON (docs/reference/doctor.schema.json).")
def doctor(**options: Any) -> None:
    """Show devices, versions and backends, and warn of what would disturb measurements."""
    working_directory()
    files, told, said = files_in(options), examination(), list[str]()
    code = say_examination(told, said.append)
    give(files, {"--json": lambda: json_text.written(told)}, said, "examination")
    raise SystemExit(code)


def examination() -> dict[str, Any]:
    """What is here, and what would disturb measurements (docs/reference/doctor.schema.json); unknown is None."""
    import torch.distributed as dist

    from parabench.machine.gpu_checks import check
    from parabench.machine.machine import environment, this_machine

    machine = this_machine()
    facts = environment(machine)
    backends = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available()}
    return {
        **{name: facts[name] for name in ("host", "os", "python", "cpu", "cores", "memory_bytes")},
        "numa": facts["numa"],
        "network": [
            {"name": card["name"], "bits_per_s": card["bits_per_s"]}
            for card in (*facts["network"]["interfaces"], *facts["network"]["infiniband"])
        ],
        "container": facts["container"]["kind"],
        "gpus": [{name: gpu.get(name) for name in ("name", "memory_bytes")} for gpu in facts["gpus"]],
        "no_gpus": None if facts["gpus"] else str(facts["nvml"]["reason"]),
        "driver": {name: facts["driver"][name] for name in ("version", "cuda")} if facts["gpus"] else None,
        "links": facts["links"]["matrix"] if len(facts["gpus"]) > 1 else None,
        "checks": [asdict(row) | {"sentence": str(row)} for row in check(machine, facts["gpus"])],
        "samplers": _samplers(),
        "versions": {"parabench": __version__, **facts["versions"]},
        "backends": backends,
        "warnings": [{"code": each.code, "message": each.message, "advice": each.advice} for each in problems(machine)],
        "can_launch": any(backends.values()),
    }


def examine(tell: Callable[[str], None]) -> int:
    """Tell, line by line, what is here and each problem; returns 1 when nothing could be launched at all."""
    return say_examination(examination(), tell)


def say_examination(told: dict[str, Any], tell: Callable[[str], None]) -> int:
    """The same of an examination."""
    tell(f"host      {told['host']}, {told['os']}, Python {told['python']}")
    tell(f"cpu       {told['cpu']}, {told['cores']} core(s), {told['memory_bytes'] / 1e9:.1f} GB")
    tell(f"numa      {_nodes(told['numa'])}")
    tell(f"network   {_network(told['network'])}")
    tell(f"container {told['container'] or 'none'}")
    gpus = [f"{gpu['name']}" for gpu in told["gpus"]]
    tell(f"gpus      {', '.join(gpus) or 'none: ' + told['no_gpus']}")
    if gpus:
        tell(f"driver    {told['driver']['version'] or 'unknown'}, CUDA {told['driver']['cuda'] or 'unknown'}")
    for at, row in enumerate(told["links"] or []):
        tell(f"links     GPU{at}: {'  '.join(cell or 'unknown' for cell in row)}")
    for row in told["checks"]:
        tell(f"check     {row['sentence']}")
    tell(f"samplers  {told['samplers']}")
    tell(f"versions  {', '.join(f'{name} {version}' for name, version in told['versions'].items() if version)}")
    backends = ", ".join(f"{name} {'yes' if there else 'no'}" for name, there in told["backends"].items())
    tell(f"backends  {backends}")
    if not told["warnings"]:
        tell("No problems found.")
    for each in told["warnings"]:
        tell(f"warning   {each['code']}: {each['message']}; {each['advice']}")
    if not told["can_launch"]:
        tell("no backend, so nothing can be launched; install a torch built with gloo or NCCL")
        return 1
    return 0


def _nodes(numa: dict[str, Any]) -> str:
    nodes = [f"node {node['node']} has CPUs {node['cpus']}" for node in numa["nodes"] or []]
    return ", ".join(nodes) or f"unknown: {numa['reasons']['nodes']}"


def _network(cards: Sequence[dict[str, Any]]) -> str:
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
