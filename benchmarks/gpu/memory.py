"""Peak memory holds the training run and no instrument."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import torch

from benchmarks.gpu.check import Outcome, Target
from benchmarks.gpu.launches import case, failure, launched
from parabench import Model
from parabench.models.base import build_model
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.store.record import MIB, Launch, Status
from parabench.workloads import trainer

SEQUENCE, BATCH = 256, 8
WARMUP, STEPS = 3, 5
PROTOCOL = Protocol(warmup=WARMUP, steps=STEPS, instrumented=0)
# The bare loop keeps its one batch on the device, and other small tensors, so its peak may differ a little.
MARGIN = 0.02
# Building and warming up, too.
LIMIT_S = 90.0


def model_of(target: Target) -> str:
    return "gpt-nano" if target.is_cpu else "gpt2"


def peaks(target: Target) -> Outcome:
    """Measure the peak as launches do, with the gradient norm of step 0 left out, and in a bare training loop."""
    found = []
    for model in (model_of(target), f"benchmarks.gpu.memory:without_norm_{target.device.type}"):
        seen = launched(case(target, model=model, seq_len=SEQUENCE, global_batch=BATCH), PROTOCOL)
        if seen.status is not Status.OK:
            return Outcome.judged(failure(seen), False)
        found.append(peak(seen, target))
    # In its own process: this one must not hold a CUDA context.
    command = [sys.executable, "-m", "benchmarks.gpu.memory", target.device.type, model_of(target)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    if ended.returncode:
        return Outcome.judged(f"the bare loop failed: {ended.stderr[-300:]}", False)
    bare = float(json.loads(ended.stdout.splitlines()[-1]))
    apart = found[0] / bare - 1
    text = (
        f"{found[0] / MIB:.1f} MiB with the norm, {found[1] / MIB:.1f} MiB without, {bare / MIB:.1f} MiB in a bare loop"
    )
    passed = found[0] == found[1] > 0 and abs(apart) < MARGIN
    return Outcome.judged(f"{text} ({apart:+.2%})", passed or target.is_cpu, peak_bytes=[*found, bare])


def peak(seen: Launch, target: Target) -> float:
    """The peak that the launch recorded; on the CPU that of the process, which also holds torch."""
    metric = "peak_rss_bytes" if target.is_cpu else "peak_allocated_bytes"
    return max((s.value or 0.0 for s in seen.samples if s.metric == metric), default=0.0)


def without_norm_cuda() -> Model:
    """gpt2, in a process in which no gradient norm is read."""
    return _without_norm("gpt2")


def without_norm_cpu() -> Model:
    """gpt-nano, likewise."""
    return _without_norm("gpt-nano")


def _without_norm(name: str) -> Model:
    trainer.norm_of = lambda gradients: 1.0  # type: ignore[assignment]
    return build_model(Case(model=name, seq_len=SEQUENCE))


def bare_loop(device: torch.device, name: str) -> float:
    """Train the model by hand; return the peak memory of the steps after the warm-up, in bytes."""
    with device:
        model = build_model(Case(model=name, seq_len=SEQUENCE))
    vocabulary = model.vocabulary
    assert vocabulary is not None
    optimizer = torch.optim.AdamW(model.module.parameters(), fused=True)
    tokens = torch.randint(vocabulary, (BATCH, SEQUENCE + 1), device=device)
    for step in range(WARMUP + STEPS):
        if step == WARMUP and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        model.loss(model.module(tokens[:, :-1]), tokens[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return float(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


if __name__ == "__main__":
    print(json.dumps(bare_loop(torch.device(sys.argv[1]), sys.argv[2])))
