"""The phase of each step of a watched loop: the same on every rank, without communication."""

from __future__ import annotations

import sys
from functools import cached_property
from typing import Annotated

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from parabench.plan.turns import Turn, TurnsProtocol, turns
from parabench.records import Record
from parabench.store.record import Phase

# The steps, after warm-up and tuning, at which instruments are switched on: soon for short loops, then ever more
# seldom, so that less than 1% of the steps of a long loop are instrumented.
INSTRUMENTED_AT = (25, 500, 5_000, 50_000, 500_000)

# How many steps of all ranks together are recorded, and of each rank at least: 100,000 steps take 12 s to record.
RECORDED, LEAST_RECORDED = 100_000, 500


class Schedule(Record, frozen=True, dict=True):
    """`warmup` steps, then the turns of `caps` bucket caps if there is a `tuning`, then measured steps. `instrumented`
    consecutive ones have instruments, from each of INSTRUMENTED_AT on, counted from the end of the tuning."""

    warmup: Annotated[int, Meta(ge=2)] = 5
    instrumented: Annotated[int, Meta(ge=0)] = 8
    tuning: TurnsProtocol | None = None
    caps: int = 0

    @cached_property
    def _of_tuning(self) -> list[tuple[Turn, Phase]]:
        """The turn and the phase of each step of the tuning."""
        planned = turns(self.tuning, self.caps) if self.tuning is not None else ()
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
        """Return the turn that a step of the tuning belongs to; `None` for all other steps."""
        return self._of_tuning[step - self.warmup][0] if step in self.tuning_steps else None

    def of_cap(self, place: int) -> tuple[list[int], list[Phase]]:
        """Return the steps of the tuning with the cap at `place`, and the phase of each."""
        own = [(at, phase) for at, (turn, phase) in enumerate(self._of_tuning, self.warmup) if turn.arm == place]
        return [at for at, _ in own], [phase for _, phase in own]

    def phase(self, step: int) -> Phase:
        """Return the phase of a step. The measured steps of a cap do not count as the loop's."""
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
        """Return the end of the plain steps from `step` on, in which nothing starts or ends; `step` if it is none."""
        if self.phase(step) is not Phase.MEASURE or step == self.first_measured:
            return step
        return min((first for first in self._instrumented_at if first > step), default=sys.maxsize)

    def recorded(self, steps: int, ranks: int) -> npt.NDArray[np.int64]:
        """Return which of `steps` steps are recorded: warm-up, tuning, instrumented steps, and a random sample of the
        others, the same on every rank. With fewer steps, the sample is at least the same as far as it goes."""
        chosen = np.random.default_rng(0).random(steps) * steps < max(LEAST_RECORDED, RECORDED // ranks)
        chosen[: self.first_measured] = True
        for first in self._instrumented_at:
            chosen[first : first + self.instrumented] = True
        return np.flatnonzero(chosen)
