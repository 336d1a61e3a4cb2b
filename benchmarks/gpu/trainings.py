"""Launches that several checks make: cases on a device, verified against one device's training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.gpu.check import Seen
from parabench.launch.launcher import launch
from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.protocol import Protocol
from parabench.store.record import Launch, Status
from parabench.workloads.verify import Reference, reference_of, verify

DEADLINE_S = 120.0
SHORT = Protocol(warmup=2, steps=8, instrumented=2)


def case(device: torch.device, **fields: Any) -> Case:
    """A small case on `device`, with data that needs no file."""
    settled = {"device": device.type, "backend": "gloo", "data": "synthetic", "strategy": "single"}
    return Case(**(settled | fields))


def launched(each: Case, protocol: Protocol = SHORT, deadline_s: float = DEADLINE_S) -> Launch:
    return launch(LaunchSpec.of(each, protocol, deadline_s=deadline_s))


def all_verified(cases: Sequence[Case], protocol: Protocol = SHORT) -> Seen:
    """Launch every case and its reference; what is not ok, in words."""
    references: dict[str, Reference | None] = {}
    bad = []
    for each in cases:
        alone = each.reference()
        if alone.id not in references:
            seen = launched(alone, protocol)
            references[alone.id] = reference_of(seen) if seen.status is Status.OK else None
            if seen.status is not Status.OK:
                bad.append(f"{alone.model} {alone.label}: {seen.status}: {seen.failure}")
        seen = launched(each, protocol)
        verify(seen, references[alone.id])
        if seen.status is not Status.OK:
            bad.append(f"{each.model} {each.label}: {seen.status}: {seen.failure}")
    said = f"{len(cases)} cases ok" if not bad else f"{len(bad)} of {len(cases)} not ok: " + "; ".join(bad)
    return Seen.judged(said[:1500], not bad, failures=bad)


def times(seen: Launch, metric: str = "step_s") -> list[float]:
    """A metric of the measured steps, of all ranks."""
    return [s.value for s in seen.samples if s.metric == metric and s.phase == "measure" and s.value is not None]
