"""Probes: the instruments of a rank in addition to the step clock. They do not run in measured steps.

Instruments outside of the ranks are sources of a `sampler.Sampler`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parabench.registry import Entry, load
from parabench.store.record import CollectiveSample, LinkMessage

if TYPE_CHECKING:
    from torch import nn

    from parabench.plan.case import Case
    from parabench.plan.schedule import TrainingSchedule
    from parabench.probes.step_clock import StepClock
    from parabench.strategies.base import OptimizerLike, ParallelModel, RankInfo, StepMarker

# The probes of each rank that trains, in the order of their calls.
PROBES: dict[str, Entry] = {
    "memory": Entry(target="parabench.probes.memory:MemoryProbe", summary="peaks, parts of a step, model states"),
    "communication": Entry(
        target="parabench.probes.communication:CommunicationProbe",
        summary="calls of collectives, and waits of the training for them",
    ),
    "program": Entry(
        target="parabench.probes.program:ProgramProbe", summary="compute times, calls and waits of a compute-only run"
    ),
    "profiler": Entry(target="parabench.probes.profiler:ProfilerProbe", summary="traces and memory snapshots"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedRank:
    """The inputs of a probe: a rank whose training run is built, but has not started.

    `take_step` takes the next step and marks it on `clock`. `traces` is the start of the paths of trace files. If the
    rank is `alone`, it does not communicate.
    """

    case: Case
    schedule: TrainingSchedule
    info: RankInfo
    parallel: ParallelModel
    optimizer: OptimizerLike
    clock: StepClock
    take_step: Callable[[], None]
    traces: Path | None = None
    alone: bool = False

    @property
    def module(self) -> nn.Module:
        return self.parallel.module


@dataclass(kw_only=True)
class CaseReport:
    """The observations of one rank for one case. Times are seconds on the clock of its host."""

    facts: dict[str, Any] = field(default_factory=dict)
    rank_facts: dict[str, dict[str, Any]] = field(default_factory=dict)  # {name: facts of this rank}
    numbers: dict[str, float] = field(default_factory=dict)  # {metric: the value of this rank for the whole launch}
    readings: list[tuple[int, str, float]] = field(default_factory=list)  # (step, metric, value)
    losses: list[float] = field(default_factory=list)  # one per step, if the rank has them
    grad_norm: float | None = None  # the norm of the first gradient, if the rank has it
    # In the instrumented steps: calls of collectives, and waits for communication as (step, start, end).
    calls: list[CollectiveSample] = field(default_factory=list)
    stalls: list[tuple[int, float, float]] = field(default_factory=list)
    checksums: dict[str, int] = field(default_factory=dict)  # {parameter: checksum}, if ranks must end equal
    marked: list[int] | None = None  # the steps of the rows of timestamps, ascending; None for all steps
    # Watched loops: the number of steps, {step: seconds of waiting for later batches}, the result of
    # `watching.loop.loop_time`, and {instrument: reason} of failed instruments.
    steps: int = 0
    later_waits: dict[int, float] = field(default_factory=dict)
    loop: dict[str, Any] | None = None
    failures: dict[str, str] = field(default_factory=dict)
    # Collectives: (bytes, in place, number of wrong elements) of each check.
    wrong: list[tuple[int, bool, int]] = field(default_factory=list)
    # Links: the messages that this rank timed, and its device.
    messages: list[LinkMessage] = field(default_factory=list)
    device: str | None = None


class Probe:
    """A probe of a rank, made before the warm-up. Its hooks are called in this order, and do nothing by default."""

    def __init__(self, rank: ProbedRank) -> None:
        self.rank = rank

    def after_first_backward(self) -> None:
        """Read the first warm-up step while its gradients exist."""

    def after_first_step(self) -> None:
        """Read the first warm-up step after its optimizer step."""

    def before_measured(self) -> None:
        """Prepare for the measured steps."""

    def after_measured(self) -> None:
        """Read results of the measured steps."""

    def instrumented(self, clock: StepMarker) -> AbstractContextManager[StepMarker]:
        """Return a context for the instrumented steps. It yields the clock that they mark, which also marks `clock`."""
        return nullcontext(clock)

    def after_instrumented(self) -> None:
        """Take further steps with `take_step`."""

    def report(self, report: CaseReport) -> None:
        """Add the observations, after the last step. All ranks call this together."""


def probe_classes() -> list[type[Probe]]:
    """Import and return the classes of all PROBES."""
    return [load(PROBES, "probe", name) for name in PROBES]


@contextmanager
def switched_on(probes: Sequence[Probe], clock: StepMarker) -> Iterator[StepMarker]:
    """Switch all probes on for the instrumented steps. Yield the clock that these steps mark."""
    with ExitStack() as on:
        for probe in probes:
            clock = on.enter_context(probe.instrumented(clock))
        yield clock
