"""The operation trace of a rank in a compute-only run: compute times, calls of collectives, and waits for them.

Waits in C++, such as DDP's for its buckets, are not recorded. With DDP, this also records the times of gradients.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from parabench.collectives import alone
from parabench.machine.accelerator import Moment
from parabench.probes import CaseReport, Probe, ProbedRank
from parabench.probes.ddp import GradientsReady, only_ddp
from parabench.probes.step_clock import BACKWARD, AroundClock, Moments
from parabench.store.record import CALL, PART, WAIT_FOR, WORK
from parabench.strategies.base import StepMarker

# The parts of a step by the mark that starts them.
PARTS = ("data", "forward", "backward", "optimizer")


class ProgramProbe(Probe):
    """Record the calls of a rank's groups in the instrumented steps of a compute-only run."""

    def __init__(self, rank: ProbedRank) -> None:
        super().__init__(rank)
        self._log: ProgramLog | None = None
        self._ready: GradientsReady | None = None

    @contextmanager
    def instrumented(self, clock: StepMarker) -> Iterator[StepMarker]:
        if not self.rank.alone:
            yield clock
            return
        self._log = alone.log = ProgramLog(clock, self.rank.clock.moments)
        module = only_ddp(self.rank.module)
        if module is not None and self.rank.case.grad_accumulation == 1:  # else a step has several backward passes
            self._ready = GradientsReady(module, self.rank.clock.moments)
        try:
            yield self._log
        finally:
            alone.log = None
            if self._ready is not None:
                self._ready.stop()

    def report(self, report: CaseReport) -> None:
        """Add `ProgramLog.program` of this rank, and the launch's `GradientsReady.after_backward`."""
        if self._log is not None:
            report.rank_facts["program"] = {"events": self._log.program()}
        if self._ready is not None:
            clock = self.rank.clock
            report.facts["gradients"] = self._ready.after_backward(clock.begins(), clock.came_to(BACKWARD))


class ProgramLog(AroundClock):
    """Record the parts of a step, and calls and waits in them."""

    def __init__(self, clock: StepMarker, moments: Moments) -> None:
        super().__init__(clock)
        self._moments = moments
        # The time and content of each entry, for each step.
        self._steps: list[list[tuple[Moment, list[Any]]]] = []
        self._calls = 0

    def marked(self, at: int, *, exists: bool) -> None:
        if at == 0:
            self._steps.append([])
            self._calls = 0
        if exists:
            self._note([PART, PARTS[at]] if at < len(PARTS) else [PART, ""])

    def called(self, op: str, size: int, ranks: list[int]) -> int:
        """Record a call of `size` bytes, and return its number in the step."""
        if self._inside:
            self._note([CALL, op, size, ranks])
            self._calls += 1
        return self._calls - 1

    def returned(self) -> None:
        """Record that the call returns to its caller."""
        if self._inside:
            self._note([])

    def waits(self, call: int) -> None:
        """Record a wait for the call with this number."""
        if self._inside:
            self._note([WAIT_FOR, call])

    @property
    def _inside(self) -> bool:
        """Return whether a step runs. Calls between steps are not recorded."""
        return self._at > 0

    def _note(self, what: list[Any]) -> None:
        self._steps[-1].append((self._moments.now(), what))

    def program(self) -> list[list[Any]]:
        """Return the entries of one step, with times in seconds.

        An entry is [WORK, seconds], [PART, name], [CALL, op, bytes, ranks, seconds] or [WAIT_FOR, call]. Times are
        medians over the steps with the same entries as the last one.
        """
        seconds = self._moments.seconds
        last = [what for _, what in self._steps[-1]]
        alike = [step for step in self._steps if [what for _, what in step] == last]
        program: list[list[Any]] = []
        for at, what in enumerate(last[:-1]):
            took = statistics.median(seconds(step[at + 1][0]) - seconds(step[at][0]) for step in alike)
            if what[:1] == [CALL]:
                program.append([*what, max(0.0, took)])
                continue
            program += [[*what]] if what else []
            program.append([WORK, max(0.0, took)])
        return program
