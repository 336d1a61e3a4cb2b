"""A launch without processes: what a case "takes" is given, and one device's numbers are computed right."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import fake_collectives

from parabench.launch.spec import LaunchSpec
from parabench.plan.case import Case
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.protocol import Counts
from parabench.signals import Interrupted
from parabench.store.record import (
    AnyCase,
    Failure,
    Launch,
    LinkMessage,
    LinkSample,
    Phase,
    Sample,
    Status,
)
from parabench.strategies import Rule, entry_of


@dataclass
class FakeLauncher:
    """Stands in for `launcher.launch`. `step_s` says what a step of a training takes, `seconds` what a call of so many
    bytes, `links` what lies between ranks; `calls` what was launched. Launches of a strategy, or of a collective's
    algorithm, that is `failing` fail so."""

    step_s: Callable[[Case], float] = lambda case: 0.010
    seconds: Callable[[CollectiveCase, int], float] = lambda case, size: 1e-4 + size * 1e-9
    links: list[LinkSample] = field(default_factory=list)
    loss_of: Callable[[Case, int], float] = lambda case, step: 5.0 - 0.01 * step
    failing: dict[str, tuple[Status, Failure]] = field(default_factory=dict)
    interrupt_at: int | None = None
    specs: list[LaunchSpec] = field(default_factory=list)

    @property
    def calls(self) -> list[AnyCase]:
        return [spec.case for spec in self.specs]

    @property
    def deadlines(self) -> list[float]:
        return [spec.deadline_s for spec in self.specs]

    def __call__(self, spec: LaunchSpec) -> Launch:
        if self.interrupt_at == len(self.specs):
            raise Interrupted(2)
        self.specs.append(spec)
        how = {"training": self._train, "collectives": self._time_calls, "links": self._measure_links}
        return how[spec.kind](spec)

    def _train(self, spec: LaunchSpec) -> Launch:
        case, protocol = spec.case, spec.protocol
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

    def _time_calls(self, spec: LaunchSpec) -> Launch:
        status, failure = self.failing.get(spec.case.algorithm, (Status.OK, None))
        return fake_collectives.launch(
            spec.case,
            lambda size: self.seconds(spec.case, size),
            protocol=spec.protocol,
            status=status,
            failure=failure,
            wrong=3 if status is Status.WRONG else 0,
        )

    def _measure_links(self, spec: LaunchSpec) -> Launch:
        return Launch(
            case=spec.case,
            status=Status.OK,
            started_utc="2026-01-01T00:00:00.000Z",
            wall_s=1.0,
            links=list(self.links),
            messages=[LinkMessage(0, 1, 8, Phase.MEASURE, 40e-6)],
        )
