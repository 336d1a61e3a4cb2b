"""Which node a rank, a device or a record belongs to, and in what nodes differ: those that are alike are told together,
however many there are. Of a session of one machine nothing is said of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parabench.analysis import format
from parabench.analysis.environment.facts import Rows, devices_said, gpu_rows, link_rows, machine_pairs
from parabench.machine import accelerator


def node_records(environment: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What is recorded of each node, node 0 first; of one machine, the environment itself."""
    return environment.get("nodes") or [environment]


def several_nodes(environment: Mapping[str, Any]) -> bool:
    """Whether the session ran on more than one node: only then a node is named beside a device."""
    return len(node_records(environment)) > 1


def cluster_said(environment: Mapping[str, Any]) -> str:
    """'2 nodes x 8 ranks'; of one machine '1 node'."""
    nodes = format.count(len(node_records(environment)), "node")
    ranks = (environment.get("cluster") or {}).get("ranks_per_node")
    return nodes if ranks is None else f"{nodes} x {format.count(int(ranks), 'rank')}"


def cluster_options(environment: Mapping[str, Any]) -> list[str]:
    """The options of `parabench run` that say on how many nodes; where they meet is for whoever runs it again."""
    cluster = environment.get("cluster")
    if not cluster:
        return []
    size = ["--nnodes", str(cluster["nodes"]), "--nproc-per-node", str(cluster["ranks_per_node"])]
    return [*size, "--rdzv-endpoint", "HOST:PORT"]


def device_said(device: object, node: object, of_several: bool) -> str:
    """'device 3', of several nodes 'node 1, device 3'."""
    return f"node {node}, device {device}" if of_several else f"device {device}"


def nodes_said(nodes: Iterable[int]) -> str:
    """'node 17', 'nodes 0-16, 18'."""
    numbers = list(nodes)
    return f"{'node' if len(numbers) == 1 else 'nodes'} {format.runs(numbers)}"


def node_of_rank(facts: Mapping[str, Any]) -> dict[int, int]:
    """{rank: node} of a launch, by its facts; empty where it ran on one node."""
    return {rank: int(node["node"]) for node in facts.get("nodes") or [] for rank in _ranks(node)}


def rank_said(rank: int, facts: Mapping[str, Any]) -> str:
    """'rank 9', of a launch on several nodes 'rank 9 (node 1)'."""
    node = node_of_rank(facts).get(rank)
    return f"rank {rank}" if node is None else f"rank {rank} (node {node})"


def nodes_of_group(ranks: str, facts: Mapping[str, Any]) -> int:
    """Return on how many nodes the ranks of a group are, written `0-3` or `0,2` as in `CollectiveSample.ranks`."""
    node_of = node_of_rank(facts)
    runs = [run.partition("-") for run in ranks.split(",")]
    members = [rank for first, _, last in runs for rank in range(int(first), int(last or first) + 1)]
    return len({node_of[rank] for rank in members if rank in node_of}) or 1


def samplers(facts: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """{node: what its sampler told of itself} of a launch; of one node that is node 0's."""
    told = {int(node["node"]): node["sampler"] for node in facts.get("nodes") or [] if node.get("sampler")}
    return told or {0: facts.get("sampler") or {}}


def crowded(environment: Mapping[str, Any], world_size: int, threads: int, nodes: int = 1) -> tuple[int, int] | None:
    """Return (computing threads, cores) of the case's node with the fewest cores if they are too few, otherwise `None`.

    A case has equally many ranks on each of its `nodes`.
    """
    return _too_few([one.get("cores") for one in node_records(environment)[:nodes]], -(-world_size // nodes) * threads)


def sharing(environment: Mapping[str, Any], case: Mapping[Any, Any]) -> tuple[int, int] | None:
    """Return (ranks, devices) of the case's node with the fewest devices if ranks share one, otherwise `None`.

    `case` is a row with its device, world size and nodes.
    """
    if case["device"] != accelerator.TYPE:
        return None
    nodes = int(case["nodes"])
    devices = [len(one.get("gpus") or ()) or None for one in node_records(environment)[:nodes]]
    return _too_few(devices, -(-int(case["world_size"]) // nodes))


def _too_few(there: Iterable[int | None], needed: int) -> tuple[int, int] | None:
    known = [count for count in there if count is not None]
    return (needed, min(known)) if known and needed > min(known) else None


def clock_error_s(facts: Mapping[str, Any]) -> float | None:
    """By how much clocks of two nodes of a launch may differ at most, in seconds: each is known against node 0's, so
    between two of them both errors count. 0 on one node; None where one is not known."""
    clocks = [node.get("clock") for node in facts.get("nodes") or []]
    errors = [clock.get("error_s") if clock else None for clock in clocks]
    known = [float(error) for error in errors if error is not None]
    return sum(sorted(known)[-2:]) if len(known) == len(errors) else None


def clocks_said(launches: Iterable[Mapping[str, Any]]) -> str:
    """How well moments on several nodes may be compared, of launches by their facts: 'clocks of nodes agree within
    0.020 ms'. Empty where each ran on one node."""
    errors = [clock_error_s(facts) for facts in launches if facts.get("nodes")]
    if not errors:
        return ""
    known = [error for error in errors if error is not None]
    if len(known) < len(errors):
        return "how far clocks of nodes agree is unknown"
    return f"clocks of nodes agree within {format.milliseconds(max(known))}"


def _ranks(node: Mapping[str, Any]) -> Iterator[int]:
    yield from range(int(node["first_rank"]), int(node["first_rank"]) + int(node["ranks"]))


def spread_over_nodes(ranks: Sequence[int], node_of: Mapping[int, int], most: int) -> list[int]:
    """At most so many of the ranks, in order: as many of each node as there is room for, its first ones."""
    by_node: dict[int, list[int]] = {}
    for rank in ranks:
        by_node.setdefault(node_of.get(rank, 0), []).append(rank)
    turns = [(place, rank) for own in by_node.values() for place, rank in enumerate(own)]
    return sorted(rank for _, rank in sorted(turns)[:most])


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
    """Equal nodes, the record of the first, and their differences from node 0."""

    nodes: tuple[int, ...]
    record: Mapping[str, Any]
    differs: str

    def __str__(self) -> str:
        return f"{nodes_said(self.nodes)} {'differs' if len(self.nodes) == 1 else 'differ'}: {self.differs}"


def kinds(environment: Mapping[str, Any]) -> list[Kind]:
    """Return the nodes by their differences from node 0, whose kind is first."""
    first, *_ = records = node_records(environment)
    groups: dict[str, dict[int, Mapping[str, Any]]] = {}
    for at, record in enumerate(records):
        here = {name: (say(record), say(first)) for name, say in COMPARED.items()}
        differs = "; ".join(f"{name} {own} against {there}" for name, (own, there) in here.items() if own != there)
        groups.setdefault(differs, {})[int(record.get("node", at))] = record
    return [Kind(tuple(alike), next(iter(alike.values())), differs) for differs, alike in groups.items()]


def nodes_compared(environment: Mapping[str, Any]) -> str:
    """Return '63 nodes like node 0; node 17 differs: driver 550.1 against 560.2'; empty for one machine."""
    if not several_nodes(environment):
        return ""
    alike, *others = kinds(environment)
    if not others:
        return f"all {len(alike.nodes)} nodes are alike"
    like = len(alike.nodes) - 1
    return "; ".join([f"{format.count(like, 'node')} like node 0"] * (like > 0) + [str(kind) for kind in others])


def node_rows(environment: Mapping[str, Any]) -> tuple[tuple[str, ...], Rows]:
    """Return (head, rows): a row for each fact, and a column for each kind of node, with the facts of its first."""
    found = kinds(environment)
    told = [dict(machine_pairs(kind.record)) for kind in found]
    rows: Rows = []
    for name in dict.fromkeys(name for facts in told for name in facts):
        cells = [facts.get(name, format.UNKNOWN) for facts in told]
        mark = " (differs)" if name != "host" and len(set(cells)) > 1 else ""
        rows.append((name + mark, *cells))
    return ("", *(nodes_said(kind.nodes) for kind in found)), rows


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
