"""In what the nodes of a session differ: those that are alike are told together, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from parabench.analysis.environment.machine_facts import Rows, devices_said, gpu_rows, link_rows, machine_pairs
from parabench.analysis.environment.nodes import node_records, nodes_said, several
from parabench.analysis.text import format

# A node each is a column of so many; beyond that, and of further kinds of nodes, only what differs is told.
MOST_COLUMNS = 4


def _version(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda record: format.or_unknown((record.get("versions") or {}).get(name))


def _speeds(kind: str) -> Callable[[Mapping[str, Any]], str]:
    def said(record: Mapping[str, Any]) -> str:
        cards = (record.get("network") or {}).get(kind) or []
        speeds = sorted((card.get("bits_per_s") or 0.0 for card in cards), reverse=True)
        return (
            ", ".join(f"{format.digits(speed / 1e9)} Gb/s" if speed else "speed unknown" for speed in speeds) or "none"
        )

    return said


# What decides how fast a node is, or whether it computes the same. Names of hosts and cards differ by nature, and
# installed memory by a few MiB.
COMPARED: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "CPU": lambda record: format.or_unknown(record.get("cpu")),
    "cores for ranks": lambda record: format.or_unknown(record.get("cores")),
    "GPUs": lambda record: devices_said(record),
    "driver": lambda record: format.or_unknown((record.get("driver") or {}).get("version")),
    "OS": lambda record: format.or_unknown(record.get("os")),
    "network": _speeds("interfaces"),
    "InfiniBand": _speeds("infiniband"),
    "Python": lambda record: format.or_unknown(record.get("python")),
    "torch": _version("torch"),
    "CUDA": _version("cuda"),
    "NCCL": _version("nccl"),
}


@dataclass(frozen=True)
class Kind:
    """Nodes that are alike, and in what they differ from node 0: (name, value here, value there)."""

    nodes: tuple[int, ...]
    differs: tuple[tuple[str, str, str], ...]

    def __str__(self) -> str:
        verb = "differs" if len(self.nodes) == 1 else "differ"
        said = "; ".join(f"{name} {here} against {there}" for name, here, there in self.differs)
        return f"{nodes_said(self.nodes)} {verb}: {said}"


def kinds(environment: Mapping[str, Any]) -> list[Kind]:
    """The nodes, those that are alike together; node 0's kind first."""
    first, *_ = records = node_records(environment)
    there = {name: say(first) for name, say in COMPARED.items()}
    groups: dict[tuple[tuple[str, str, str], ...], list[int]] = {(): []}
    for at, record in enumerate(records):
        here = {name: say(record) for name, say in COMPARED.items()}
        differs = tuple((name, here[name], there[name]) for name in COMPARED if here[name] != there[name])
        groups.setdefault(differs, []).append(int(record.get("node", at)))
    return [Kind(tuple(nodes), differs) for differs, nodes in groups.items()]


def nodes_compared(environment: Mapping[str, Any], most: int = 6) -> str:
    """'63 nodes like node 0; node 17 differs: driver 550.1 against 560.2'; empty for one machine."""
    if not several(environment):
        return ""
    alike, *others = kinds(environment)
    if not others:
        return f"all {len(alike.nodes)} nodes are alike"
    like = len(alike.nodes) - 1
    said = [f"{format.count(like, 'node')} like node 0"] if like else []
    said += [str(kind) for kind in others[:most]]
    if len(others) > most:
        left = [node for kind in others[most:] for node in kind.nodes]
        said.append(f"{nodes_said(left)} in yet other ways")
    return "; ".join(said)


def node_rows(environment: Mapping[str, Any]) -> tuple[tuple[str, ...], Rows]:
    """(head, rows): a row for each fact, a column for each of few nodes, or for each kind of many. What differs between
    columns and is no name says so."""
    records = {int(record.get("node", at)): record for at, record in enumerate(node_records(environment))}
    columns: list[tuple[int, ...]] = [(node,) for node in records]
    if len(columns) > MOST_COLUMNS:
        columns = [kind.nodes for kind in kinds(environment)][:MOST_COLUMNS]
    told = {node: dict(machine_pairs(records[node])) for column in columns for node in column}
    rows: Rows = []
    for name in dict.fromkeys(name for facts in told.values() for name in facts):
        every = [[told[node].get(name, format.UNKNOWN) for node in column] for column in columns]
        cells = [format.listed(dict.fromkeys(values), most=3) for values in every]
        mark = " (differs)" if name != "host" and len(set(cells)) > 1 else ""
        rows.append((name + mark, *cells))
    return ("", *map(nodes_said, columns)), rows


def device_kinds(environment: Mapping[str, Any]) -> list[tuple[tuple[int, ...], Mapping[str, Any]]]:
    """(nodes, the record of the first of them) of the nodes whose devices and links are alike, but for what is of a
    moment; without nodes that have no devices."""
    groups: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    for at, record in enumerate(node_records(environment)):
        if gpu_rows(record)[1]:
            lasting = [{name: gpu[name] for name in gpu if name not in _MOMENTARY} for gpu in record["gpus"]]
            key = repr((lasting, link_rows(record)[1]))
            groups.setdefault(key, []).append((int(record.get("node", at)), record))
    return [(tuple(node for node, _ in alike), alike[0][1]) for alike in groups.values()]


# Clocks and links are as fast as there is work to do.
_MOMENTARY = ("sm_clock_hz", "memory_clock_hz", "pcie_generation", "pcie_width")
