"""Decide the phase of each step of a watched loop. All ranks decide the same without communication."""

from __future__ import annotations

import sys
from functools import cached_property
from typing import Annotated

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from parabench.plan.schedule import TrainingSchedule, Turn
from parabench.records import Record
from parabench.store.record import Phase

# Instruments are switched on at these steps, counted without the tuning. Less than 1% of the steps of a long loop are
# instrumented.
INSTRUMENTED_AT = (25, 500, 5_000, 50_000, 500_000)

# The number of recorded steps of all ranks together, and the minimum of each rank. Recording 100,000 steps takes 12 s.
RECORDED, LEAST_RECORDED = 100_000, 500


class Schedule(Record, frozen=True, dict=True):
    """The phases of a loop: `warmup` steps, then the `tuning` of bucket caps, if any, then measured steps.

    From each of INSTRUMENTED_AT on, `instrumented` consecutive steps have instruments.
    """

    warmup: Annotated[int, Meta(ge=2)] = 5
    instrumented: Annotated[int, Meta(ge=0)] = 8
    tuning: TrainingSchedule | None = None

    @cached_property
    def turns(self) -> dict[int, tuple[Turn, Phase]]:
        """Return {step: (turn, phase)} of the steps of the tuning. A turn is a few steps with the same bucket cap."""
        planned = self.tuning.turns() if self.tuning is not None else ()
        steps = [(turn, phase) for turn in planned if turn.round >= 0 for phase in turn.phases]
        return dict(enumerate(steps, self.warmup))

    @cached_property
    def first_measured(self) -> int:
        """Return the first step after the warm-up and the tuning."""
        return self.warmup + len(self.turns)

    @cached_property
    def _instrumented_at(self) -> list[int]:
        return [first + len(self.turns) for first in INSTRUMENTED_AT] if self.instrumented else []

    def of_cap(self, index: int) -> tuple[list[int], list[Phase]]:
        """Return the steps of the tuning with the cap of this index, and the phase of each."""
        own = {step: phase for step, (turn, phase) in self.turns.items() if turn.arm == index}
        return [*own], [*own.values()]

    def phase(self, step: int) -> Phase:
        """Return the phase of a step. In the loop, all steps of the tuning have the phase SETTLE."""
        if step < self.first_measured:
            return Phase.WARMUP if step < self.warmup else Phase.SETTLE
        if any(first <= step < first + self.instrumented for first in self._instrumented_at):
            return Phase.INSTRUMENT
        return Phase.MEASURE

    def phases(self, steps: int) -> list[Phase]:
        """Return the phases of the first `steps` steps."""
        return [self.phase(step) for step in range(steps)]

    def plain_until(self, step: int) -> int:
        """Return the next step after `step` that is instrumented; `step` itself if it is not a plain measured step."""
        if self.phase(step) is not Phase.MEASURE or step == self.first_measured:
            return step
        return min((first for first in self._instrumented_at if first > step), default=sys.maxsize)

    def recorded(self, steps: int, ranks: int) -> npt.NDArray[np.int64]:
        """Return the numbers of the recorded steps: warm-up, tuning, instrumented, and a random sample of the others.

        The sample is the same on every rank. If a rank took fewer steps, its sample has at least the same steps.
        """
        chosen = np.random.default_rng(0).random(steps) * steps < max(LEAST_RECORDED, RECORDED // ranks)
        chosen[: self.first_measured] = True
        for first in self._instrumented_at:
            chosen[first : first + self.instrumented] = True
        return np.flatnonzero(chosen)
