"""When each gradient is ready on one device, counted from the begin of backward: what a bucket of DDP waits for.

Nothing is reduced there, so these are the moments of the computation alone. Between micro-batches backward begins more
than once a step, so nothing is told of accumulation.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn

from parabench.machine.accelerator import Moment
from parabench.probes import Probe, ProbedRank, ProbeReport
from parabench.probes.ddp import only_ddp
from parabench.probes.step_clock import BACKWARD, step_of
from parabench.strategies.base import StepMarker


class GradientsProbe(Probe):
    """Notes when each gradient was accumulated, in the instrumented steps of a training on one device."""

    def __init__(self, rank: ProbedRank) -> None:
        super().__init__(rank)
        self._seen: dict[str, list[Moment]] = {}
        self._bytes: dict[str, int] = {}

    @contextmanager
    def instrumented(self, clock: StepMarker) -> Iterator[StepMarker]:
        case, now = self.rank.case, self.rank.clock.moments.now
        if not self.rank.protocol.alone or only_ddp(self.rank.module) is None or case.grad_accumulation > 1:
            yield clock
            return

        def noting(name: str) -> Callable[[nn.Parameter], None]:
            seen = self._seen.setdefault(name, [])

            def hook(_: nn.Parameter) -> None:
                seen.append(now())

            return hook

        hooks = []
        for name, parameter in self.rank.module.named_parameters():
            if parameter.requires_grad:
                self._bytes[name] = parameter.nbytes
                hooks.append(parameter.register_post_accumulate_grad_hook(noting(name)))
        try:
            yield clock
        finally:
            for hook in hooks:
                hook.remove()

    def report(self, report: ProbeReport) -> None:
        """The fact `gradients`: [name, bytes, seconds after backward began] of each parameter, the median over the
        instrumented steps, in the order in which they are ready."""
        clock = self.rank.clock
        begins, backward = clock.begins(), clock.came_to(BACKWARD)
        told = []
        for name, moments in self._seen.items():
            after = []
            for moment in moments:
                at = clock.moments.seconds(moment)
                step = step_of(at, begins)
                if step is not None:
                    after.append(at - backward[step])
            if after:
                told.append((name, self._bytes[name], statistics.median(after)))
        if told:
            report.facts["gradients"] = sorted(told, key=lambda each: each[2])
