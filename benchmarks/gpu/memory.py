"""Peak memory holds the training and no instrument."""

from __future__ import annotations

import torch

from benchmarks.gpu.check import Check, Seen
from benchmarks.gpu.trainings import case, launched
from parabench import Model
from parabench.models.base import build_model
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.store.record import MIB, Launch
from parabench.workloads import trainer

SEQUENCE = 256
PROTOCOL = Protocol(warmup=3, steps=5, instrumented=0)


def peak_without_norm(device: torch.device) -> Seen:
    """The peak of measured steps, once as launches measure it and once with the norm of the first step left out."""
    peaks = []
    for model in ("gpt2", "benchmarks.gpu.memory:without_norm"):
        seen = launched(case(device, strategy="single", model=model, seq_len=SEQUENCE), PROTOCOL)
        if seen.failure is not None:
            return Seen.judged(f"{model}: {seen.failure}", False)
        peaks.append(peak(seen))
    return Seen.judged(
        f"{peaks[0] / MIB:.1f} MiB with the norm, {peaks[1] / MIB:.1f} MiB without",
        peaks[0] == peaks[1] > 0,
        peak_allocated_bytes=peaks,
    )


def peak(seen: Launch) -> float:
    return max((s.value or 0.0 for s in seen.samples if s.metric == "peak_allocated_bytes"), default=0.0)


def without_norm() -> Model:
    """gpt2, in a process in which no gradient's norm is read."""
    trainer.norm_of = lambda gradients: 1.0  # type: ignore[assignment]
    return build_model(Case(model="gpt2", seq_len=SEQUENCE))


CHECKS = (Check("peak-memory", "the same peak with and without the norm of step 0", 120, peak_without_norm),)
