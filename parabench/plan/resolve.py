"""Everything automatic in a case is decided, and every axis dropped that its strategy does not have."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

from parabench.collectives import canonical, levels_of
from parabench.machine.machine import Machine
from parabench.models.lookup import entry_of_model
from parabench.plan.case import DEFAULTS, Case
from parabench.plan.pipeline_schedule import automatic
from parabench.strategies import OPTIONAL, Layout, StrategyEntry, entry_of

# Two ranks share the layers where nobody says how many: the smallest grid that is one.
TP_SIZE = 2

# It tries every number up to the batch's, which grows with the ranks; a sweep asks for the same again and again.
_microbatches = cache(automatic)


def resolve(case: Case, machine: Machine) -> Case:
    """`case` as it will be launched."""
    entry = entry_of(case.strategy)
    changes = resolve_device(case.device, case.backend, machine)
    changes |= {name: DEFAULTS[name] for name in OPTIONAL if name not in entry.axes and name != "ranks_per_node"}
    if entry.one_rank_only:
        changes |= {"world_size": 1, "nodes": 1}
    size = changes.get("world_size", case.world_size)
    if "algorithm" in entry.axes:
        changes["algorithm"] = canonical(case.algorithm) if size > 1 else "native"
    if case.grad_accumulation == 1 or "no_sync" not in entry.axes:
        changes["no_sync"] = DEFAULTS["no_sync"]
    changes["ranks_per_node"] = _ranks_per_node(case, changes["algorithm"], entry, size, machine)
    if entry.layout is Layout.GRID and case.tp_size is None:
        changes["tp_size"] = math.gcd(TP_SIZE, size)
    if "microbatches" in entry.axes and case.microbatches is None:
        changes["microbatches"] = _microbatches(case.schedule, size, case.global_batch)
    resolved = replace(case, **changes)
    return resolved if entry_of_model(resolved).sequences else replace(resolved, seq_len=1)


def _ranks_per_node(case: Case, algorithm: str, entry: StrategyEntry, size: int, machine: Machine) -> int | None:
    if size == 1 or (levels_of(algorithm) is None and "ranks_per_node" not in entry.axes):
        return None
    # Where a session has nodes, none are made up: a case on one of them is a single group.
    on_nodes = max(machine.nodes, case.nodes) > 1
    return case.ranks_per_node or (size // case.nodes if on_nodes else default_ranks_per_node(size))


def resolve_device(device: str, backend: str, machine: Machine) -> dict[str, Any]:
    """The fields `device` and `backend` with `auto` decided."""
    device = device if device != "auto" else "cuda" if machine.gpus else "cpu"
    return {"device": device, "backend": backend if backend != "auto" else "nccl" if device == "cuda" else "gloo"}


def default_ranks_per_node(size: int) -> int:
    """Ranks of a node where none was asked for: one machine has no nodes; the largest proper divisor makes as few
    of them as it can, and a prime's are of one rank each."""
    return next((size // d for d in range(2, math.isqrt(size) + 1) if size % d == 0), 1)
