"""Cases that share a launch: its ranks hold a training of each, and these take turns of a few steps.

Most of the error of a launch's step time belongs to the launch (where its processes landed, what memory they were
given, who else ran), so cases are compared most sharply inside one. A *round* gives each case of a *cohort* one *turn*:
SETTLE discarded steps, in which effects of the case before fade, then the timed ones. The order of a round changes, and
is balanced so that each case follows each other one equally often. Free of torch.
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

# The discarded steps after each switch.
SETTLE = 2


Count = Annotated[int, Meta(ge=1)]


class TurnsProtocol(Record, frozen=True, kw_only=True):
    """How cases take turns: `warmup` steps of each, then `rounds` of a turn each.

    A turn has `settle` discarded steps and `timed` measured ones, or as many as `own` has for the case. `seed` decides
    the orders.
    """

    rounds: Count = 20
    settle: Annotated[int, Meta(ge=0)] = SETTLE
    timed: Count = 2
    own: tuple[Count, ...] = ()
    warmup: Annotated[int, Meta(ge=2)] = 2
    seed: Annotated[int, Meta(ge=0)] = 0

    def timed_of(self, place: int) -> int:
        """How many steps of a turn count, of the case at `place` of its cohort."""
        return self.own[place] if self.own else self.timed

    def steps_of(self, place: int) -> int:
        """How many steps that case takes."""
        return self._steps(self.timed_of(place))

    def _steps(self, timed: int) -> int:
        return self.warmup + self.rounds * (self.settle + timed)

    # The estimate of a launch's duration reads this of every protocol.
    by_time: ClassVar[bool] = False

    @property
    def all_steps(self) -> int:
        """How many steps a case takes at most."""
        return self._steps(max(self.own or (self.timed,)))


# How long the timed steps of a turn take together, about, and how many they are at least and at most: a turn that is
# short beside what disturbs it (a neighbour's burst, a clock that falls) is compared with turns that meet the same.
# On two shared cores the noise of steps 25 ms apart correlates by 0.6, of steps 250 ms apart by 0.27: in as much time
# 12 cases are compared with a variance 2.4 times smaller in turns of 2 steps of 25 ms than of 6.
TURN_S = 0.05
FEWEST_TIMED, MOST_TIMED = 1, 100
# More rounds than this in a launch are worth less than another launch.
MOST_CHOSEN_ROUNDS = 50


# How many steps a case takes before the first round: DDP rebuilds its buckets after the first; on an accelerator the
# first ones also choose kernels and make communicators.
WARM_UP_STEPS = {"cpu": TurnsProtocol().warmup, accelerator.TYPE: LEAST_WARMUP}


def turns_protocol(
    protocol: Protocol,
    seed: int,
    block: int,
    step_s: Sequence[float | None],
    device: str = "cpu",
) -> TurnsProtocol:
    """How the cases of a shared launch in `block` take turns on `device`, in a session of that `seed`, whose steps take
    so long as far as that is known."""
    own = tuple(_timed(each) for each in step_s)
    lot = random.Random(f"{seed}, {block}").getrandbits(32)
    asked = TurnsProtocol(rounds=protocol.rounds or 1, own=own, seed=lot, warmup=WARM_UP_STEPS[device])
    known = [(place, each) for place, each in enumerate(step_s) if each is not None]

    def seconds(of: TurnsProtocol) -> float:
        return sum(each * (of.steps_of(place) - of.warmup) for place, each in known) * len(own) / len(known)

    while protocol.rounds is None and known and asked.rounds < MOST_CHOSEN_ROUNDS:
        more = asked.replace(rounds=asked.rounds + 1)
        if seconds(more) > SHARED_S:
            break
        asked = more
    return asked


def _timed(step_s: float | None) -> int:
    """How many steps of a turn count."""
    return TurnsProtocol().timed if step_s is None else max(FEWEST_TIMED, min(MOST_TIMED, round(TURN_S / step_s)))


# The rounds before the first: each case's training is built, which has a row of marks of its own, then warmed up.
BUILD, WARM_UP = -2, -1


class Turn(NamedTuple):
    """Steps of the case at place `arm` of its cohort, in `round`, or in BUILD or WARM_UP."""

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
    """Every turn of a launch that `arms` cases share, in their order; the same on every rank and in the driver."""
    yield from (Turn(arm, BUILD, 1, 0) for arm in range(arms))
    yield from (Turn(arm, WARM_UP, protocol.warmup, 0) for arm in range(arms))
    for number, order in enumerate(orders(arms, protocol.rounds, protocol.seed)):
        for arm in order:
            yield Turn(arm, number, protocol.settle, protocol.timed_of(arm))


def orders(arms: int, rounds: int, seed: int) -> list[tuple[int, ...]]:
    """The order of each round: the rows of Williams' designs, names and rows by lot, a new design when one is used up.

    In a whole design every case stands at every place, and follows every other one, equally often (E. J. Williams,
    "Experimental designs balanced for the estimation of residual effects of treatments", Australian Journal of
    Scientific Research 2, 1949).
    """
    lot = random.Random(seed)
    found: list[tuple[int, ...]] = []
    while len(found) < rounds:
        names = lot.sample(range(arms), arms)
        rows = [tuple(names[place] for place in row) for row in _williams(arms)]
        found += lot.sample(rows, len(rows))
    return found[:rounds]


def _williams(n: int) -> list[tuple[int, ...]]:
    """A design of n rows for an even number, of 2n for an odd one: first up and down in turn (0, 1, n-1, 2, ...), then
    the same shifted by each number; for an odd one all of it reversed too."""
    first = [0, *((step + 1) // 2 if step % 2 else n - step // 2 for step in range(1, n))]
    rows = [tuple((place + shift) % n for place in first) for shift in range(n)]
    return rows if n % 2 == 0 or n == 1 else rows + [row[::-1] for row in rows]
