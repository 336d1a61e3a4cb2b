"""What ranks of a training hand over, and the rows of the record that follow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from parabench.launch.results import Marks, NodeResult, RankReport
from parabench.launch.spec import LaunchSpec
from parabench.plan.protocol import Counts, Protocol
from parabench.probes.replicas import replicas_apart
from parabench.store.record import WAIT, CollectiveSample, Launch, Phase, Sample, SeenCall, Span


class Reading(NamedTuple):
    """One number of one step, under a name of METRICS."""

    step: int
    metric: str
    value: float


class Stall(NamedTuple):
    """From when to when a step stood still for communication."""

    step: int
    start_s: float
    end_s: float


@dataclass(slots=True, kw_only=True)
class TrainingReport(RankReport):
    """`losses` of every step and the first gradient's norm, where the rank sees them; `numbers` {metric: value} of the
    launch as a whole, `readings` of single steps; `calls` and `stalls` of the instrumented ones; `checksums`
    {parameter: checksum} where ranks must end with equal parameters."""

    losses: list[float] = field(default_factory=list)
    grad_norm: float | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    calls: list[SeenCall] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    checksums: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.readings = [Reading(*each) for each in self.readings]
        self.calls = [SeenCall(*each) for each in self.calls]
        self.stalls = [Stall(*each) for each in self.stalls]

    def later(self, by_s: float) -> Self:
        return replace(
            self,
            calls=[call.later(by_s) for call in self.calls],
            stalls=[Stall(step, start_s + by_s, end_s + by_s) for step, start_s, end_s in self.stalls],
        )


def record(launch: Launch, spec: LaunchSpec, nodes: Sequence[NodeResult]) -> None:
    """Add the samples of a training to its launch: what ranks marked and handed over."""
    reports = [each for node in nodes for each in node.reports if isinstance(each, TrainingReport)]
    marks = [each for node in nodes for each in node.marks]
    launch.facts |= replicas_apart([report.checksums for report in reports]) | rank_facts(reports)
    counts = spec.protocol.least
    if spec.protocol.by_time:
        counts = agreed(nodes)
        launch.facts["counts"] = asdict(counts)
    phases = phases_of(spec.protocol, counts)
    launch.facts["phases"] = phase_windows(marks, phases)
    for report, steps in zip(reports, marks, strict=True):
        launch.samples += samples(steps, report, phases)
        launch.spans += spans(steps, report, phases)
        launch.collectives += collectives(report, phases)


def agreed(nodes: Sequence[NodeResult]) -> Counts:
    """How many steps the ranks of a launch that goes by time agreed to take; before they did all were warm-up."""
    counts = next((node.counts for node in nodes if node.counts), None)
    if counts is None:
        return Counts(warmup=max(len(each) for node in nodes for each in node.marks), measured=0)
    warmup, measured = counts
    return Counts(warmup=warmup, measured=measured)


def phases_of(protocol: Protocol, counts: Counts) -> list[Phase]:
    """The phase of each step of a launch that takes so many warm-up and measured ones."""
    each = {
        Phase.WARMUP: counts.warmup, Phase.MEASURE: counts.measured, Phase.INSTRUMENT: protocol.instrumented,
        Phase.PROFILE: protocol.traced,
    }  # fmt: skip
    return [phase for phase, count in each.items() for _ in range(count)]


def samples(marks: Marks, report: TrainingReport, phases: Sequence[Phase]) -> Iterator[Sample]:
    """One rank's samples: the parts of every step it finished, its losses, and its memory."""
    rank = report.rank
    for step, row in enumerate(marks):
        if math.isnan(row[-1]):
            break
        yield Sample(rank, step, phases[step], "step_s", float(row[-1] - row[0]))
        for part, begin, end in parts_of(row):
            yield Sample(rank, step, phases[step], part, float(end - begin))
    for step, loss in enumerate(report.losses):
        yield Sample(rank, step, phases[step], "loss", loss if math.isfinite(loss) else None)
    if report.grad_norm is not None:
        norm = report.grad_norm
        yield Sample(rank, 0, Phase.WARMUP, "grad_norm", norm if math.isfinite(norm) else None)
    for step, metric, value in report.readings:
        yield Sample(rank, step, phases[step], metric, value)
    for metric, value in report.numbers.items():
        yield Sample(rank, None, Phase.MEASURE, metric, value)


def spans(marks: Marks, report: TrainingReport, phases: Sequence[Phase]) -> Iterator[Span]:
    """One rank's instrumented steps on the clock: their parts, and when training stood still for communication."""
    for step, row in enumerate(marks):
        if phases[step] is Phase.INSTRUMENT and not math.isnan(row[-1]):
            for part, begin, end in parts_of(row):
                yield Span(report.rank, step, part.removesuffix("_s"), float(begin), float(end))
    for step, start_s, end_s in report.stalls:
        yield Span(report.rank, step, WAIT, start_s, end_s)


def collectives(report: TrainingReport, phases: Sequence[Phase]) -> Iterator[CollectiveSample]:
    """One rank's calls of collectives in the instrumented steps."""
    for call in report.calls:
        yield CollectiveSample(
            report.rank, call.step, call.seq, call.op, call.algorithm, len(call.ranks), call.bytes, call.start_s,
            call.duration_s, phases[call.step], None, None, ranks_word(call.ranks), call.dtype, call.made_s,
            call.bucket, call.ready_s,
        )  # fmt: skip


def rank_facts(reports: Sequence[RankReport]) -> dict[str, list[dict[str, Any]]]:
    """What instruments told of single ranks, as facts: {name: [{"rank", what it told}]}."""
    facts: dict[str, list[dict[str, Any]]] = {}
    for report in reports:
        for name, value in report.rank_facts.items():
            facts.setdefault(name, []).append({"rank": report.rank, **value})
    return facts


def phase_windows(marks: Sequence[Any], phases: Sequence[Phase]) -> dict[str, tuple[float, float]]:
    """{phase: (begin, end)} of a launch, from its first rank's first step to its last rank's last, on the clock that
    all processes of a host share. A phase that no rank finished a step of is left out."""
    windows: dict[str, tuple[float, float]] = {}
    for steps in marks:
        # A rank that ended amid a warm-up by time had not yet made room for the steps after it.
        for row, phase in zip(steps, phases, strict=False):
            if not math.isnan(row[-1]):
                begin, end = windows.get(phase, (math.inf, -math.inf))
                windows[phase.value] = min(begin, float(row[0])), max(end, float(row[-1]))
    return windows


def ranks_word(ranks: Sequence[int]) -> str:
    """The ranks of a group in a word: `0-3` where they follow one another, else `0,2`."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


def parts_of(row: npt.NDArray[np.float64]) -> Iterator[tuple[str, float, float]]:
    """(part, begin, end) of a step's marks. Where forward and backward took turns there is no mark between them."""
    begin, loaded, forward, backward, end = row
    yield "data_s", begin, loaded
    if math.isnan(forward):
        yield "forward_backward_s", loaded, backward
    else:
        yield "forward_s", loaded, forward
        yield "backward_s", forward, backward
    yield "optimizer_s", backward, end
