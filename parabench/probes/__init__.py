"""Probes: the instruments of a rank besides the step clock, one module each, and their table.

Only the step clock runs in measured steps. To add a probe: its module, its line here, and its metrics in
`parabench.metrics`. Instruments outside of the ranks are sources of a `sampler.Sampler`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from parabench.registry import Entry, load
from parabench.store.record import LinkMessage

if TYPE_CHECKING:
    from torch import nn

    from parabench.plan.case import Case
    from parabench.plan.protocol import Protocol
    from parabench.probes.step_clock import StepClock
    from parabench.strategies.base import OptimizerLike, ParallelModel, RankInfo, StepMarker

# The probes of each rank that trains, in the order of their calls.
PROBES: dict[str, Entry] = {
    "memory": Entry(target="parabench.probes.memory:MemoryProbe", summary="peaks, parts of a step, training state"),
    "ddp_logger": Entry(target="parabench.probes.ddp:DdpLoggerProbe", summary="what DDP logs of itself"),
    "communication": Entry(
        target="parabench.probes.communication:CommunicationProbe",
        summary="calls of collectives, and when training was blocked on them",
    ),
    "program": Entry(
        target="parabench.probes.program:ProgramProbe", summary="what a rank alone computes, calls and waits for"
    ),
    "profiler": Entry(target="parabench.probes.profiler:ProfilerProbe", summary="traces and memory snapshots"),
}


class SeenCall(NamedTuple):
    """A collective's call in an instrumented step, as its rank reports it. Times are on the clock of its node."""

    step: int
    seq: int
    op: str
    algorithm: str
    ranks: list[int]
    dtype: str | None
    bytes: int
    made_s: float
    start_s: float | None
    duration_s: float | None
    bucket: int | None
    ready_s: float | None

    def later(self, by_s: float) -> SeenCall:
        """Return the same call on a clock that is ahead by so much."""
        return self._replace(
            made_s=self.made_s + by_s,
            start_s=None if self.start_s is None else self.start_s + by_s,
            ready_s=None if self.ready_s is None else self.ready_s + by_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedRank:
    """A rank whose training run is built, and has not begun.

    `take_step` takes its next step, marked on `clock`. The names of its traces begin with the path `traces`. If the
    rank is `alone`, it exchanges nothing.
    """

    case: Case
    protocol: Protocol
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
    """The observations of one rank for one case. Times are seconds on the clock that all processes of a host share.

    Attributes:
        facts: Facts of the launch.
        rank_facts: {name: facts} of this rank alone.
        numbers: {metric: value} of the whole launch.
        readings: (step, metric, value) of single steps.
        losses: The loss of each step, if the rank has it.
        grad_norm: The norm of the first gradient, if it is known on the rank.
        calls: Calls of collectives in the instrumented steps.
        stalls: (step, start, end) of waits for communication in the instrumented steps.
        checksums: {parameter: checksum}, if ranks must end with equal parameters.
        marked: The steps that the rows of marks belong to, ascending; None for all steps.
        steps: The number of steps of a watched loop.
        later_waits: {step: seconds} of a watched loop's waits for batches after the first one of a step.
        loop: The account of all steps of a watched loop (`watching.loop_time`).
        failures: {instrument: reason} of instruments that failed in a watched loop.
        wrong: (bytes, in place, elements) of each check of a collective: how many elements are wrong.
        messages: Every message of the measurement of links that this rank timed, and `device` its device.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    rank_facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    readings: list[tuple[int, str, float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    grad_norm: float | None = None
    calls: list[SeenCall] = field(default_factory=list)
    stalls: list[tuple[int, float, float]] = field(default_factory=list)
    checksums: dict[str, int] = field(default_factory=dict)
    marked: list[int] | None = None
    steps: int = 0
    later_waits: dict[int, float] = field(default_factory=dict)
    loop: dict[str, Any] | None = None
    failures: dict[str, str] = field(default_factory=dict)
    wrong: list[tuple[int, bool, int]] = field(default_factory=list)
    messages: list[LinkMessage] = field(default_factory=list)
    device: str | None = None


class Probe:
    """A probe of a rank, made before the warm-up. Its hooks are called in this order, and do nothing by default."""

    def __init__(self, rank: ProbedRank) -> None:
        self.rank = rank

    def after_first_backward(self) -> None:
        """Look at the first warm-up step while its gradients exist."""

    def after_first_step(self) -> None:
        """Look at the first warm-up step after its optimizer step."""

    def before_measured(self) -> None:
        """Prepare for the measured steps."""

    def after_measured(self) -> None:
        """Read what the measured steps have left."""

    def instrumented(self, clock: StepMarker) -> AbstractContextManager[StepMarker]:
        """Surround the instrumented steps, and return the clock that they mark, which marks `clock`."""
        return nullcontext(clock)

    def after_instrumented(self) -> None:
        """Take further steps by `take_step`."""

    def report(self, report: CaseReport) -> None:
        """Add the observations, after the last step. All ranks do so together."""


def probe_classes() -> list[type[Probe]]:
    """Return the classes of PROBES, imported now."""
    return [load(PROBES, "probe", name) for name in PROBES]


@contextmanager
def switched_on(probes: Sequence[Probe], clock: StepMarker) -> Iterator[StepMarker]:
    """Switch all probes on for the instrumented steps. Yields the clock that these steps are to mark."""
    with ExitStack() as on:
        for probe in probes:
            clock = on.enter_context(probe.instrumented(clock))
        yield clock
