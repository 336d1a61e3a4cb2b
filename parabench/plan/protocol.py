"""How each launch measures: how many steps of each kind it takes, or for how long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from parabench.errors import UsageError

# A week: no launch is worth more, and a timer cannot wait for ever.
LONGEST_DEADLINE_S = 7 * 86400.0

# Of each kind; no launch takes more, and its deadline could not be told.
MOST_STEPS = 1_000_000

# Where warm-up or measurement go by time: the fewest steps that they take all the same. The first ones compile, make
# communicators and rebuild DDP's buckets; hyperfine too takes ten runs at least.
LEAST_WARMUP, LEAST_MEASURED = 5, 10

# Of warm-up or measurement by time.
LONGEST_S = 86400.0


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
class Protocol:
    """How each launch measures: unmeasured warm-up steps, measured ones that carry nothing, then instrumented ones.

    Warm-up takes `warmup` steps, or as many as fill `warmup_s` seconds; measurement `steps`, or as many as fill
    `measure_s`. What is None on both sides is chosen by the device (`settled`).
    `profile` adds a step with torch.profiler, `memory_snapshot` one whose allocations are written down. With `explain`
    NCCL logs what it chooses: no launch that counts is measured so.

    DDP rebuilds its buckets after the first step, so fewer than two warm-up steps are refused.
    `deadline_s` is the wall time after which a launch counts as hung; None derives it from what is known.
    Raises UsageError for what no launch could do.
    """

    warmup: int | None = None
    steps: int | None = None
    launches: int = 3
    deadline_s: float | None = None
    instrumented: int = 4
    profile: bool = False
    memory_snapshot: bool = False
    explain: bool = False
    warmup_s: float | None = None
    measure_s: float | None = None

    def settled(self, device: str) -> Protocol:
        """With what nobody chose decided for launches on `device`, "cpu" or "cuda"."""
        chosen = {name: value for name, value in ON_DEVICE[device].items() if self._open(name)}
        return replace(self, **chosen)

    def _open(self, name: str) -> bool:
        return all(getattr(self, one) is None for pair in BY_STEPS_OR_TIME.items() if name in pair for one in pair)

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
            name: fewest[name] if getattr(self, timed) is not None else getattr(self.settled("cpu"), name)
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
        for name in ("warmup", "steps", "launches", "instrumented"):
            value = getattr(self, name)
            if type(value) is not int and not (value is None and name in BY_STEPS_OR_TIME):
                raise UsageError(f"{name} is {value!r}; it must be a whole number")
        for name in ("profile", "memory_snapshot", "explain"):
            if type(getattr(self, name)) is not bool:
                raise UsageError(f"{name} is {getattr(self, name)!r}; it must be true or false")
        for name, least, why in (
            ("warmup", 2, " because DDP rebuilds its buckets after the first step"),
            ("steps", 1, ""),
            ("launches", 1, ""),
            ("instrumented", 0, ""),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} is {value}; it must be {least} or more{why}")
            if value is not None and value > MOST_STEPS:
                raise UsageError(f"{name} is {value}; it must be {MOST_STEPS} or less")
        for name, timed in BY_STEPS_OR_TIME.items():
            seconds = getattr(self, timed)
            if seconds is None:
                continue
            if type(seconds) not in (int, float) or not 0 < seconds <= LONGEST_S:
                raise UsageError(
                    f"{timed} is {seconds!r}; give {OPTIONS[timed]} above 0 and at most {LONGEST_S:.0f} seconds"
                )
            if getattr(self, name) is not None:
                raise UsageError(
                    f"{name} is {getattr(self, name)} and {timed} is {seconds:g}; give steps (--{name}) or seconds "
                    f"({OPTIONS[timed]}), not both"
                )
            object.__setattr__(self, timed, float(seconds))
        if self.deadline_s is not None and not 0 < self.deadline_s <= LONGEST_DEADLINE_S:
            raise UsageError(
                f"deadline is {self.deadline_s} s; it must be above 0 and at most {LONGEST_DEADLINE_S:.0f}"
            )


# What is counted in steps, and the field that says the same in seconds.
BY_STEPS_OR_TIME = {"warmup": "warmup_s", "steps": "measure_s"}

# How the seconds are given on the command line.
OPTIONS = {"warmup_s": "--warmup-seconds", "measure_s": "--measure-seconds"}

# What a launch does where nobody says. On CUDA by time: the clocks of an idle GPU need about a second of load to rise,
# and a step of a small model takes a thousandth of that of a large one.
ON_DEVICE: dict[str, dict[str, Any]] = {
    "cpu": {"warmup": 5, "steps": 40},
    "cuda": {"warmup_s": 2.0, "measure_s": 2.0},
}
