"""A launch without processes: what a case "takes" is given, and one device's numbers are computed right."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict

from parabench.plan.case import Case
from parabench.plan.protocol import Counts, Protocol
from parabench.signals import Interrupted
from parabench.store.record import Failure, Launch, Phase, Sample, Status
from parabench.strategies import Rule, entry_of


class FakeLauncher:
    """Stands in for `launcher.launch`. `step_s` says what a step of a case takes; `calls` what was launched."""

    def __init__(self, step_s: Callable[[Case], float] = lambda case: 0.010) -> None:
        self.step_s = step_s
        self.calls: list[Case] = []
        self.deadlines: list[float] = []
        self.interrupt_at: int | None = None
        self.failing: dict[str, tuple[Status, Failure]] = {}
        self.loss_of: Callable[[Case, int], float] = lambda case, step: 5.0 - 0.01 * step

    def __call__(self, case: Case, protocol: Protocol, *, deadline_s: float) -> Launch:
        if self.interrupt_at == len(self.calls):
            raise Interrupted(2)
        self.calls.append(case)
        self.deadlines.append(deadline_s)
        counts = protocol.least
        if protocol.by_time:
            counts = Counts(
                warmup=counts.warmup + math.ceil((protocol.warmup_s or 0.0) / self.step_s(case)),
                measured=max(counts.measured, math.ceil((protocol.measure_s or 0.0) / self.step_s(case))),
            )
        steps = counts.timed
        status, failure = self.failing.get(case.strategy, (Status.OK, None))
        samples = []
        for rank in range(case.world_size):
            for step in range(steps):
                phase = Phase.WARMUP if step < counts.warmup else Phase.MEASURE
                samples.append(Sample(rank, step, phase, "step_s", self.step_s(case) * (1 + rank / 100)))
                samples.append(Sample(rank, step, phase, "loss", self.loss_of(case, step)))
            samples.append(Sample(rank, 0, Phase.WARMUP, "grad_norm", 2.0))
        applied = [[rank, step, case.world_size - 1] for step in range(steps) for rank in range(case.world_size)]
        return Launch(
            case=case,
            status=status,
            started_utc="2026-01-01T00:00:00.000Z",
            wall_s=self.step_s(case) * steps + 0.1,
            failure=failure,
            samples=samples,
            facts=({"applied": applied} if entry_of(case.strategy).rule is Rule.APPLIED_ONCE else {})
            | ({"counts": asdict(counts)} if protocol.by_time else {}),
        )
