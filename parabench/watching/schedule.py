"""Which phase each step of a watched loop belongs to; the same on every rank, without a word between them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from parabench.plan.turns import Turn, TurnsProtocol, turns
from parabench.store.record import Phase

# The steps with which instruments are switched on: once soon, for loops that are short, then ever more seldom, so that
# instrumented steps are less than one in a hundred of a long one.
INSTRUMENTED_AT = (25, 500, 5_000, 50_000, 500_000)

# How many steps of all ranks together are recorded, and of one rank at least: recording takes 12 s for 100,000 of them.
RECORDED, LEAST_RECORDED = 100_000, 500


@dataclass(frozen=True, slots=True)
class Schedule:
    """Warm-up, then the turns of a race where there is one, then measured steps among which some are instrumented.

    `warmup` steps come first. `instrumented` follow one another at each of INSTRUMENTED_AT, counted from the end of the
    race. `race` has the turns of `arms` bucket caps.
    """

    warmup: int = 5
    instrumented: int = 8
    race: TurnsProtocol | None = None
    arms: int = 0
    _of_race: list[tuple[Turn, Phase]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.race is not None:
            all_turns = [turn for turn in turns(self.race, self.arms) if turn.round >= 0]
            self._of_race.extend((turn, phase) for turn in all_turns for phase in turn.phases)

    @property
    def race_steps(self) -> range:
        """The steps of the race; empty where there is none."""
        return range(self.warmup, self.warmup + len(self._of_race))

    @property
    def first_measured(self) -> int:
        """The first step after the warm-up and the race."""
        return self.race_steps.stop

    def turn(self, step: int) -> Turn | None:
        """The turn of the race that a step belongs to; None outside of the race."""
        return self._of_race[step - self.warmup][0] if step in self.race_steps else None

    def timed_places(self) -> list[int | None]:
        """Of each step until the race is over the place of the cap whose timed step it is; None of all others."""
        timed = [turn.arm if phase is Phase.MEASURE else None for turn, phase in self._of_race]
        return [None] * self.warmup + timed

    def of_arm(self, place: int) -> tuple[list[int], list[Phase]]:
        """The steps of the race in which the cap at `place` had its turn, and the phase of each."""
        own = [(at, phase) for at, (turn, phase) in enumerate(self._of_race, self.warmup) if turn.arm == place]
        return [at for at, _ in own], [phase for _, phase in own]

    def phase(self, step: int) -> Phase:
        if step < self.warmup:
            return Phase.WARMUP
        if step in self.race_steps:
            return Phase.SETTLE  # what is timed in it is each cap's, not the training's that goes on
        if any(first <= step < first + self.instrumented for first in self._instrumented_at):
            return Phase.INSTRUMENT
        return Phase.MEASURE

    def plain_until(self, step: int) -> int:
        """The first step after a plain one that is none: until then nothing begins or ends. The step itself where it is
        no plain one."""
        if self.phase(step) is not Phase.MEASURE or step == self.race_steps.stop:
            return step
        return min((first for first in self._instrumented_at if first > step), default=sys.maxsize)

    @property
    def _instrumented_at(self) -> Iterator[int]:
        """The first of each steps that are instrumented one after the other."""
        return (first + len(self._of_race) for first in INSTRUMENTED_AT) if self.instrumented else iter(())

    def phases(self, steps: int) -> Sequence[Phase]:
        """The phases of the first `steps` steps."""
        return [self.phase(step) for step in range(steps)]

    def recorded(self, steps: int, ranks: int) -> npt.NDArray[np.int64]:
        """Which of `steps` steps are recorded: those before the end of a race, instrumented ones, and of the others as
        many as there is room for, by a lot that all ranks draw alike. Of fewer steps at least the same ones, as far as
        they go."""
        room = max(LEAST_RECORDED, RECORDED // ranks)
        lot = np.random.default_rng(0).random(steps)
        chosen = lot * steps < room
        chosen[: self.race_steps.stop] = True
        for first in self._instrumented_at:
            chosen[first : first + self.instrumented] = True
        return np.flatnonzero(chosen)
