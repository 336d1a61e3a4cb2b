"""`parabench.watch` around a training loop: the loop computes the same, and the recorded times and peaks are right."""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import torch
from torch import Tensor, nn

from benchmarks.gpu.check import Outcome, Target, check
from benchmarks.gpu.sensors import handle_of
from parabench import watch
from parabench.machine import accelerator
from parabench.machine.nvml import asked, readable_devices
from parabench.metrics import STEP_PARTS
from parabench.probes.devices import processes
from parabench.store.record import MIB
from parabench.store.results import load
from parabench.store.store import STORE_NAME

STEPS, WARMUP, INSTRUMENTED = 60, 5, 4
WIDTH, BATCH, LAYERS = 4096, 1024, 4
# `watch` keeps events, not tensors, on the device; instrumented steps may take longer.
MOST_BYTES, SLOWDOWN = MIB, (0.8, 1.25)
# Steps against the wall time of the loop, and the parts of a step against the step.
WALL, PARTS = (0.9, 1.01), 1e-6

Batches = Iterable[tuple[Tensor, Tensor]]
Watching = Callable[[nn.Module, torch.optim.Optimizer], contextlib.AbstractContextManager[Callable[[Batches], Batches]]]


@check("watch", "same losses bit by bit, plausible times, same peak memory, no other CUDA context", 120, holds_gpu=True)
def watching(target: Target) -> Outcome:
    """Train the same model bare and watched, and compare."""
    messages: list[str] = []
    with tempfile.TemporaryDirectory() as out:

        def watched(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
            return watch(model, optimizer, out=out, warmup=WARMUP, instrumented=INSTRUMENTED, log=messages.append)

        train(target, bare)  # loads kernels, and raises the clocks
        losses, plain_s, plain_bytes = train(target, bare)
        contexts = other_contexts(target)
        seen_losses, seen_s, _ = train(target, watched)
        more = other_contexts(target) - contexts
        store = Path(out) / STORE_NAME
        if not store.exists():
            return Outcome.judged(f"nothing was recorded: {' | '.join(messages)}", False)
        samples = load(store).sample
    steps = samples[samples["metric"] == "step_s"].set_index("step")["value"]
    parts = samples[samples["metric"].isin(STEP_PARTS)].groupby("step")["value"]
    peaks = samples[samples["metric"] == "peak_allocated_bytes"]["value"]
    apart = float((parts.sum() - steps).abs().max())
    share, ratio = float(steps.sum()) / seen_s, seen_s / plain_s
    faults = []
    if seen_losses != losses:
        faults.append(f"losses differ: {losses[-1]!r} bare, {seen_losses[-1]!r} watched")
    if len(steps) != STEPS or not float(steps.min()) > 0 or not float(parts.min().min()) >= 0 or not apart < PARTS:
        faults.append(f"{len(steps)} of {STEPS} steps recorded; shortest {steps.min()}; parts {apart:.2g} s off")
    if more:
        faults.append(f"CUDA contexts on other devices: {sorted(more)}")
    text = (
        f"{len(steps)} steps, median {statistics.median(steps) * 1e3:.2f} ms, together {share:.1%} of the loop's time; "
    )
    text += f"the loop takes {ratio - 1:+.1%} watched"
    if not target.is_cpu:
        if not WALL[0] < share < WALL[1] or not SLOWDOWN[0] < ratio < SLOWDOWN[1]:
            faults.append("implausible times")
        extra = float(peaks.max()) - (plain_bytes or 0)
        text += f"; peak {extra / MIB:+.2f} MiB"
        if not abs(extra) <= MOST_BYTES:
            faults.append("peak memory differs")
    return Outcome.judged("; ".join([*faults, text]), not faults, wall_share=share, slowdown=ratio)


@contextlib.contextmanager
def bare(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Callable[[Batches], Batches]]:
    yield lambda batches: batches


def train(target: Target, watching: Watching) -> tuple[list[float], float, int | None]:
    """Train a perceptron, whose kernels compute the same bits in each run: its losses, wall time and peak memory."""
    device = target.device
    width, batch = (32, 8) if target.is_cpu else (WIDTH, BATCH)
    torch.manual_seed(0)
    with device:
        model = nn.Sequential(*(m for _ in range(LAYERS) for m in (nn.Linear(width, width), nn.GELU())))
    data = [(torch.randn(batch, width, device=device), torch.randn(batch, width, device=device)) for _ in range(4)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    losses = []
    accelerator.synchronize(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with watching(model, optimizer) as steps:
        begin = time.perf_counter()
        for inputs, targets in steps(data[at % len(data)] for at in range(STEPS)):
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        accelerator.synchronize(device)
        wall_s = time.perf_counter() - begin
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    values = [loss.item() for loss in losses]
    del model, optimizer, data, losses, loss
    gc.collect()
    return values, wall_s, peak


def other_contexts(target: Target) -> set[int]:
    """NVML's numbers of the devices, other than the target, on which this process has a CUDA context."""

    def listed() -> set[int]:
        here = pynvml.nvmlDeviceGetIndex(handle_of(target.device))
        others = set(readable_devices()) - {here}
        return {at for at in others if os.getpid() in processes(pynvml.nvmlDeviceGetHandleByIndex(at))}

    return set() if target.is_cpu else asked(listed)[0] or set()
