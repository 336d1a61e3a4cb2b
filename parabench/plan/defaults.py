"""What a case is where neither the suite nor the user says, by device. On the CPU it is what `Case` itself has."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from parabench.data import SYNTHETIC
from parabench.machine import accelerator
from parabench.machine.machine import Machine
from parabench.plan.case import DEFAULTS
from parabench.plan.suite import BATCHES

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
