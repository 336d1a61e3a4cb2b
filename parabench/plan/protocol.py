"""How each launch measures: how many steps of each kind it takes, or for how long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from parabench.errors import UsageError
from parabench.machine import accelerator
from parabench.plan.fields import Checked, Field, option_fields
from parabench.store.record import MIB

# A week: no launch is worth more, and a timer cannot wait for ever.
LONGEST_DEADLINE_S = 7 * 86400.0

# A launch counts as hung after so many times what is expected of it, and never before a minute.
DEADLINE_FACTOR = 10
LEAST_DEADLINE_S = 60

# Of each kind; no launch takes more, and its deadline could not be told.
MOST_STEPS = 1_000_000

# Where warm-up or measurement go by time: the fewest steps that they take all the same. The first ones compile, make
# communicators and rebuild DDP's buckets; hyperfine too takes ten runs at least.
LEAST_WARMUP, LEAST_MEASURED = 5, 10

# Of warm-up or measurement by time.
LONGEST_S = 86400.0

# Of turns in a launch.
MOST_ROUNDS = 10_000
# How long the turns of a shared launch take together, about: the launch is the unit of replication, so many short ones
# are better than a few long ones, but each builds every model anew.
SHARED_S = 10.0
# How many launches each case of a race is in before any can leave it; how many there are of each where nothing races.
RACE_LAUNCHES, LAUNCHES_DEFAULT = 2, 3
# What a launch of its own measures of a case that takes turns elsewhere, where nobody asks for more: it is there for
# memory, instruments and energy, and as what the turns are compared with.
OWN_WARMUP, OWN_STEPS = 3, 6
# How long a race goes on, where the suite does not say.
BUDGET_S = 300.0


# The roles of what only `parabench run` can ask for: a step of which a trace is written, and turns.
TRACE, TURNS = "trace", "turns"

# Of every kind of launch.
LAUNCHES = Field(least=1, most=1_000_000, option="--launches", help="Launches per case, one per block.")
DEADLINE = Field(
    above=0,
    most=LONGEST_DEADLINE_S,
    option="--deadline",
    metavar="SECONDS",
    help=f"Time after which a launch is hung. [default: {DEADLINE_FACTOR} x expected, {LEAST_DEADLINE_S} at least]",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many steps of a launch come before the measured ones, and how many are measured."""

    warmup: int
    measured: int

    @property
    def timed(self) -> int:
        """How many carry nothing: the warm-up steps and the measured ones."""
        return self.warmup + self.measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol(Checked):
    """How each launch measures: unmeasured warm-up steps, measured ones that carry nothing, then instrumented ones.

    Warm-up takes `warmup` steps, or as many as fill `warmup_s` seconds; measurement `steps`, or as many as fill
    `measure_s`. What is None on both sides is chosen by the device (`resolved`).
    `profile` adds a step with torch.profiler, `memory_snapshot` one whose allocations are written down. With `explain`
    NCCL logs what it chooses: no launch that counts is measured so. With `rounds` each case has one launch of its own,
    and `launches` more that it shares with all that can share (`plan.turns`), in which they take turns; with
    `self_check` one of them takes the turns of two. Without `launches` it is a race: cases share launches, and those
    that may still be the fastest take part in the next, until that is decided or `budget_s` seconds are over.

    DDP rebuilds its buckets after the first step, so fewer than two warm-up steps are refused.
    `deadline_s` is the wall time after which a launch counts as hung; None derives it from what is known.
    Raises UsageError for what no launch could do.
    """

    # Whether each rank is alone: nothing is exchanged.
    alone: ClassVar[bool] = False

    launches: Annotated[
        int | None,
        replace(LAUNCHES, help=f"{LAUNCHES.help} [default: 3, or a race where cases take turns]"),
    ] = None
    steps: Annotated[
        int | None,
        Field(least=1, most=MOST_STEPS, option="--steps", help="Measured steps per launch. [default: 40 on the CPU]"),
    ] = None
    warmup: Annotated[
        int | None,
        Field(
            least=2,
            most=MOST_STEPS,
            why=", because DDP rebuilds its buckets after the first step",
            option="--warmup",
            help="Warm-up steps, excluded from the statistics. [default: 5 on the CPU]",
        ),
    ] = None
    measure_s: Annotated[
        float | None,
        Field(
            above=0,
            most=LONGEST_S,
            option="--measure-seconds",
            metavar="SECONDS",
            help="Instead of --steps: as many as fill this time, the same number on all ranks. [default: 2 on CUDA]",
        ),
    ] = None
    warmup_s: Annotated[
        float | None,
        Field(
            above=0,
            most=LONGEST_S,
            option="--warmup-seconds",
            metavar="SECONDS",
            help="Instead of --warmup: warm up for this time, after the first 5 steps. [default: 2 on CUDA]",
        ),
    ] = None
    instrumented: Annotated[
        int,
        Field(
            least=0,
            most=MOST_STEPS,
            option="--instrumented",
            help="Instrumented steps after the measured ones; 0 for none. [default: 4]",
        ),
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
        int | None,
        Field(
            least=0,
            most=MOST_ROUNDS,
            role=TURNS,
            option="--rounds",
            help="Turns of each case in a launch that cases share; 0: each has launches of its own. [default: as many "
            f"as fill {SHARED_S:g} s; 0 with --launches]",
        ),
    ] = None
    self_check: Annotated[
        bool,
        Field(
            role=TURNS,
            option="--self-check",
            help="Measure one case twice in every shared launch: what its copies differ by is the noise floor.",
        ),
    ] = False
    budget_s: Annotated[float, Field(above=0, most=LONGEST_DEADLINE_S, role=TURNS)] = BUDGET_S
    explain: bool = False
    deadline_s: Annotated[float | None, DEADLINE] = None

    def resolved(self, device: str) -> Protocol:
        """With what nobody chose decided for launches on `device`, "cpu" or "cuda"."""
        undecided = [pair for pair in BY_STEPS_OR_TIME.items() if all(getattr(self, name) is None for name in pair)]
        chosen = {name: value for name, value in ON_DEVICE[device].items() if any(name in pair for pair in undecided)}
        return replace(self, **chosen)

    @property
    def races(self) -> bool:
        """Whether it is left to the measurements how often each case is launched."""
        return self.launches is None and self.rounds != 0

    @property
    def takes_turns(self) -> bool:
        """Whether cases share launches."""
        return self.races or bool(self.rounds)

    @property
    def blocks(self) -> int:
        """How many blocks are planned: where cases share launches, one more, in which each has one of its own."""
        return (self.launches or (RACE_LAUNCHES if self.races else LAUNCHES_DEFAULT)) + self.takes_turns

    def briefly_alone(self) -> Protocol:
        """With fewer steps for the launches that cases have to themselves, where they go by steps."""
        fewer = {"warmup": OWN_WARMUP, "steps": OWN_STEPS}
        own = {name: getattr(self, name) for name in fewer}
        return replace(self, **{name: min(own[name], fewer[name]) for name in fewer if own[name] is not None})

    def without_turns(self) -> Protocol:
        """The same with launches of their own for all cases."""
        return replace(self, rounds=0, launches=self.launches or LAUNCHES_DEFAULT)

    @property
    def by_time(self) -> bool:
        """Whether a launch finds out itself how many steps it takes."""
        return self.seconds > 0

    @property
    def seconds(self) -> float:
        """How long the steps take at least that go by time."""
        return (self.warmup_s or 0.0) + (self.measure_s or 0.0)

    @property
    def least(self) -> Counts:
        """How many warm-up and measured steps a launch takes; at least so many where it goes by time."""
        fewest = {"warmup": LEAST_WARMUP, "steps": LEAST_MEASURED}
        counts = {
            name: fewest[name] if getattr(self, timed) is not None else getattr(self.resolved("cpu"), name)
            for name, timed in BY_STEPS_OR_TIME.items()
        }
        return Counts(warmup=counts["warmup"], measured=counts["steps"])

    @property
    def all_steps(self) -> int:
        """How many steps a launch takes; at least so many where it goes by time."""
        return self.least.timed + self.after

    @property
    def after(self) -> int:
        """How many come after the timed ones: the instrumented steps and the traced ones."""
        return self.instrumented + self.traced

    @property
    def traced(self) -> int:
        """How many steps come last and are in no statistic: the profiled one, and the one of the memory snapshot."""
        return self.profile + self.memory_snapshot

    def __post_init__(self) -> None:
        Checked.__post_init__(self)  # no `super()`: slots make the class anew
        for name, timed in BY_STEPS_OR_TIME.items():
            steps, seconds = getattr(self, name), getattr(self, timed)
            if steps is not None and seconds is not None:
                option = option_fields(Protocol)[timed].field.option
                raise UsageError(
                    f"{name} is {steps} and {timed} is {seconds:g}; give steps (--{name}) or seconds ({option}), not "
                    "both"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeProtocol(Protocol):
    """How a launch measures what ranks compute, each alone: as trainings are measured, in launches of their own."""

    alone: ClassVar[bool] = True


# What is counted in steps, and the field that says the same in seconds.
BY_STEPS_OR_TIME = {"warmup": "warmup_s", "steps": "measure_s"}

# What a launch does where nobody says. On CUDA by time: the clocks of an idle GPU need about a second of load to rise,
# and a step of a small model takes a thousandth of that of a large one.
ON_DEVICE: dict[str, dict[str, Any]] = {
    "cpu": {"warmup": 5, "steps": 40},
    accelerator.TYPE: {"warmup_s": 2.0, "measure_s": 2.0},
}

# What makes one latency of a link's many round trips, by the kind of device: the median, or the 10th percentile where
# ranks share cores with others: the scheduler's turns (2 ms) came into the median of most runs and seldom into the
# 10th percentile.
LATENCY_QUANTILE = {"cpu": 0.1, accelerator.TYPE: 0.5}

# Why a bandwidth is unknown where all ranks came to their end: to measure again changes nothing.
TOO_QUICK = "the largest transfer took less than two round trips"

# What a round takes, from and to: two directions of `LinkProtocol`, each of doublings and six transfers.
ROUND_S = (2.0, 3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProtocol:
    """`round_trips` of the smallest message for the latency, after `warmup` that are not counted. For the bandwidth the
    size is doubled from `least_bytes` until one transfer takes `transfer_s`, `most_bytes` at most; then up to
    `transfers` of it, as long as they took no more than `most_s` together.

    A tenth of a second is a thousand times what a scheduler's or TCP's hesitation costs, and the whole of a direction
    takes about a second.
    """

    warmup: int = 10
    round_trips: int = 100
    least_bytes: int = MIB
    most_bytes: int = 256 * MIB
    transfer_s: float = 0.1
    transfers: int = 6
    most_s: float = 3.0
