"""`parabench doctor`: show devices, versions and backends, and warn of conditions that disturb measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import psutil

from parabench import __version__
from parabench.analysis.answer import Answer, Columns, Records, columns, tables
from parabench.commands.output import Command, file_option, files_in, give
from parabench.machine import gpu_checks
from parabench.machine.machine import environment, this_machine
from parabench.probes.devices import unreadable_metrics
from parabench.registry import working_directory
from parabench.store.record import Finding

if TYPE_CHECKING:
    from parabench.machine.machine import Machine

# Other processes that use less than this share of the cores do not disturb a benchmark.
BUSY_SHARE = 0.25

# The use of the CPU is measured during this time.
LOOK_S = 0.5


# The tables of the answer.
TABLES: Mapping[str, Columns] = {
    "host": {
        "host": str,
        "os": str,
        "python": str,
        "cpu": str,
        "cores": int,
        "memory_bytes": int,
        "container": str | None,
        "no_numa": str | None,
        "no_gpus": str | None,
        "driver": str | None,
        "cuda": str | None,
        "samplers": str,
        "can_launch": bool,
    },
    "numa": {"node": int, "cpus": str | None, "memory_bytes": int | None},
    "network": {"name": str, "bits_per_s": float | None},
    "gpus": {"name": str | None, "memory_bytes": int | None},
    "links": {"gpu": int, "to": int, "link": str | None},
    "checks": columns(gpu_checks.Row, sentence=str),
    "versions": {"name": str, "version": str | None},
    "backends": {"name": str, "available": bool},
}


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
    files, (found, warnings) = files_in(options), examination()

    def answer() -> Answer:
        return Answer(tuple(_conclusions(found, warnings)), tables(TABLES, found), warnings=warnings)

    give(files, answer, lines(found, warnings), "examination")
    raise SystemExit(0 if found["host"][0]["can_launch"] else 1)


def examination() -> tuple[Records, tuple[Finding, ...]]:
    """Return (the rows of TABLES, warnings about conditions that disturb measurements) of this machine."""
    import torch.distributed as dist

    machine = this_machine()
    facts = environment(machine)
    gpus, numa = facts["gpus"], facts["numa"]
    backends = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available()}
    matrix = facts["links"]["matrix"] if len(gpus) > 1 else None
    host = {
        **{name: facts[name] for name in ("host", "os", "python", "cpu", "cores", "memory_bytes")},
        "container": facts["container"]["kind"],
        "no_numa": None if numa["nodes"] else numa["reasons"].get("nodes"),
        "no_gpus": None if gpus else str(facts["nvml"]["reason"]),
        "driver": facts["driver"]["version"] if gpus else None,
        "cuda": facts["driver"]["cuda"] if gpus else None,
        "samplers": _samplers(),
        "can_launch": any(backends.values()),
    }
    versions = {"parabench": __version__, **facts["versions"]}
    links = [(at, to, link) for at, row in enumerate(matrix or ()) for to, link in enumerate(row)]
    rows = {
        "host": [host],
        "numa": numa["nodes"] or [],
        "network": [*facts["network"]["interfaces"], *facts["network"]["infiniband"]],
        "gpus": [{name: gpu.get(name) for name in ("name", "memory_bytes")} for gpu in gpus],
        "links": [{"gpu": at, "to": to, "link": link} for at, to, link in links],
        "checks": [row.to_dict() | {"sentence": str(row)} for row in gpu_checks.check(machine, gpus)],
        "versions": [{"name": name, "version": version} for name, version in versions.items()],
        "backends": [{"name": name, "available": there} for name, there in backends.items()],
    }
    return rows, tuple(problems(machine))


def lines(found: Records, warnings: Sequence[Finding]) -> Iterator[str]:
    """Yield the examination as lines for the terminal."""
    (host,) = found["host"]
    yield f"host      {host['host']}, {host['os']}, Python {host['python']}"
    yield f"cpu       {host['cpu']}, {host['cores']} core(s), {host['memory_bytes'] / 1e9:.1f} GB"
    nodes = [f"node {node['node']} has CPUs {node['cpus']}" for node in found["numa"]]
    yield f"numa      {', '.join(nodes) or 'unknown: ' + host['no_numa']}"
    speeds = [(card["name"], card["bits_per_s"]) for card in found["network"]]
    cards = [f"{name} {'speed unknown' if bits is None else f'{bits / 1e9:g} Gb/s'}" for name, bits in speeds]
    yield f"network   {', '.join(cards) or 'none'}"
    yield f"container {host['container'] or 'none'}"
    yield f"gpus      {', '.join(str(gpu['name']) for gpu in found['gpus']) or 'none: ' + host['no_gpus']}"
    if found["gpus"]:
        yield f"driver    {host['driver'] or 'unknown'}, CUDA {host['cuda'] or 'unknown'}"
    for at, cells in groupby(found["links"], itemgetter("gpu")):
        yield f"links     GPU{at}: {'  '.join(cell['link'] or 'unknown' for cell in cells)}"
    for each in found["checks"]:
        yield f"check     {each['sentence']}"
    yield f"samplers  {host['samplers']}"
    versions = [f"{row['name']} {row['version']}" for row in found["versions"] if row["version"]]
    yield f"versions  {', '.join(versions)}"
    backends = [f"{row['name']} {'yes' if row['available'] else 'no'}" for row in found["backends"]]
    yield f"backends  {', '.join(backends)}"
    for warning in warnings:
        yield f"warning   {warning.code}: {warning.message}; {warning.advice}"
    yield from _conclusions(found, warnings)


def _conclusions(found: Records, warnings: Sequence[Finding]) -> Iterator[str]:
    if not warnings:
        yield "No problems found."
    if not found["host"][0]["can_launch"]:
        yield "no backend, so nothing can be launched; install a torch built with gloo or NCCL"


def _samplers() -> str:
    """Return a line with the readings that a launch records, and with those that are not available here."""
    devices, why = unreadable_metrics()
    found = ["resident sets and other processes' share of the CPU"]
    for index, unread in devices:
        by_reason = {why: ", ".join(each for each in unread if unread[each] == why) for why in unread.values()}
        lacking = "; ".join(f"{metrics} ({reason})" for reason, metrics in by_reason.items())
        found.append(f"device {index}" + (f" without {lacking}" if lacking else ""))
    return "; ".join(found if why is None else [*found, f"no device: {why}"])


def problems(machine: Machine) -> Iterator[Finding]:
    """Yield a warning for each condition that disturbs measurements on this machine now."""
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
            f"{100 * busy:.0f}% of the CPU time is used by other processes",
            "end them, or measure when the machine is idle",
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
