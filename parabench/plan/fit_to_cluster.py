"""A suite on all nodes of a session: which world sizes, and which batch, so that every case does the same work."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from parabench.data import SYNTHETIC, text
from parabench.machine.machine import Machine
from parabench.plan.case import DEFAULTS
from parabench.plan.defaults import defaults_on
from parabench.plan.resolve import resolve_device
from parabench.plan.suite import BATCH_PER_RANK, BATCHES, Suite, Sweep


def spread(suite: Suite, overrides: Mapping[str, tuple[Any, ...]], machine: Machine) -> Suite:
    """The suite on all nodes of a session that was told how many ranks each has: what it measures at one world size is
    measured with every rank, what it measures at several from one rank up to all.

    Where a batch that nobody asked for does not divide among all ranks (or those of each world size that was asked
    for), the smallest multiple that does takes its place, in all sweeps alike: every case of a session does the same
    work. Where nobody chose the data and our text is too short for such a batch, it is synthetic, in all sweeps alike
    too. On several nodes `ranks_per_node` is what a node has, not what a suite takes for one on a single machine.
    """
    if machine.ranks_per_node is None:
        return suite
    ranks = machine.nodes * machine.ranks_per_node
    sharing = [n for n in overrides.get("world_size", ()) if is_count(n)] or [ranks]
    sweeps = []
    for each in suite.sweeps:
        axes = dict(each.axes)
        usual = defaults_on(_device(each, overrides, machine), machine, math.lcm(*sharing, DEFAULTS["global_batch"]))
        sizes = axes.get("world_size", ())
        if len(sizes) > 1:
            every = machine.world_sizes("cuda" if machine.gpus else "cpu")
            axes["world_size"] = tuple(n for n in every if n > 1 or 1 in sizes) or (ranks,)
        elif sizes and sizes != ("auto",):
            axes["world_size"] = (ranks,)
        if not set(BATCHES) & {*overrides, *axes}:
            axes["global_batch"] = (usual["global_batch"],)
        if "global_batch" in axes:
            axes["global_batch"] = tuple(math.lcm(n, *sharing) if is_count(n) else n for n in axes["global_batch"])
        if machine.nodes > 1:
            axes.pop("ranks_per_node", None)
        sweeps.append(Sweep(axes))
    spread_out = replace(suite, sweeps=tuple(sweeps))
    if not _outgrown(spread_out.override(overrides), max(sharing), machine):
        return spread_out
    return replace(suite, sweeps=tuple(Sweep({"data": (SYNTHETIC,), **each.axes}) for each in sweeps))


def _device(sweep: Sweep, overrides: Mapping[str, tuple[Any, ...]], machine: Machine) -> str:
    """The device of a sweep's cases; where they have both, that of which more is asked."""
    asked = overrides.get("device") or sweep.axes.get("device", ("auto",))
    return "cuda" if "cuda" in {resolve_device(each, "auto", machine)["device"] for each in asked} else "cpu"


def _outgrown(suite: Suite, ranks: int, machine: Machine) -> bool:
    """Whether the text that is taken where nobody chose data is shorter than a global batch of the suite's."""
    needed = 0
    for each in suite.sweeps:
        usual = defaults_on(_device(each, {}, machine), machine)
        if {"data", "vocabulary"} & each.axes.keys() or usual["data"] != DEFAULTS["data"]:
            continue
        batches = [n for n in each.axes.get("global_batch", ()) if is_count(n)]
        batches += [n * ranks for n in each.axes.get(BATCH_PER_RANK, ()) if is_count(n)]
        lengths = [n for n in each.axes.get("seq_len", (usual["seq_len"],)) if is_count(n)]
        needed = max([needed, *(batch * length for batch in batches for length in lengths)])
    return needed >= text.size(DEFAULTS["data"])


def is_count(value: object) -> bool:
    """Whether it is a whole number of 1 or more; what is none a case refuses, with what it is."""
    return type(value) is int and value >= 1
