"""Sessions of several nodes with a known truth: what is recorded of the nodes, and launches whose ranks ran on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fake_devices
import fake_results as fake

from parabench.store.record import Launch


def environment(
    nodes: int = 2, ranks_per_node: int = 2, *, changed: Mapping[int, dict[str, Any]] | None = None, **common: Any
) -> dict[str, Any]:
    """A session's environment: node 0 is `fake.ENVIRONMENT` with what all nodes have in `common`, the others are like
    it but for their host and what is `changed` of each."""
    records = [
        {**fake.ENVIRONMENT, **common, "host": f"lab{node}", **(changed or {}).get(node, {})} | {"node": node}
        for node in range(nodes)
    ]
    own = {name: value for name, value in records[0].items() if name != "node"}
    return own | {"nodes": records, "cluster": {"nodes": nodes, "ranks_per_node": ranks_per_node}}


def spread(of: Launch, nodes: int = 2, *, error_s: float | None = 20e-6) -> Launch:
    """The launch, its ranks spread evenly over nodes, whose clocks are known to `error_s` (None: they are not)."""
    ranks = of.case.world_size // nodes
    clocks = [None if error_s is None else {"offset_s": 0.25 * node, "error_s": error_s} for node in range(nodes)]
    clocks[0] = {"offset_s": 0.0, "error_s": 0.0}
    of.facts["nodes"] = [
        {"node": node, "host": f"lab{node}", "first_rank": node * ranks, "ranks": ranks, "clock": clocks[node]}
        for node in range(nodes)
    ]
    return of


def slowed(of: Launch, node: int, factor: float) -> Launch:
    """The launch with that node's ranks computing their forward pass longer; the step is as long as it was."""
    first, ranks = next((one["first_rank"], one["ranks"]) for one in of.facts["nodes"] if one["node"] == node)
    of.samples = [
        one._replace(value=one.value * factor)
        if one.metric == "forward_s" and one.value is not None and first <= one.rank < first + ranks
        else one
        for one in of.samples
    ]
    return of


def read(
    of: Launch,
    nodes: int = 2,
    *,
    devices: int = 2,
    changed: Mapping[tuple[int, int], dict[str, fake_devices.Value]] | None = None,
    others: Mapping[int, fake_devices.Value] | None = None,
) -> Launch:
    """The launch, spread and read: so many devices of each node, healthy but for what is `changed` of (node, device),
    and each node's host, of whose CPU time `others` use 2 % where nothing else is said."""
    told, hosts = [], []
    for node in range(nodes):
        for device in range(devices):
            samples = fake_devices.device_samples(device, **(changed or {}).get((node, device), {}))
            told += [sample._replace(node=node) for sample in samples]
        hosts += [one._replace(node=node) for one in fake_devices.host_samples(0, (others or {}).get(node, 0.02))]
    return fake_devices.read(spread(of, nodes), told, hosts)
