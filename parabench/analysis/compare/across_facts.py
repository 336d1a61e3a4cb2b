"""In what two machines differ, and what casts doubt on comparing them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from parabench.analysis.compare.sides import Difference, differences, unfinished
from parabench.analysis.environment.machine_facts import gpu_rows, machine_pairs
from parabench.analysis.environment.node_facts import nodes_compared
from parabench.analysis.environment.nodes import cluster_said, node_records, several
from parabench.analysis.session import SessionData
from parabench.analysis.text import format
from parabench.store.record import Finding

# What `sides.differences` tells and the table of hardware tells better.
HARDWARES = ("devices", "driver", "cpu", "cores", "host", "os", "cluster", "nodes")
# What `machine_pairs` tells only of machines with devices.
_DEVICES = ("driver", "newest CUDA it runs")
NOT_RECORDED = "not recorded"


def hardware_name(side: SessionData) -> str:
    """What a side's cases ran on: '8 x NVIDIA A100', '16 cores of Some CPU', '2 nodes, node 0 with 8 x NVIDIA A100'."""
    environment, devices = side.session.environment, set(side.launches["device"])
    said = []
    if "cuda" in devices:
        kinds = format.kinds(str(gpu.get("name")) for gpu in environment.get("gpus") or [])
        said.append(format.listed(kinds, most=4) or "CUDA devices that were not recorded")
    if "cpu" in devices:
        cores, name = environment.get("cores"), environment.get("cpu") or "a CPU that was not recorded"
        said.append(f"{format.count(cores, 'core')} of {name}" if cores else str(name))
    count = len(node_records(environment))
    return (f"{count} nodes, node 0 with " if count > 1 else "") + " and ".join(said)


def hardware_differences(base: SessionData, candidate: SessionData) -> Iterator[Difference]:
    """What the records say of two machines and is not the same."""
    for name, values in hardware_facts((base, candidate)).items():
        if values[0] != values[1]:
            yield Difference(name, values[0], values[1], matters=name != "host")


def hardware_facts(sides: Sequence[SessionData]) -> dict[str, list[str]]:
    """{name: what each side's record says of it}."""
    environments = [side.session.environment for side in sides]
    told = [dict(machine_pairs(environment)) for environment in environments]
    if any(map(several, environments)):
        told = [_nodes(environment) | facts for environment, facts in zip(environments, told, strict=True)]
    if all(environment.get("gpus") for environment in environments):  # else there is nothing to hold them against
        told = [facts | _devices(environment) for facts, environment in zip(told, environments, strict=True)]
    else:
        told = [{name: facts[name] for name in facts if name not in _DEVICES} for facts in told]
    names = dict.fromkeys(name for facts in told for name in facts)
    return {name: [facts.get(name, NOT_RECORDED) for facts in told] for name in names}


def _nodes(environment: Mapping[str, Any]) -> dict[str, str]:
    """How many nodes there are, and whether they are alike: all other facts are node 0's."""
    return {"cluster": cluster_said(environment), "nodes": nodes_compared(environment) or "one"}


def software_differences(base: SessionData, candidate: SessionData) -> Iterator[Difference]:
    """Versions, settings and protocol that are not the same."""
    return (each for each in differences(base, candidate) if each.name not in HARDWARES)


def _devices(environment: Mapping[str, Any]) -> dict[str, str]:
    """Limits and states of the devices, those of each kind once; name and memory are in `machine_pairs`."""
    facts = {
        f"device: {name}": "; ".join(dict.fromkeys(values))
        for name, *values in gpu_rows(environment)[1]
        if name not in ("Name", "Memory")
    }
    matrix = (environment.get("links") or {}).get("matrix") or []
    between = {str(cell) for i, row in enumerate(matrix) for j, cell in enumerate(row) if i != j and cell}
    if between:
        facts["links between devices"] = ", ".join(sorted(between))
    return facts


def doubts(
    base: SessionData, candidate: SessionData, pairs: Iterable[tuple[str, str]], energy_sources: tuple[str, str]
) -> Iterator[Finding]:
    """What a reader must know before taking a ratio for the hardware's. `pairs` are (base, candidate) case ids."""
    yield Finding(
        "one_machine",
        "Each side is one machine at one time: the intervals are about its launches, and say nothing of how much other "
        "machines of the same kind, or another day, would differ.",
        "Measure several machines of a kind before you buy or blame one.",
    )
    pairs = list(pairs)
    kinds = _two_kinds(base, candidate, pairs, "statistic")
    if kinds:
        yield Finding(
            "statistic",
            f"A launch's number is the {kinds[0]} of its steps on {base.role} and the {kinds[1]} on {candidate.role}, "
            "because CPUs are shared and devices are not: part of the ratio is the statistic's.",
            "Read nothing into a ratio near 1.",
        )
    devices = _two_kinds(base, candidate, pairs, "device")
    if devices:
        kind = {"cpu": "resident memory of a process", "cuda": "what torch allocated on a device"}
        yield Finding(
            "memory",
            f"Peak memory is {kind[devices[0]]} on {base.role} and {kind[devices[1]]} on {candidate.role}, which are "
            "not the same.",
            "Do not read the ratio per GB as one of efficiency.",
        )
    if all(energy_sources) and energy_sources[0] != energy_sources[1]:
        yield Finding(
            "energy",
            f"Joules are from the {energy_sources[0]} on {base.role} and from the {energy_sources[1]} on "
            f"{candidate.role}.",
            "Power readings can be off by several per cent; compare devices that have the same source.",
        )
    software = [each.name for each in software_differences(base, candidate)]
    if software:
        yield Finding(
            "software",
            f"The sides differ in more than hardware: {format.listed(software, most=8)}. The ratios are of all of it.",
            "Measure both with the same software to see what the hardware does.",
        )
    yield from unfinished(base, candidate)


def _two_kinds(
    base: SessionData, candidate: SessionData, pairs: list[tuple[str, str]], column: str
) -> tuple[str, str] | None:
    """What `column` says on both sides of the first pair that does not agree."""
    for old, new in pairs:
        found = str(base.cases_by_id.loc[old, column]), str(candidate.cases_by_id.loc[new, column])
        if found[0] != found[1]:
            return found
    return None
