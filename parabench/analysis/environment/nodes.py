"""Which node a rank, a device or a record belongs to. Of a session of one machine nothing is said of nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from parabench.analysis.text import format
from parabench.machine import accelerator


def node_records(environment: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What is recorded of each node, node 0 first; of one machine, the environment itself."""
    return environment.get("nodes") or [environment]


def several(environment: Mapping[str, Any]) -> bool:
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
    numbers = sorted(nodes)
    runs = ([n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]))
    said = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{'node' if len(numbers) == 1 else 'nodes'} {said}"


def node_of_rank(facts: Mapping[str, Any]) -> dict[int, int]:
    """{rank: node} of a launch, by its facts; empty where it ran on one node."""
    return {rank: int(node["node"]) for node in facts.get("nodes") or [] for rank in _ranks(node)}


def rank_said(rank: int, facts: Mapping[str, Any]) -> str:
    """'rank 9', of a launch on several nodes 'rank 9 (node 1)'."""
    node = node_of_rank(facts).get(rank)
    return f"rank {rank}" if node is None else f"rank {rank} (node {node})"


def nodes_of_group(ranks: str, facts: Mapping[str, Any]) -> int:
    """On how many nodes the ranks of a group lie, written `0-3` or `0,2` as in `CollectiveSample.ranks`; 1 where
    something else is written."""
    node_of = node_of_rank(facts)
    runs = [_RUN.fullmatch(run) for run in ranks.split(",")]
    ends = [(int(run[1]), int(run[2] or run[1])) for run in runs if run]
    return len({node for rank, node in node_of.items() if any(first <= rank <= last for first, last in ends)}) or 1


_RUN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def samplers(facts: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """{node: what its sampler told of itself} of a launch; of one node that is node 0's."""
    told = {int(node["node"]): node["sampler"] for node in facts.get("nodes") or [] if node.get("sampler")}
    return told or {0: facts.get("sampler") or {}}


def crowded(environment: Mapping[str, Any], world_size: int, threads: int, nodes: int = 1) -> tuple[int, int] | None:
    """(computing threads, cores) of the node with the fewest cores among those of a case, which has as many ranks on
    each of its `nodes`, where they are too few; else None, also where no node's cores are known."""
    cores = [one.get("cores") for one in node_records(environment)[:nodes]]
    known = [have for have in cores if isinstance(have, int)]
    wanted = -(-world_size // nodes) * threads
    return (wanted, min(known)) if known and wanted > min(known) else None


def sharing(environment: Mapping[str, Any], case: Mapping[Any, Any]) -> tuple[int, int] | None:
    """(ranks, devices) of the node with the fewest devices among those of a case, where ranks have to share one; else
    None, also where no node's devices are known. `case` is a row with its device, world size and nodes."""
    if case["device"] != accelerator.TYPE:
        return None
    nodes = int(case["nodes"])
    counts = [len(one["gpus"]) for one in node_records(environment)[:nodes] if one.get("gpus")]
    ranks = -(-int(case["world_size"]) // nodes)
    return (ranks, min(counts)) if counts and ranks > min(counts) else None


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
