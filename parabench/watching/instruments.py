"""The instruments of a watched loop. None of their errors reaches the training: the first one switches an instrument
off."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from parabench.probes import CaseReport, ProbedRank, switched_on
from parabench.probes.collective_calls import Recorder
from parabench.probes.communication import CommunicationProbe
from parabench.probes.ddp import DdpLoggerProbe
from parabench.probes.memory import MemoryClock
from parabench.strategies.base import StepMarker
from parabench.watching.loop import WIDTH

T = TypeVar("T")


@dataclass
class Guard:
    """Call instruments so that none of their errors reaches the training. `failures` maps each instrument that failed
    to the reason."""

    failures: dict[str, str] = field(default_factory=dict)

    def call(self, instrument: str, function: Callable[[], T]) -> T | None:
        """Return the result of `function`, or `None` if the instrument fails or has failed before."""
        if instrument in self.failures:
            return None
        try:
            return function()
        except Exception as why:
            self.failed(instrument, why)
            return None

    def failed(self, instrument: str, why: Exception) -> None:
        """Keep the first reason for which an instrument failed."""
        first_line = str(why).partition("\n")[0]
        self.failures.setdefault(instrument, f"{type(why).__name__}: {first_line}")


class Instruments:
    """The instruments of a few consecutive steps, from now until `off`. The steps mark `self`: if an instrument fails,
    `failed` receives its error, and the clock alone marks them."""

    def __init__(
        self, rank: ProbedRank, before_reading: Callable[[], object], failed: Callable[[Exception], None]
    ) -> None:
        communication = CommunicationProbe(rank)
        guarded = GuardedRecorder(communication.recorder, failed)
        communication.recorder.follow = guarded.follow  # type: ignore[method-assign]
        communication.recorder.follow_all = guarded.follow_all  # type: ignore[method-assign]
        self._probes = (DdpLoggerProbe(rank), communication)
        self._memory = MemoryClock(rank.clock, rank.info.device, rank.clock.steps, WIDTH, before_reading)
        self._clock, self._failed = rank.clock, failed
        self._on = contextlib.ExitStack()
        self._marker: StepMarker = self._on.enter_context(switched_on(self._probes, self._memory))

    def mark(self) -> None:
        self._guarded(self._marker.mark, self._clock.mark)

    def skip(self) -> None:
        self._guarded(self._marker.skip, self._clock.skip)

    def _guarded(self, marks: Callable[[], None], marks_alone: Callable[[], None]) -> None:
        before = self._clock.marked
        try:
            marks()
        except Exception as why:
            if self._marker is self._clock:  # the clock itself fails
                raise
            self._marker = self._clock
            self._failed(why)
            if self._clock.marked == before:
                marks_alone()

    def off(self, step: int) -> None:
        """Switch them off; forget what was read in `step` and later ones, which are no steps."""
        try:
            self._on.close()
        except Exception as why:
            self._failed(why)
        self._memory.readings = [each for each in self._memory.readings if each[0] < step]

    def report(self, report: CaseReport) -> None:
        """Add what they saw, once the clock is finished."""
        report.readings += self._memory.readings
        for probe in self._probes:
            probe.report(report)


class GuardedRecorder:
    """Follow collectives as `recorder` does. An error of the recorder leaves the call as it is; an error of the call
    is raised."""

    def __init__(self, recorder: Recorder, failed: Callable[[Exception], None]) -> None:
        self._follow, self._follow_all, self._failed = recorder.follow, recorder.follow_all, failed
        self._on = True

    def follow_all(self, work: Any) -> Any:
        try:
            return self._follow_all(work)
        except Exception as why:
            self._failed(why)
            return work

    def follow(
        self, op: str, group: Any, results: Iterable[Tensor], call: Callable[[], Any], *, waits: bool = False
    ) -> Any:
        if not self._on:
            return call()
        started: list[bool] = []
        works: list[Any] = []

        def once() -> Any:
            started.append(True)
            works.append(call())
            return works[0]

        try:
            return self._follow(op, group, results, once, waits=waits)
        except Exception as why:
            if started and not works:  # the call itself failed
                raise
            self._on = False
            self._failed(why)
            return works[0] if works else call()
