"""Keep errors of instruments away from the training that they watch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from parabench.probes.collective_calls import Recorder
from parabench.probes.step_clock import StepClock
from parabench.strategies.base import StepMarker

T = TypeVar("T")


@dataclass
class Guard:
    """Call instruments so that none of their errors reaches the training. The first error of an instrument switches
    it off; `failures` maps each instrument that failed to the reason."""

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


class GuardedMarker:
    """Mark steps with `marker`, which marks them on `clock`; after an error of the marker, with the clock alone."""

    def __init__(self, clock: StepClock, marker: StepMarker, failed: Callable[[Exception], None]) -> None:
        self._clock, self._marker, self._failed = clock, marker, failed

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
        works: list[Any] = []
        raised: list[BaseException] = []

        def once() -> Any:
            try:
                works.append(call())
            except BaseException as why:
                raised.append(why)
                raise
            return works[0]

        try:
            return self._follow(op, group, results, once, waits=waits)
        except Exception as why:
            if raised:
                raise
            self._on = False
            self._failed(why)
            return works[0] if works else call()
