"""Replace automatic values of cases and suites with fixed ones, which depend on the machine."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from parabench.collectives import canonical, levels_of
from parabench.data import SYNTHETIC
from parabench.machine import accelerator
from parabench.machine.machine import Machine
from parabench.models import OF_THE_MODEL
from parabench.plan.case import DEFAULTS, Case
from parabench.plan.schedule import default_microbatches
from parabench.plan.suite import BATCHES, Suite, Sweep
from parabench.plan.validate import entry_of_model
from parabench.strategies import OPTIONAL, Layout, entry_of

# The default number of ranks that share the layers: the smallest grid.
TP_SIZE = 2

# Defaults that keep a GPU busy. With 1M parameters in float32, Python's time would be measured.
ON_CUDA: dict[str, Any] = {"model": "gpt2", "precision": "bf16-mixed", "seq_len": 1024}

# The most samples of a step per device. All samples must also fit one device, because it verifies the losses.
# The bytes are computed for gpt2 in bfloat16 (autocast), not measured. STATE_BYTES: AdamW's float32 parameters,
# gradients and two moments of 124M parameters. SAMPLE_BYTES: activations of 1024 tokens; half of them are the logits
# of 50,304 words in two precisions with their gradients.
MOST_SAMPLES = 8
STATE_BYTES, SAMPLE_BYTES = 2.5e9, 1.2e9
# The share of a device's memory for training. The rest is for CUDA, NCCL and fragmentation.
SHARE = 0.9
# More ranks than this read a larger batch than the default text holds: it has 8,867 bytes, a rank's sequence 64.
MOST_WITH_TEXT = 128
# The assumed memory of a device if it is unknown: GPUs for training have at least this much.
UNKNOWN_BYTES = 16e9


def resolve(case: Case, machine: Machine) -> Case:
    """Return the case with fixed values for automatic fields, and defaults for fields that its strategy lacks."""
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
    has_levels = levels_of(changes["algorithm"]) is not None or "ranks_per_node" in entry.axes
    # If the session has nodes, a case on a single node is one group.
    on_nodes = max(machine.nodes, case.nodes) > 1
    per_node = case.ranks_per_node or (size // case.nodes if on_nodes else default_ranks_per_node(size))
    changes["ranks_per_node"] = per_node if has_levels and size > 1 else None
    if entry.layout is Layout.GRID and case.tp_size is None:
        changes["tp_size"] = math.gcd(TP_SIZE, size)
    if "microbatches" in entry.axes and case.microbatches is None:
        changes["microbatches"] = default_microbatches(case.schedule, size, case.global_batch)
    resolved = case.replace(**changes)
    model = entry_of_model(resolved)
    if case.verification == OF_THE_MODEL:
        resolved = resolved.replace(verification=model.verification)
    return resolved if model.sequences else resolved.replace(seq_len=1)


def device_of(axes: Mapping[str, Any], machine: Machine) -> str:
    """Return the device of a case with these axes. By default or for `auto`, it is "cuda" if there are any GPUs."""
    device: str = axes.get("device", "auto")
    return device if device != "auto" else accelerator.TYPE if machine.gpus else "cpu"


def resolve_device(device: str, backend: str, machine: Machine) -> dict[str, Any]:
    """Return {"device": ..., "backend": ...} with the values that `auto` means on this machine."""
    device = device_of({"device": device}, machine)
    return {"device": device, "backend": backend if backend != "auto" else accelerator.backend_of(device)}


def default_ranks_per_node(size: int) -> int:
    """Return the default number of ranks per simulated node on one machine: the largest proper divisor of `size`."""
    return next((size // d for d in range(2, math.isqrt(size) + 1) if size % d == 0), 1)


def fit_to_cluster(suite: Suite, overrides: Mapping[str, tuple[Any, ...]], machine: Machine) -> Suite:
    """Return the suite for all ranks of a session's nodes. Without a number of ranks per node, it is unchanged.

    All sweeps have the smallest multiple of the suite's batch that each world size divides.
    """
    if machine.ranks_per_node is None:
        return suite
    ranks = machine.nodes * machine.ranks_per_node
    sharing = [n for n in overrides.get("world_size", ()) if is_count(n)] or [ranks]
    sweeps = []
    for each in suite.sweeps:
        axes = dict(each.axes)
        devices = {
            device_of({"device": name}, machine) for name in overrides.get("device") or axes.get("device", ("auto",))
        }
        sizes = axes.get("world_size", ())
        # One world size becomes all ranks; several go from one rank up to all.
        if len(sizes) > 1:
            every = machine.world_sizes(accelerator.TYPE if machine.gpus else "cpu")
            axes["world_size"] = tuple(n for n in every if n > 1 or 1 in sizes) or (ranks,)
        elif sizes and sizes != ("auto",):
            axes["world_size"] = (ranks,)
        if not set(BATCHES) & {*overrides, *axes}:
            usual: int = DEFAULTS["global_batch"]
            if accelerator.TYPE in devices:
                usual = global_batch(machine, math.lcm(*sharing, usual))
            axes["global_batch"] = (usual,)
        if "global_batch" in axes:
            axes["global_batch"] = tuple(math.lcm(n, *sharing) if is_count(n) else n for n in axes["global_batch"])
        if machine.nodes > 1:
            axes.pop("ranks_per_node", None)  # the session's value replaces it
        if max(sharing) > MOST_WITH_TEXT and not {"data", "vocabulary"} & {*overrides, *axes}:
            axes["data"] = (SYNTHETIC,)
        sweeps.append(Sweep(axes))
    return replace(suite, sweeps=tuple(sweeps))


def defaults_on(device: str, machine: Machine) -> dict[str, Any]:
    """Return the defaults of the axes that depend on the device, "cpu" or "cuda"."""
    if device == "cpu":
        return {name: DEFAULTS[name] for name in (*ON_CUDA, "data", "global_batch")}
    # The shipped text is shorter than such a batch.
    return {**ON_CUDA, "data": SYNTHETIC, "global_batch": global_batch(machine)}


def unchosen(device: str, machine: Machine, chosen: Collection[str]) -> dict[str, Any]:
    """Return the defaults of `defaults_on` for axes that are not in `chosen`.

    Any axis of BATCHES replaces the default batch. A vocabulary replaces the default data, because it requires text.
    """
    found = defaults_on(device, machine)
    given = {"global_batch": set(BATCHES), "data": {"data", "vocabulary"}}
    return {name: value for name, value in found.items() if not given.get(name, {name}) & set(chosen)}


def global_batch(machine: Machine, ranks: int | None = None) -> int:
    """Return the default samples of a step on CUDA: MOST_SAMPLES per rank, or fewer so that all fit one device.

    Without `ranks`, the number of devices is rounded up to a power of two.
    """
    devices = max(1, machine.ranks(accelerator.TYPE) * machine.nodes)
    least = ranks or 1 << (devices - 1).bit_length()
    memory = min((gpu.memory_bytes or UNKNOWN_BYTES for gpu in machine.gpus), default=UNKNOWN_BYTES)
    batch = least * MOST_SAMPLES
    while batch > least and STATE_BYTES + batch * SAMPLE_BYTES > SHARE * memory:
        batch //= 2
    return batch


def is_count(value: object) -> bool:
    """Return whether `value` is a whole number of 1 or more. `Case` raises for any other count."""
    return type(value) is int and value >= 1
