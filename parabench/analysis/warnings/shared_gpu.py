"""The doubt about ranks that NCCL lets share a GPU: what they compute is right, how long it takes says nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from parabench.analysis.environment.nodes import node_records
from parabench.analysis.text import format
from parabench.machine import accelerator
from parabench.store.record import Finding


def shared_gpu(cases: pd.DataFrame, environment: Mapping[str, Any]) -> Iterator[Finding]:
    """The finding that cases over NCCL had more ranks on a node than devices; `cases` have the columns device, backend,
    world_size and nodes. Nothing where a session's devices are not known."""
    over = cases.loc[
        (cases["device"] == accelerator.TYPE) & (cases["backend"] == accelerator.BACKEND), ["world_size", "nodes"]
    ]
    found: dict[int, int] = {}
    for world_size, nodes in over.drop_duplicates().to_numpy().tolist():
        known = [len(one["gpus"]) for one in node_records(environment)[:nodes] if one.get("gpus")]
        if known and -(-world_size // nodes) > min(known):
            found[-(-world_size // nodes)] = min(known)
    if found:
        ranks, devices = max(found.items())
        yield Finding(
            code="shared_gpu_nccl",
            message=f"Up to {format.count(ranks, 'rank')} over NCCL on {format.count(devices, 'device')} of a node: "
            "they take turns on it, so these times are for correctness only, and neither speed nor scaling can be "
            "read from them.",
            advice="Compare what is computed; for times give every rank a device of its own.",
        )
