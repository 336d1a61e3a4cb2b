"""Everything automatic is decided. In a case: what neither the suite nor the user says is chosen by the device (on the
CPU it is what `Case` itself has), and every axis is dropped that its strategy does not have. In a suite for several
nodes: which world sizes, and which batch, so that every case does the same work."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from parabench.collectives import canonical, levels_of
from parabench.data import SYNTHETIC, text
from parabench.machine import accelerator
from parabench.machine.machine import Machine
from parabench.models import OF_THE_MODEL
from parabench.plan.case import DEFAULTS, Case
from parabench.plan.pipeline_schedule import automatic
from parabench.plan.suite import BATCH_PER_RANK, BATCHES, Suite, Sweep
from parabench.plan.validate import entry_of_model
from parabench.strategies import OPTIONAL, Layout, StrategyEntry, entry_of

# Two ranks share the layers where nobody says how many: the smallest grid that is one.
TP_SIZE = 2

# What keeps a GPU busy: of a model of 1M parameters in float32 it would be the time of Python that is measured.
ON_CUDA: dict[str, Any] = {"model": "gpt2", "precision": "bf16-mixed", "seq_len": 1024}

# The most samples of a step for each device. All of them must also fit one device, which is what the losses are
# verified against; how much memory that takes is arithmetic for gpt2 in bfloat16 (autocast), not yet measured: AdamW's
# float32 parameters, gradients and two moments of 124M parameters, and 1024 tokens of activations, of which the logits
# of 50,304 words in two precisions with their gradients are half.
MOST_SAMPLES = 8
STATE_BYTES, SAMPLE_BYTES = 2.5e9, 1.2e9
# What of a device's memory training may take: the rest is CUDA's, NCCL's and lost to fragmentation.
SHARE = 0.9
# Where it is unknown how much a device has: what those that train have at least.
UNKNOWN_BYTES = 16e9

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
    resolved = case.replace(**changes)
    model = entry_of_model(resolved)
    if case.verification == OF_THE_MODEL:
        resolved = resolved.replace(verification=model.verification)
    return resolved if model.sequences else resolved.replace(seq_len=1)


def _ranks_per_node(case: Case, algorithm: str, entry: StrategyEntry, size: int, machine: Machine) -> int | None:
    if size == 1 or (levels_of(algorithm) is None and "ranks_per_node" not in entry.axes):
        return None
    # Where a session has nodes, none are made up: a case on one of them is a single group.
    on_nodes = max(machine.nodes, case.nodes) > 1
    return case.ranks_per_node or (size // case.nodes if on_nodes else default_ranks_per_node(size))


def resolve_device(device: str, backend: str, machine: Machine) -> dict[str, Any]:
    """The fields `device` and `backend` with `auto` decided."""
    device = device if device != "auto" else accelerator.TYPE if machine.gpus else "cpu"
    return {"device": device, "backend": backend if backend != "auto" else accelerator.backend_of(device)}


def default_ranks_per_node(size: int) -> int:
    """Ranks of a node where none was asked for: one machine has no nodes; the largest proper divisor makes as few
    of them as it can, and a prime's are of one rank each."""
    return next((size // d for d in range(2, math.isqrt(size) + 1) if size % d == 0), 1)


def fit_to_cluster(suite: Suite, overrides: Mapping[str, tuple[Any, ...]], machine: Machine) -> Suite:
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
            every = machine.world_sizes(accelerator.TYPE if machine.gpus else "cpu")
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


def defaults_on(device: str, machine: Machine, ranks: int | None = None) -> dict[str, Any]:
    """The value of every axis that depends on the device, "cpu" or "cuda"; the batch is for so many `ranks`."""
    if device == "cpu":
        return {name: DEFAULTS[name] for name in (*ON_CUDA, "data", "global_batch")}
    # Nearly every model makes synthetic data; the text that is shipped is shorter than such a batch.
    return {**ON_CUDA, "data": SYNTHETIC, "global_batch": global_batch(machine, ranks)}


def unchosen(device: str, machine: Machine, chosen: Collection[str]) -> dict[str, Any]:
    """The same of the axes that were not chosen; of the ways to give a batch one is enough, and with a vocabulary it is
    text that is read."""
    found = defaults_on(device, machine)
    given = {"global_batch": set(BATCHES), "data": {"data", "vocabulary"}}
    return {name: value for name, value in found.items() if not given.get(name, {name}) & set(chosen)}


def global_batch(machine: Machine, ranks: int | None = None) -> int:
    """Samples of a step on CUDA devices: up to 8 for each of `ranks`, as long as one device can take all of them, and
    one for each at least. Where nobody says how many ranks, for every device; then it is a power of two, so that 1, 2,
    4, ... ranks share it evenly."""
    devices = max(1, machine.ranks(accelerator.TYPE) * machine.nodes)
    least = ranks or 1 << (devices - 1).bit_length()
    memory = min((gpu.memory_bytes or UNKNOWN_BYTES for gpu in machine.gpus), default=UNKNOWN_BYTES)
    batch = least * MOST_SAMPLES
    while batch > least and STATE_BYTES + batch * SAMPLE_BYTES > SHARE * memory:
        batch //= 2
    return batch


def _device(sweep: Sweep, overrides: Mapping[str, tuple[Any, ...]], machine: Machine) -> str:
    """The device of a sweep's cases; where they have both, that of which more is asked."""
    asked = overrides.get("device") or sweep.axes.get("device", ("auto",))
    found = {resolve_device(each, "auto", machine)["device"] for each in asked}
    return accelerator.TYPE if accelerator.TYPE in found else "cpu"


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
    return needed >= text.path_of(DEFAULTS["data"]).stat().st_size


def is_count(value: object) -> bool:
    """Whether it is a whole number of 1 or more; what is none a case refuses, with what it is."""
    return type(value) is int and value >= 1
