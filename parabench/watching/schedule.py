"""The phase of each step of a watched loop. It is the same on every rank, without communication."""

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
    """`warmup` steps, then the `tuning` of bucket caps, if any, then measured steps.

    `instrumented` consecutive steps have instruments, starting at each of INSTRUMENTED_AT.
    """

    warmup: Annotated[int, Meta(ge=2)] = 5
    instrumented: Annotated[int, Meta(ge=0)] = 8
    tuning: TrainingSchedule | None = None

    @cached_property
    def _of_tuning(self) -> list[tuple[Turn, Phase]]:
        """The turn and the phase of each step of the tuning."""
        planned = self.tuning.turns() if self.tuning is not None else ()
        return [(turn, phase) for turn in planned if turn.round >= 0 for phase in turn.phases]

    @cached_property
    def tuning_steps(self) -> range:
        """The steps of the tuning; empty if there is none."""
        return range(self.warmup, self.warmup + len(self._of_tuning))

    @property
    def first_measured(self) -> int:
        """The first step after the warm-up and the tuning."""
        return self.tuning_steps.stop

    @cached_property
    def _instrumented_at(self) -> list[int]:
        return [first + len(self._of_tuning) for first in INSTRUMENTED_AT] if self.instrumented else []

    def turn(self, step: int) -> Turn | None:
        """Return the turn of a step of the tuning; `None` for other steps."""
        return self._of_tuning[step - self.warmup][0] if step in self.tuning_steps else None

    def of_cap(self, place: int) -> tuple[list[int], list[Phase]]:
        """Return the steps of the tuning with the cap at `place`, and the phase of each."""
        steps = [at for at in self.tuning_steps if self._of_tuning[at - self.warmup][0].arm == place]
        return steps, [self._of_tuning[at - self.warmup][1] for at in steps]

    def phase(self, step: int) -> Phase:
        """Return the phase of a step. Measured steps of the tuning are not measured steps of the loop."""
        if step < self.warmup:
            return Phase.WARMUP
        if step in self.tuning_steps:
            return Phase.SETTLE
        if any(first <= step < first + self.instrumented for first in self._instrumented_at):
            return Phase.INSTRUMENT
        return Phase.MEASURE

    def phases(self, steps: int) -> list[Phase]:
        """Return the phases of the first `steps` steps."""
        return [self.phase(step) for step in range(steps)]

    def plain_until(self, step: int) -> int:
        """Return the first step after `step` that is not a plain step; `step` itself if it is not a plain step."""
        if self.phase(step) is not Phase.MEASURE or step == self.first_measured:
            return step
        return min((first for first in self._instrumented_at if first > step), default=sys.maxsize)

    def recorded(self, steps: int, ranks: int) -> npt.NDArray[np.int64]:
        """Return the recorded steps: warm-up, tuning, instrumented steps, and a random sample of the others.

        The sample is the same on every rank. If a rank took fewer steps, its sample has at least the same steps.
        """
        chosen = np.random.default_rng(0).random(steps) * steps < max(LEAST_RECORDED, RECORDED // ranks)
        chosen[: self.first_measured] = True
        for first in self._instrumented_at:
            chosen[first : first + self.instrumented] = True
        return np.flatnonzero(chosen)
