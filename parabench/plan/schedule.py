"""Define the steps of a training launch and their order, and the micro-batches of a pipeline. Free of torch.

If cases are interleaved, each round has one turn of each case: `settle` discarded steps, while effects of the previous
case fade, then measured steps.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import groupby
from typing import Annotated, ClassVar, NamedTuple, Self

from msgspec import Meta

from parabench.records import Record
from parabench.store.record import Phase

# Most of the error of a step time belongs to the launch (placement of processes, memory, other load). Comparisons
# within a launch are therefore the most precise.

MOST_STEPS = 1_000_000
# The longest warm-up or measurement by time.
LONGEST_S = 86400.0
# The most interleaved rounds in a launch.
MOST_ROUNDS = 10_000

# The default steps on the CPU, and of each single-device reference.
USUAL_WARMUP, USUAL_STEPS = 5, 40
# The fewest steps of a warm-up or measurement by time. The first steps compile, create communicators and rebuild DDP's
# buckets. hyperfine takes at least ten runs, too.
LEAST_WARMUP, LEAST_MEASURED = 5, 10

# The numbers of the rounds before the first (build the models, warm up) and after the last one.
BUILD, WARM_UP, INSTRUMENT, PROFILE = -2, -1, MOST_ROUNDS, MOST_ROUNDS + 1

Steps = Annotated[int, Meta(ge=0, le=MOST_STEPS)]
Rounds = Annotated[int, Meta(ge=0, le=MOST_ROUNDS)]
Seconds = Annotated[float, Meta(gt=0, le=LONGEST_S)]


class Turn(NamedTuple):
    """Consecutive steps of one case, with the phase of each step. `arm` is the index of the case in its launch.

    `round` counts from 0, or is BUILD, WARM_UP, INSTRUMENT or PROFILE.
    """

    arm: int
    round: int
    phases: tuple[Phase, ...]

    @property
    def steps(self) -> int:
        return len(self.phases)


class TrainingSchedule(Record, frozen=True, kw_only=True):
    """The steps of a launch. `timed` has the number of measured steps in a turn of each case.

    - With `rounds`, cases are interleaved: `warmup` steps of each case, then `rounds` with one turn of each. A turn has
      `settle` discarded steps and the measured ones. `seed` decides the order of the cases in each round.
    - Without `rounds`, the launch has one case with one turn. Then come `instrumented` steps, and one step each for a
      profile and a memory snapshot. With `explain`, NCCL logs its choices.
    - Warm-up or measured steps of one case may fill a time, `warmup_s` and `measure_s`. Their numbers are then minima.
    """

    kind: ClassVar[str] = "training"

    warmup: Steps = USUAL_WARMUP
    timed: tuple[Steps, ...] = (USUAL_STEPS,)
    rounds: Rounds = 0
    settle: Annotated[int, Meta(ge=0)] = 0
    seed: Annotated[int, Meta(ge=0)] = 0
    warmup_s: Seconds | None = None
    measure_s: Seconds | None = None
    instrumented: Steps = 0
    profile: bool = False
    memory_snapshot: bool = False
    explain: bool = False

    @property
    def takes_turns(self) -> bool:
        """Return whether cases are interleaved."""
        return self.rounds > 0

    def turns(self) -> Iterator[Turn]:
        """Yield every turn, in order. They are equal on every rank and in the driver."""
        places = range(len(self.timed))
        # If cases are interleaved, the build of each model also has a row of timestamps.
        yield from (Turn(arm, BUILD, (Phase.WARMUP,) * self.takes_turns) for arm in places)
        yield from (Turn(arm, WARM_UP, (Phase.WARMUP,) * self.warmup) for arm in places)
        for number, order in enumerate(orders(len(places), max(1, self.rounds), self.seed)):
            for arm in order:
                yield Turn(arm, number, (Phase.SETTLE,) * self.settle + (Phase.MEASURE,) * self.timed[arm])
        if self.instrumented:
            yield Turn(0, INSTRUMENT, (Phase.INSTRUMENT,) * self.instrumented)
        if self.traced:
            yield Turn(0, PROFILE, (Phase.PROFILE,) * self.traced)

    def by_round(self) -> dict[int, list[Turn]]:
        """Return {number of the round: its turns}."""
        return {number: list(turns) for number, turns in groupby(self.turns(), lambda turn: turn.round)}

    def most_rounds(self, cases: object) -> int:
        """Return the number of rounds of interleaved cases."""
        return self.rounds

    @property
    def traced(self) -> int:
        """Return the number of steps for the profile and the memory snapshot. They are last, and in no statistic."""
        return self.profile + self.memory_snapshot

    @property
    def after(self) -> int:
        """Return the number of steps after the measured ones: instrumented and traced steps."""
        return self.instrumented + self.traced

    def counts(self, place: int = 0) -> tuple[int, int]:
        """Return the numbers of (warm-up steps, discarded and measured steps) of a case."""
        return self.warmup, max(1, self.rounds) * (self.settle + self.timed[place])

    @property
    def all_steps(self) -> int:
        """Return the largest number of steps of a case. For a launch by time, this is a minimum."""
        return max(sum(self.counts(place)) for place in range(len(self.timed))) + self.after

    @property
    def seconds(self) -> float:
        """Return the minimum seconds of the steps by time; 0 if all steps have a fixed number."""
        return (self.warmup_s or 0.0) + (self.measure_s or 0.0)

    @property
    def by_time(self) -> bool:
        """Return whether the launch decides its number of steps by time."""
        return self.seconds > 0

    def with_counts(self, warmup: int, measured: int) -> Self:
        """Return the schedule of one case with fixed numbers of steps, on which its ranks agreed."""
        return self.replace(warmup=warmup, timed=(measured,), warmup_s=None, measure_s=None)

    def by_steps(self) -> TrainingSchedule:
        """Return the schedule of a single-device reference, which always has a fixed number of steps.

        The tolerances were measured over this number of losses (docs/explanation/verification.md).
        """
        return self.with_counts(*TrainingSchedule().counts()) if self.by_time else self


def orders(arms: int, rounds: int, seed: int) -> list[tuple[int, ...]]:
    """Return balanced orders of the numbers below `arms`, one for each round: rows of randomized Williams designs.

    In a complete design, every case is at every place, and follows every other case, equally often.
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


# -- pipelines ---------------------------------------------------------------------------------------------------------

# Let all p ranks take f forward and b backward for each of m micro-batches, and let messages take no time. A rank works
# m (f + b) and waits (p - 1)(f + b) while the pipeline fills and drains, a share of (p - 1) / (m + p - 1). This holds
# for GPipe (Huang et al., "GPipe", 2019, section 2.3) and for 1F1B, which only holds fewer activations (Narayanan et
# al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", 2021, section 2.2). With v
# stages on each rank, the wait is 1/v as long. Narayanan et al. give shares x of the work; x / (1 + x) is the share of
# the time.

# The stages on each rank. With `interleaved`, stage i is on rank i mod p. More stages per rank need more messages.
STAGES_PER_RANK = {"gpipe": 1, "1f1b": 1, "interleaved": 2}


def pipeline_bubble(schedule: str, ranks: int, microbatches: int) -> float:
    """Return the share of the time that a rank of a pipeline waits, if all stages take equally long."""
    waits = ranks - 1
    return waits / (STAGES_PER_RANK[schedule] * microbatches + waits)


def microbatches_error(schedule: str, ranks: int, microbatches: int) -> str | None:
    """Return why a pipeline schedule cannot run this number of micro-batches; None if it can.

    1F1B needs one per rank before the first backward. Interleaved divides them into equal rounds with one or more per
    rank.
    """
    if schedule != "gpipe" and microbatches < ranks:
        return f"must be world_size {ranks} or more"
    # Narayanan et al. require multiples of p; torch does not (10 micro-batches for 4 ranks are two rounds of 5).
    if schedule == "interleaved" and microbatches % (microbatches // ranks):
        return f"must divide into {microbatches // ranks} equal rounds, as every multiple of world_size {ranks} does"
    return None


def default_microbatches(schedule: str, ranks: int, batch: int) -> int:
    """Return the default number of micro-batches for `batch` samples; 1 if the schedule can run no number.

    It is the smallest possible number with two per rank, so that the bubble is below a third, or else the largest.
    """
    small = [each for each in range(1, math.isqrt(batch) + 1) if batch % each == 0]
    divisors = sorted({*small, *(batch // each for each in small)})
    possible = [each for each in divisors if microbatches_error(schedule, ranks, each) is None] or [1]
    return next((each for each in possible if each >= 2 * ranks), possible[-1])
