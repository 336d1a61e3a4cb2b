"""Interleave the cases of a shared launch. Free of torch.

In a round, each case has one turn: `settle` discarded steps, during which effects of the previous case fade, then
measured steps. The orders of the rounds are balanced.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, NamedTuple

from msgspec import Meta

from parabench.machine import accelerator
from parabench.plan.protocol import LEAST_WARMUP, SHARED_S, Protocol
from parabench.records import Record
from parabench.store.record import Phase

# Most of the error of a step time belongs to the launch (placement of processes, memory, other load). Comparisons
# within a launch are therefore the most precise.

# The discarded steps after each switch.
SETTLE = 2

# About how long the timed steps of a turn take together, and their least and greatest number. If turns are shorter than
# disturbances (a neighbor's burst, a falling clock), all turns of a round have the same ones. On two shared cores, the
# noise of steps 25 ms apart correlates by 0.6, of steps 250 ms apart by 0.27: in the same time, the variance of
# comparisons of 12 cases is 2.4 times smaller with turns of 2 steps of 25 ms than with turns of 6.
TURN_S = 0.05
FEWEST_TIMED, MOST_TIMED = 1, 100
# More rounds than this in a launch are worth less than another launch.
MOST_CHOSEN_ROUNDS = 50

# The rounds before the first: each case's training run is built, which has a row of marks, then warmed up.
BUILD, WARM_UP = -2, -1

Count = Annotated[int, Meta(ge=1)]


class TurnsProtocol(Record, frozen=True, kw_only=True):
    """How cases are interleaved: `warmup` steps of each, then `rounds` with one turn of each.

    A turn has `settle` discarded steps and `timed` measured ones, or the number in `own` for each case. `seed` decides
    the orders.
    """

    # The estimate of a launch's duration reads this of every protocol.
    by_time: ClassVar[bool] = False

    rounds: Count = 20
    settle: Annotated[int, Meta(ge=0)] = SETTLE
    timed: Count = 2
    own: tuple[Count, ...] = ()
    warmup: Annotated[int, Meta(ge=2)] = 2
    seed: Annotated[int, Meta(ge=0)] = 0

    def timed_of(self, place: int) -> int:
        """Return the number of measured steps in a turn of the case at `place`."""
        return self.own[place] if self.own else self.timed

    def steps_of(self, place: int) -> int:
        """Return the number of steps that this case takes."""
        return self.warmup + self.rounds * (self.settle + self.timed_of(place))

    @property
    def all_steps(self) -> int:
        """The largest number of steps of a case."""
        return max(self.steps_of(place) for place in range(len(self.own) or 1))


# The steps of each case before the first round: DDP rebuilds its buckets after the first; on an accelerator, the first
# ones also choose kernels and create communicators.
WARM_UP_STEPS = {"cpu": TurnsProtocol().warmup, accelerator.TYPE: LEAST_WARMUP}


def turns_protocol(
    protocol: Protocol, seed: int, block: int, step_s: Sequence[float | None], device: str = "cpu"
) -> TurnsProtocol:
    """Return how the cases of a shared launch in repetition `block` are interleaved on `device`.

    Without `protocol.rounds`, the rounds fill SHARED_S.

    Args:
        seed: the seed of the session.
        step_s: the step time of each case; None if it is unknown.
    """
    default = TurnsProtocol().timed
    timed = [default if s is None else max(FEWEST_TIMED, min(MOST_TIMED, round(TURN_S / s))) for s in step_s]
    round_s = [s * (SETTLE + steps) for s, steps in zip(step_s, timed, strict=True) if s is not None]
    rounds = protocol.rounds or 1
    if protocol.rounds is None and round_s:
        known = sum(round_s) * len(step_s) / len(round_s)
        rounds = max(1, min(MOST_CHOSEN_ROUNDS, int(SHARED_S / known)))
    order = random.Random(f"{seed}, {block}").getrandbits(32)
    return TurnsProtocol(rounds=rounds, own=tuple(timed), seed=order, warmup=WARM_UP_STEPS[device])


class Turn(NamedTuple):
    """Steps of the case at place `arm` of its launch, in `round`, or in BUILD or WARM_UP."""

    arm: int
    round: int
    settle: int
    timed: int

    @property
    def steps(self) -> int:
        return self.settle + self.timed

    @property
    def phases(self) -> list[Phase]:
        """The phase of each of its steps."""
        return [Phase.WARMUP if self.round == WARM_UP else Phase.SETTLE] * self.settle + [Phase.MEASURE] * self.timed


def turns(protocol: TurnsProtocol, arms: int) -> Iterator[Turn]:
    """Yield every turn of a launch of `arms` cases, in order; the same on every rank and in the driver."""
    yield from (Turn(arm, BUILD, 1, 0) for arm in range(arms))
    yield from (Turn(arm, WARM_UP, protocol.warmup, 0) for arm in range(arms))
    for number, order in enumerate(orders(arms, protocol.rounds, protocol.seed)):
        yield from (Turn(arm, number, protocol.settle, protocol.timed_of(arm)) for arm in order)


def orders(arms: int, rounds: int, seed: int) -> list[tuple[int, ...]]:
    """Return the order of each round: the rows of Williams' designs, with names and rows at random.

    In a whole design, every case is at every place, and follows every other one, equally often.
    """
    # E. J. Williams, "Experimental designs balanced for the estimation of residual effects of treatments", Australian
    # Journal of Scientific Research 2, 1949. A design has n rows for an even number of cases and 2n for an odd one: up
    # and down in turn (0, 1, n-1, 2, ...), then shifted by each number; for an odd one, the reverse of all, too.
    first = [0, *((step + 1) // 2 if step % 2 else arms - step // 2 for step in range(1, arms))]
    design = [tuple((place + shift) % arms for place in first) for shift in range(arms)]
    if arms % 2 and arms > 1:
        design += [row[::-1] for row in design]
    chance = random.Random(seed)
    found: list[tuple[int, ...]] = []
    while len(found) < rounds:
        names = chance.sample(range(arms), arms)
        rows = [tuple(names[place] for place in row) for row in design]
        found += chance.sample(rows, len(rows))
    return found[:rounds]
