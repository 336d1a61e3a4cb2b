"""Describe the nodes of a session: the node of each rank and device, and the differences between nodes.

Equal nodes are described together. For a session on one node, texts do not mention nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from parabench.analysis import format
from parabench.analysis.environment.facts import Record, Rows, devices_text, gpu_rows, link_rows, machine_pairs, speed
from parabench.machine import accelerator


def node_records(environment: Record) -> list[Record]:
    """Return the recorded environment of each node, node 0 first. On one machine, it is the session's environment."""
    return environment.get("nodes") or [environment]


def several_nodes(environment: Record) -> bool:
    """Return whether the session ran on more than one node."""
    return len(node_records(environment)) > 1


def cluster_text(environment: Record) -> str:
    """Return '2 nodes x 8 ranks', or '1 node' for one machine."""
    nodes = format.count(len(node_records(environment)), "node")
    ranks = (environment.get("cluster") or {}).get("ranks_per_node")
    return nodes if ranks is None else f"{nodes} x {format.count(int(ranks), 'rank')}"


def cluster_options(environment: Record) -> list[str]:
    """Return the command-line options of `parabench run` for the nodes, with the placeholder HOST:PORT."""
    cluster = environment.get("cluster")
    if not cluster:
        return []
    size = ["--nnodes", str(cluster["nodes"]), "--nproc-per-node", str(cluster["ranks_per_node"])]
    return [*size, "--rdzv-endpoint", "HOST:PORT"]


def device_text(device: object, node: object, of_several: bool) -> str:
    """Return 'device 3', or 'node 1, device 3' if there are several nodes."""
    return f"node {node}, device {device}" if of_several else f"device {device}"


def nodes_text(nodes: Iterable[int]) -> str:
    """Return 'node 17', 'nodes 0-16, 18'."""
    numbers = list(nodes)
    return f"{'node' if len(numbers) == 1 else 'nodes'} {format.runs(numbers)}"


def node_of_rank(facts: Record) -> dict[int, int]:
    """Return {rank: node} from the facts of a launch; empty if it ran on one node."""
    return {
        int(node["first_rank"]) + at: int(node["node"])
        for node in facts.get("nodes") or []
        for at in range(int(node["ranks"]))
    }


def rank_text(rank: int, facts: Record) -> str:
    """Return 'rank 9', or 'rank 9 (node 1)' for a launch on several nodes."""
    node = node_of_rank(facts).get(rank)
    return f"rank {rank}" if node is None else f"rank {rank} (node {node})"


def nodes_of_group(ranks: str, facts: Record) -> int:
    """Return the number of nodes of a group. Its ranks are written as in `CollectiveSample.ranks`: `0-3`, `0,2`."""
    node_of = node_of_rank(facts)
    runs = [run.partition("-") for run in ranks.split(",")]
    members = [rank for first, _, last in runs for rank in range(int(first), int(last or first) + 1)]
    return len({node_of[rank] for rank in members if rank in node_of}) or 1


def samplers(facts: Record) -> dict[int, Record]:
    """Return {node: report of its sampler} from the facts of a launch. On one node, the only key is 0."""
    reports = {int(node["node"]): node["sampler"] for node in facts.get("nodes") or [] if node.get("sampler")}
    return reports or {0: facts.get("sampler") or {}}


def crowded(environment: Record, world_size: int, threads: int, nodes: int = 1) -> tuple[int, int] | None:
    """Return (computing threads, cores) of a node if it has fewer cores than threads, otherwise None.

    It is the node with the fewest cores. Each of a case's `nodes` has the same number of ranks.
    """
    cores = [one["cores"] for one in node_records(environment)[:nodes] if one.get("cores") is not None]
    return _too_few(cores, -(-world_size // nodes) * threads)


def sharing(environment: Record, case: Mapping[Any, Any]) -> tuple[int, int] | None:
    """Return (ranks, devices) of a node if its ranks share a device, otherwise None.

    It is the node with the fewest devices. `case` is a row with its device, world size and nodes.
    """
    if case["device"] != accelerator.TYPE:
        return None
    nodes = int(case["nodes"])
    devices = [len(one["gpus"]) for one in node_records(environment)[:nodes] if one.get("gpus")]
    return _too_few(devices, -(-int(case["world_size"]) // nodes))


def _too_few(available: Sequence[int], needed: int) -> tuple[int, int] | None:
    """Return (needed, least available) if less is available on a node than needed, otherwise None."""
    least = min(available, default=needed)
    return (needed, least) if needed > least else None


def clock_error_s(facts: Record) -> float | None:
    """Return the largest error between the clocks of any two nodes of a launch, in seconds; None if it is unknown.

    Clocks are compared with node 0's, so the errors of the two nodes add up. The error is 0 on one node.
    """
    clocks = [node.get("clock") or {} for node in facts.get("nodes") or []]
    errors = [clock.get("error_s") for clock in clocks]
    known = [float(error) for error in errors if error is not None]
    return sum(sorted(known)[-2:]) if len(known) == len(errors) else None


def clocks_text(launches: Iterable[Record]) -> str:
    """Return 'clocks of nodes agree within 0.020 ms', from the facts of launches; empty if they ran on one node."""
    errors = [clock_error_s(facts) for facts in launches if facts.get("nodes")]
    if not errors:
        return ""
    known = [error for error in errors if error is not None]
    if len(known) < len(errors):
        return "how far clocks of nodes agree is unknown"
    return f"clocks of nodes agree within {format.milliseconds(max(known))}"


def spread_over_nodes(ranks: Sequence[int], node_of: Mapping[int, int], most: int) -> list[int]:
    """Return at most `most` of the ranks, in order. They are the first ones of each node."""
    by_node: dict[int, list[int]] = {}
    for rank in ranks:
        by_node.setdefault(node_of.get(rank, 0), []).append(rank)
    ordered = sorted((position, rank) for own in by_node.values() for position, rank in enumerate(own))
    return sorted(rank for _, rank in ordered[:most])


def _compared(record: Record) -> dict[str, str]:
    """Return {name: text} of the facts that can change the speed or the results of a node.

    Names of hosts and cards always differ, and installed memory differs by a few MiB.
    """
    network, versions = record.get("network") or {}, record.get("versions") or {}
    speeds = [
        sorted((card.get("bits_per_s") or 0.0 for card in network.get(kind) or []), reverse=True)
        for kind in ("interfaces", "infiniband")
    ]
    cards, ports = (", ".join(map(speed, each)) or "none" for each in speeds)
    facts = {
        "CPU": record.get("cpu"),
        "cores for ranks": record.get("cores"),
        "GPUs": devices_text(record),
        "driver": (record.get("driver") or {}).get("version"),
        "OS": record.get("os"),
        "network": cards,
        "InfiniBand": ports,
        "Python": record.get("python"),
        "torch": versions.get("torch"),
        "CUDA": versions.get("cuda"),
        "NCCL": versions.get("nccl"),
    }
    return {name: format.or_unknown(value) for name, value in facts.items()}


def kinds(environment: Record) -> list[tuple[list[int], Record, str]]:
    """Return (nodes, record of the first, differences from node 0) for each group of equal nodes, node 0's first."""
    records = node_records(environment)
    first = _compared(records[0])
    groups: dict[str, tuple[list[int], Record, str]] = {}
    for at, record in enumerate(records):
        own = _compared(record).items()
        differs = "; ".join(f"{name} {value} against {first[name]}" for name, value in own if value != first[name])
        groups.setdefault(differs, ([], record, differs))[0].append(int(record.get("node", at)))
    return list(groups.values())


def nodes_compared(environment: Record) -> str:
    """Return '63 nodes like node 0; node 17 differs: driver 550.1 against 560.2'; empty for one machine."""
    if not several_nodes(environment):
        return ""
    (alike, *_), *others = kinds(environment)
    if not others:
        return f"all {len(alike)} nodes are alike"
    like = [f"{format.count(len(alike) - 1, 'node')} like node 0"] if len(alike) > 1 else []
    differ = (f"{nodes_text(own)} {'differs' if len(own) == 1 else 'differ'}: {how}" for own, _, how in others)
    return "; ".join([*like, *differ])


def node_rows(environment: Record) -> tuple[tuple[str, ...], Rows]:
    """Return (head, rows) of a table of facts, with a column for each group of equal nodes."""
    found = kinds(environment)
    facts_of_kinds = [dict(machine_pairs(record)) for _, record, _ in found]
    rows: Rows = []
    for name in dict.fromkeys(name for facts in facts_of_kinds for name in facts):
        cells = [facts.get(name, format.UNKNOWN) for facts in facts_of_kinds]
        mark = " (differs)" if name != "host" and len(set(cells)) > 1 else ""
        rows.append((name + mark, *cells))
    return ("", *(nodes_text(own) for own, *_ in found)), rows


def device_kinds(environment: Record) -> list[tuple[list[int], Record]]:
    """Return (nodes, record of the first) for each group of nodes with equal devices and links."""
    # Clocks and links adapt to the current work, so their current speeds are not compared.
    momentary = {"sm_clock_hz", "memory_clock_hz", "pcie_generation", "pcie_width"}
    groups: dict[str, tuple[list[int], Record]] = {}
    for at, record in enumerate(node_records(environment)):
        if gpu_rows(record)[1]:
            lasting = [{name: gpu[name] for name in gpu if name not in momentary} for gpu in record["gpus"]]
            key = repr((lasting, link_rows(record)[1]))
            groups.setdefault(key, ([], record))[0].append(int(record.get("node", at)))
    return list(groups.values())
