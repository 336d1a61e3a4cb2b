"""Peak memory contains the training run and no instrument."""

from __future__ import annotations

import resource
import subprocess
import sys

import torch

from benchmarks.gpu.check import Outcome, Target, check
from benchmarks.gpu.launches import case, succeeded
from parabench import Model
from parabench.models.factory import build_model
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.store.record import MIB, Launch
from parabench.workloads import trainer

BATCH, WARMUP, STEPS = 8, 3, 5
PROTOCOL = Protocol(warmup=WARMUP, steps=STEPS, instrumented=0)
# The bare loop keeps its one batch on the device, and other small tensors, so its peak may differ a little.
MARGIN = 0.02
# Includes building and the warm-up.
LIMIT_S = 90.0


def model_of(device: str) -> tuple[str, int]:
    """Return the name of the model and its sequence length."""
    return ("gpt-nano", 16) if device == "cpu" else ("gpt2", 256)


@check("peak-memory", f"the same peak with and without the norm of step 0; within {MARGIN:.0%} of a bare loop", 200)
def peaks(target: Target) -> Outcome:
    """Measure the peak as launches do, with the gradient norm of step 0 left out, and in a bare training loop."""
    name, length = model_of(target.type)
    cases = [
        case(target, model=model, seq_len=length, global_batch=BATCH)
        for model in (name, "benchmarks.gpu.memory:without_norm")
    ]
    found = [peak(succeeded(each, PROTOCOL), target) for each in cases]
    # In its own process: this one must not hold a CUDA context.
    command = [sys.executable, "-m", "benchmarks.gpu.memory", target.type]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    if ended.returncode:
        return Outcome.judged(f"the bare loop failed: {ended.stderr[-300:]}", False)
    bare = float(ended.stdout.splitlines()[-1])
    apart = found[0] / bare - 1
    text = f"{found[0] / MIB:.1f} MiB with the norm, {found[1] / MIB:.1f} without, {bare / MIB:.1f} in a bare loop"
    passed = found[0] == found[1] > 0 and abs(apart) < MARGIN
    return Outcome.judged(f"{text} ({apart:+.2%})", passed or target.is_cpu, peak_bytes=[*found, bare])


def peak(seen: Launch, target: Target) -> float:
    """Return the peak of the launch; on the CPU, the peak of the process, which contains torch."""
    metric = "peak_rss_bytes" if target.is_cpu else "peak_allocated_bytes"
    return max((s.value or 0.0 for s in seen.samples if s.metric == metric), default=0.0)


def without_norm(case: Case) -> Model:
    """Return the same model in a process that does not compute a gradient norm."""
    trainer.norm_of = lambda gradients: 1.0
    return build_model(case.replace(model=model_of(case.device)[0]))


def bare_loop(device: torch.device) -> float:
    """Train the model by hand; return the peak memory of the steps after the warm-up, in bytes."""
    name, length = model_of(device.type)
    with device:
        model = build_model(Case(model=name, seq_len=length))
        tokens = torch.randint(model.vocabulary or 0, (BATCH, length + 1))
    optimizer = torch.optim.AdamW(model.module.parameters(), fused=True)
    for step in range(WARMUP + STEPS):
        if step == WARMUP and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        model.loss(model.module(tokens[:, :-1]), tokens[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


if __name__ == "__main__":
    print(bare_loop(torch.device(sys.argv[1])))
