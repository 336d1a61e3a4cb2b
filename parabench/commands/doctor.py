"""`parabench doctor`: devices, versions, backends, and what would make numbers untrustworthy here."""

from __future__ import annotations

import os
from collections.abc import Iterator
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

# A smaller share of the cores that other processes use does not matter.
BUSY_SHARE = 0.25

# The duration of a sample of CPU use.
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
    files, found = files_in(options), examination()
    give(files, {"--json": lambda: json_text.written(found)}, lines(found), "examination")
    raise SystemExit(0 if found["can_launch"] else 1)


def examination() -> dict[str, Any]:
    """Return devices, versions and warnings (docs/reference/doctor.schema.json). Unknown is `None`."""
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


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield an examination as lines for the terminal."""
    yield f"host      {found['host']}, {found['os']}, Python {found['python']}"
    yield f"cpu       {found['cpu']}, {found['cores']} core(s), {found['memory_bytes'] / 1e9:.1f} GB"
    nodes = [f"node {node['node']} has CPUs {node['cpus']}" for node in found["numa"]["nodes"] or []]
    yield f"numa      {', '.join(nodes) or 'unknown: ' + found['numa']['reasons']['nodes']}"
    speeds = [(card["name"], card["bits_per_s"]) for card in found["network"]]
    cards = [f"{name} {'speed unknown' if s is None else f'{s / 1e9:g} Gb/s'}" for name, s in speeds]
    yield f"network   {', '.join(cards) or 'none'}"
    yield f"container {found['container'] or 'none'}"
    gpus = [f"{gpu['name']}" for gpu in found["gpus"]]
    yield f"gpus      {', '.join(gpus) or 'none: ' + found['no_gpus']}"
    if gpus:
        yield f"driver    {found['driver']['version'] or 'unknown'}, CUDA {found['driver']['cuda'] or 'unknown'}"
    for at, row in enumerate(found["links"] or []):
        yield f"links     GPU{at}: {'  '.join(cell or 'unknown' for cell in row)}"
    for row in found["checks"]:
        yield f"check     {row['sentence']}"
    yield f"samplers  {found['samplers']}"
    yield f"versions  {', '.join(f'{name} {version}' for name, version in found['versions'].items() if version)}"
    backends = ", ".join(f"{name} {'yes' if there else 'no'}" for name, there in found["backends"].items())
    yield f"backends  {backends}"
    if not found["warnings"]:
        yield "No problems found."
    for each in found["warnings"]:
        yield f"warning   {each['code']}: {each['message']}; {each['advice']}"
    if not found["can_launch"]:
        yield "no backend, so nothing can be launched; install a torch built with gloo or NCCL"


def _samplers() -> str:
    """Return what is sampled during a launch, and what cannot be read here."""
    from parabench.probes.devices import unreadable_metrics

    devices, why = unreadable_metrics()
    found = ["resident sets and other processes' share of the CPU"]
    for index, unread in devices:
        reasons: dict[str, list[str]] = {}
        for metric, reason in unread.items():
            reasons.setdefault(reason, []).append(metric)
        lacking = [f"{', '.join(metrics)} ({reason})" for reason, metrics in reasons.items()]
        found.append(f"device {index}" + (f" without {'; '.join(lacking)}" if lacking else ""))
    return "; ".join(found if why is None else [*found, f"no device: {why}"])


def problems(machine: Machine) -> Iterator[Finding]:
    """Yield warnings of what would disturb a measurement on this machine now."""
    import psutil

    busy, memory = psutil.cpu_percent(interval=LOOK_S) / 100, psutil.virtual_memory()
    paths = Path("/sys/devices/system/cpu").glob("cpu*/cpufreq/scaling_governor")
    governors = {path.read_text().strip() for path in paths}
    for code, wrong, message, advice in (
        ("shared_cpu", not machine.gpus, "ranks run on CPU cores, which other processes share",
         "a launch's step time is the 10th percentile of its steps, not the median; use more launches"),
        ("busy", busy > BUSY_SHARE, f"{100 * busy:.0f} % of the CPU time is used by other processes",
         "end them, or measure when the machine is idle"),
        ("one_core", machine.cores < 2, "there is one core",
         "ranks share it; compare cases with each other, not times with those of other machines"),
        ("limited_cores", machine.cores < (os.cpu_count() or 1),
         f"this process may use {machine.cores} of {os.cpu_count()} cores",
         "other processes can still disturb caches and memory"),
        ("governor", governors - {"performance"},
         f"the CPU frequency governor is {', '.join(sorted(governors))}",
         "set it to performance, so that clocks don't move while measuring"),
        ("little_memory", memory.available < 2e9, f"{memory.available / 1e9:.1f} GB of memory is free",
         "a model that swaps measures the disk; use a smaller one"),
        ("no_shared_memory", not os.access("/dev/shm", os.W_OK),
         "/dev/shm cannot be written, so ranks keep their marks on disk",
         "mount it, or expect a little disk traffic during steps"),
    ):  # fmt: skip
        if wrong:
            yield Finding(code, message, advice)
