"""Define `Protocol`: the number of steps of each kind in a launch of a training run, or their time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from parabench.errors import UsageError
from parabench.machine import accelerator
from parabench.plan.fields import option_fields
from parabench.plan.schedule import (
    LEAST_MEASURED,
    LEAST_WARMUP,
    MOST_STEPS,
    USUAL_STEPS,
    USUAL_WARMUP,
    Rounds,
    Seconds,
    Steps,
    TrainingSchedule,
)
from parabench.records import Field, Record

# A launch may take a week at most: a timer cannot wait forever.
LONGEST_DEADLINE_S = 7 * 86400.0

# A launch counts as hung after this many times its expected duration, and never before a minute.
DEADLINE_FACTOR = 10
LEAST_DEADLINE_S = 60

# The number of launches of each case before racing can eliminate it, and without racing.
RACE_LAUNCHES, LAUNCHES_DEFAULT = 2, 3
# The default steps of a separate launch of a case that is measured in shared launches. It serves memory, instruments
# and energy, and is compared with the shared launches.
OWN_WARMUP, OWN_STEPS = 3, 6
# The discarded steps after each switch between cases.
SETTLE = 2

# About how long the timed steps of a turn take together, and their least and greatest number. If turns are shorter than
# disturbances (a neighbor's burst, a falling clock), all turns of a round have the same ones. On two shared cores, the
# noise of steps 25 ms apart correlates by 0.6, of steps 250 ms apart by 0.27: in the same time, the variance of
# comparisons of 12 cases is 2.4 times smaller with turns of 2 steps of 25 ms than with turns of 6.
TURN_S = 0.05
FEWEST_TIMED, MOST_TIMED = 1, 100
# The measured steps of a turn if the step time is not known.
TIMED = 2
# The time of all rounds of a shared launch. The launch is the unit of replication, so many short launches are better
# than a few long ones, but each builds every model again. More rounds are worth less than another launch.
SHARED_S = 10.0
MOST_CHOSEN_ROUNDS = 50
# The steps of each case before the first round: DDP rebuilds its buckets after the first; on an accelerator, the first
# ones also choose kernels and create communicators.
WARM_UP_STEPS = {"cpu": 2, accelerator.TYPE: LEAST_WARMUP}
# How long racing goes on if the suite does not set it.
BUDGET_S = 300.0


# The roles of options that only `parabench run` has: for traced steps, and for interleaved rounds.
TRACE, TURNS = "trace", "turns"

Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Warmup = Annotated[int, Meta(ge=2, le=MOST_STEPS)]
Deadline = Annotated[float, Meta(gt=0, le=LONGEST_DEADLINE_S)]

LAUNCHES_HELP = "Launches per configuration, one per repetition."
DEADLINE = Field(
    option="--deadline",
    metavar="SECONDS",
    help=f"Time after which a launch is hung. [default: {DEADLINE_FACTOR} x expected, {LEAST_DEADLINE_S} at least]",
)


class Protocol(Record, frozen=True, kw_only=True):
    """The steps of each launch: warm-up, then measured steps without instruments, then instrumented steps.

    - Warm-up and measurement take a number of steps, or a time (`warmup_s`, `measure_s`). The default depends on the
      device.
    - With `rounds`, cases are interleaved: each case has one separate launch and `launches` shared ones.
    - Without `launches`, cases race: they share launches, and slower cases are eliminated until the winner is clear, or
      for `budget_s` seconds.
    - A launch counts as hung after `deadline_s` seconds; None derives the deadline from the expected duration.
    """

    kind: ClassVar[str] = "training"
    # The first repetition whose cases may share launches.
    first_shared: ClassVar[int] = 1

    launches: Annotated[
        Count | None,
        Field(
            option="--launches",
            help=f"{LAUNCHES_HELP} [default: 3, or racing if configurations share launches; in `ab`, 8 if interleaved]",
        ),
    ] = None
    steps: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_STEPS)] | None,
        Field(option="--steps", help="Measured steps per launch. [default: 40 on the CPU]"),
    ] = None
    warmup: Annotated[
        Warmup | None,
        Field(
            why=", because DDP rebuilds its buckets after the first step",
            option="--warmup",
            help="Warm-up steps, excluded from the statistics. [default: 5 on the CPU]",
        ),
    ] = None
    measure_s: Annotated[
        Seconds | None,
        Field(
            option="--measure-seconds",
            metavar="SECONDS",
            help="Instead of --steps: measure for this time, the same steps on all ranks. [default: 2 on CUDA]",
        ),
    ] = None
    warmup_s: Annotated[
        Seconds | None,
        Field(
            option="--warmup-seconds",
            metavar="SECONDS",
            help="Instead of --warmup: warm up for this time, after the first 5 steps. [default: 2 on CUDA]",
        ),
    ] = None
    instrumented: Annotated[
        Steps,
        Field(option="--instrumented", help="Instrumented steps after the measured ones; 0 for none. [default: 4]"),
    ] = 4
    profile: Annotated[
        bool,
        Field(role=TRACE, option="--profile", help="Add a step under torch.profiler; traces go to traces/ in --out."),
    ] = False
    memory_snapshot: Annotated[
        bool,
        Field(
            role=TRACE, option="--memory-snapshot", help="Add a step that records CUDA allocations in the same folder."
        ),
    ] = False
    rounds: Annotated[
        Rounds | None,
        Field(
            role=TURNS,
            option="--rounds",
            help="Rounds in a shared launch; 0: configurations have separate launches. [default: as many as fill "
            f"{SHARED_S:g} s; 0 with --launches]",
        ),
    ] = None
    aa_test: Annotated[
        bool,
        Field(
            role=TURNS,
            option="--aa",
            help="Measure one configuration twice in every shared launch: their difference is the noise floor.",
        ),
    ] = False
    budget_s: Annotated[Deadline, Field(role=TURNS)] = BUDGET_S
    deadline_s: Annotated[Deadline | None, DEADLINE] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, timed in BY_STEPS_OR_TIME.items():
            steps, seconds = getattr(self, name), getattr(self, timed)
            if steps is not None and seconds is not None:
                option = option_fields(Protocol)[timed].field.option
                raise UsageError(
                    f"{name} is {steps} and {timed} is {seconds:g}; give steps (--{name}) or seconds ({option}), not "
                    "both"
                )

    def resolved(self, device: str) -> Protocol:
        """Return the protocol with the defaults of `device`, "cpu" or "cuda"."""
        undecided = [pair for pair in BY_STEPS_OR_TIME.items() if all(getattr(self, name) is None for name in pair)]
        chosen = {name: value for name, value in ON_DEVICE[device].items() if any(name in pair for pair in undecided)}
        return self.replace(**chosen)

    @property
    def races(self) -> bool:
        """Return whether cases race: measurements decide the number of launches of each case."""
        return self.launches is None and self.rounds != 0

    @property
    def takes_turns(self) -> bool:
        """Return whether cases share launches."""
        return self.races or bool(self.rounds)

    @property
    def repetitions(self) -> int:
        """Return the number of planned repetitions. With shared launches, the first one has separate launches."""
        return (self.launches or (RACE_LAUNCHES if self.races else LAUNCHES_DEFAULT)) + self.takes_turns

    def briefly_alone(self) -> Protocol:
        """Return the protocol with fewer steps in the separate launches that come before shared launches."""
        fewer = {"warmup": OWN_WARMUP, "steps": OWN_STEPS}
        own = {name: getattr(self, name) for name in fewer}
        return self.replace(**{name: min(own[name], fewer[name]) for name in fewer if own[name] is not None})

    def without_turns(self) -> Protocol:
        """Return the protocol with separate launches for all cases."""
        return self.replace(rounds=0, launches=self.launches or LAUNCHES_DEFAULT)

    def alone(self) -> TrainingSchedule:
        """Return the steps of a separate launch of one case."""
        return TrainingSchedule(
            warmup=LEAST_WARMUP if self.warmup_s is not None else self.warmup or USUAL_WARMUP,
            timed=(LEAST_MEASURED if self.measure_s is not None else self.steps or USUAL_STEPS,),
            warmup_s=self.warmup_s,
            measure_s=self.measure_s,
            instrumented=self.instrumented,
            profile=self.profile,
            memory_snapshot=self.memory_snapshot,
        )

    def shared(self, order: str, step_s: Sequence[float | None], device: str) -> TrainingSchedule:
        """Return the steps of a shared launch with interleaved cases. Without `rounds`, the rounds fill SHARED_S.

        Args:
            order: the seed of the orders of cases.
            step_s: the seconds of a step of each case; None if unknown.
        """
        timed = [TIMED if s is None else max(FEWEST_TIMED, min(MOST_TIMED, round(TURN_S / s))) for s in step_s]
        round_s = [s * (SETTLE + steps) for s, steps in zip(step_s, timed, strict=True) if s is not None]
        rounds = self.rounds or 1
        if self.rounds is None and round_s:
            known = sum(round_s) * len(step_s) / len(round_s)
            rounds = max(1, min(MOST_CHOSEN_ROUNDS, int(SHARED_S / known)))
        seed = random.Random(order).getrandbits(32)
        return TrainingSchedule(
            warmup=WARM_UP_STEPS[device], timed=tuple(timed), rounds=rounds, settle=SETTLE, seed=seed
        )  # fmt: skip


# {field with a number of steps: field with their time}
BY_STEPS_OR_TIME = {"warmup": "warmup_s", "steps": "measure_s"}

# The defaults by device. CUDA launches measure by time, because clocks of an idle GPU need about a second of load to
# rise, and step times of small and large models differ by a factor of 1000.
ON_DEVICE: dict[str, dict[str, Any]] = {
    "cpu": {"warmup": USUAL_WARMUP, "steps": USUAL_STEPS},
    accelerator.TYPE: {"warmup_s": 2.0, "measure_s": 2.0},
}
