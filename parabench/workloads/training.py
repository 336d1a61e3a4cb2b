"""A launch that trains: what a rank does and hands over, and the rows of the record that follow."""

from __future__ import annotations

import gc
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from parabench.collectives import join
from parabench.data.loader import end_workers
from parabench.errors import UsageError
from parabench.launch import hang
from parabench.launch.rank import device_of, join_group, loaded_nccl
from parabench.launch.results import MarkLayout, Marks, NodeResult, RankReport, marks_path
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import RankEnv, Workload, handed_over
from parabench.models.base import arithmetic_of
from parabench.plan.case import Case
from parabench.plan.protocol import Counts, Protocol
from parabench.probes import ProbedRank, ProbeReport, environment, left_behind, probes_of, switched_on
from parabench.probes.replicas import replicas_apart
from parabench.probes.step_clock import MARKS, StepClock, write_counts
from parabench.store.metrics import METRICS
from parabench.store.record import WAIT, CollectiveSample, Launch, Phase, Sample, SeenCall, Span
from parabench.strategies import entry_of
from parabench.strategies.base import ParallelModel, RankInfo
from parabench.workloads.pace import Agreement, warm_up
from parabench.workloads.trainer import Material, Training, build, prepare, train


@dataclass(slots=True, kw_only=True)
class TrainingReport(RankReport, ProbeReport):
    """`losses` of every step and the first gradient's norm, where the rank sees them, beside what its probes saw.
    `marked` are the steps that its rows of marks are of, ascending; None where these are of all steps."""

    losses: list[float] = field(default_factory=list)
    grad_norm: float | None = None
    marked: list[int] | None = None

    def __post_init__(self) -> None:
        # JSON has lists of them.
        self.readings = [(step, metric, value) for step, metric, value in self.readings]
        self.calls = [SeenCall(*each) for each in self.calls]
        self.stalls = [(step, start_s, end_s) for step, start_s, end_s in self.stalls]

    def rows(self, marks: Marks) -> Iterator[tuple[int, Marks]]:
        """(step, its marks) of each row."""
        return zip(range(len(marks)) if self.marked is None else self.marked, marks, strict=True)

    def later(self, by_s: float) -> Self:
        return replace(
            self,
            calls=[call.later(by_s) for call in self.calls],
            stalls=[(step, start_s + by_s, end_s + by_s) for step, start_s, end_s in self.stalls],
        )


class TrainingWorkload(Workload):
    """Steps of a training; its ranks mark each with five moments."""

    report_type = TrainingReport

    def ranks(self, spec: LaunchSpec) -> int:
        return 1 if entry_of(spec.case.strategy).one_process else spec.world_size

    def prepare(self, spec: LaunchSpec, folder: Path) -> dict[str, str]:
        if spec.traces is not None and spec.protocol.traced:
            spec.traces.mkdir(exist_ok=True)
        return environment(spec.protocol, folder)

    def marks(self, spec: LaunchSpec) -> MarkLayout:
        return step_marks(MARKS, None if spec.protocol.by_time else spec.protocol.all_steps)

    def measure(self, spec: LaunchSpec, env: RankEnv, rank: int) -> TrainingReport:
        """Join the group, train, leave the group.

        An error leaves the group as it is: its traceback keeps alive what uses the group, and the process ends anyway.
        """
        case: Case = spec.case
        torch.set_num_threads(case.threads)
        rank_info = RankInfo(rank, case.world_size, device_of(case))
        entry = entry_of(case.strategy)
        grouped = not entry.one_rank_only and not entry.one_process
        # Workers are forked before NCCL has memory registered that a fork could take away from it.
        material = prepare(case, rank_info)
        clock = self.join(case, env, rank) if grouped else None
        report = train_case(spec, env, rank_info, material)
        end_workers()
        # What was built must be gone before the group goes: a DDP reducer that held the last reference to it would end
        # gloo's threads with the interpreter's lock held, and they may be waiting for that lock.
        gc.collect()
        if grouped:
            join.leave()
        report.clock = clock
        report.rank_facts |= left_behind(spec.protocol, env.folder)
        return report

    def join(self, case: Case, env: RankEnv, rank: int) -> dict[str, float] | None:
        """Join the group of the case; how this host's clock differs, as `join_group` tells it."""
        return join_group(case, env, rank)

    def record(self, launch: Launch, spec: LaunchSpec, nodes: Sequence[NodeResult]) -> None:
        counts = spec.protocol.least
        if spec.protocol.by_time:
            counts = agreed(nodes)
            launch.facts["counts"] = counts.to_dict()
        record_ranks(launch, handed_over(nodes, TrainingReport), phases_of(spec.protocol, counts))


def step_marks(width: int, steps: int | None) -> MarkLayout:
    """The table of what a rank marks that takes so many steps, `width` moments each."""

    def position(moments: int) -> str:
        step, part = divmod(moments, width)
        return f"to step {step}, part {part}"

    return MarkLayout(columns=width, moments=width, rows=steps, position=position)


def record_ranks(launch: Launch, ranks: Iterable[tuple[TrainingReport, Marks]], phases: Sequence[Phase]) -> None:
    """Add to a launch the rows and facts of what each rank saw and marked; `phases` are those of all its steps."""
    ranks = list(ranks)
    reports = [report for report, _ in ranks]
    launch.facts |= replicas_apart([report.checksums for report in reports]) | rank_facts(reports)
    launch.facts["phases"] = phase_windows(ranks, phases)
    for report, marks in ranks:
        launch.samples += samples(marks, report, phases)
        launch.spans += spans(marks, report, phases)
        launch.collectives += collectives(report, phases)


def train_case(spec: LaunchSpec, env: RankEnv, rank_info: RankInfo, material: Material | None = None) -> TrainingReport:
    """Build, train and read what was seen."""
    case: Case = spec.case
    protocol: Protocol = spec.protocol
    training, parallel, known = build(case, rank_info, material)
    if dist.is_initialized() and not protocol.alone:
        join.check_groups(rank_info.device, case.backend, case.algorithm)
    clock = StepClock(marks_path(env.folder, rank_info.rank), protocol.all_steps, rank_info.device)
    hang.watch(clock, rank_info.device)
    training.probes = probes = probes_of(
        ProbedRank(
            case=case,
            protocol=protocol,
            info=rank_info,
            parallel=parallel,
            compute=training.compute,
            optimizer=training.optimizer,
            batches=training.batches,
            clock=clock,
            take_step=lambda: train(training, clock, range(clock.steps, clock.steps + 1)),
            traces=spec.traces and spec.traces / f"{case.id}-{re.sub('[^0-9TZ]', '', env.started_utc)}",
        )
    )

    def take(steps: int) -> None:
        begin = clock.steps
        clock.make_room(begin + steps)
        train(training, clock, range(begin, begin + steps))

    counts = protocol.least
    if protocol.by_time:
        store = c10d._get_default_store() if dist.is_initialized() and not protocol.alone else None
        agree = Agreement(store, rank_info.rank, rank_info.world_size if store else 1)
        counts = warm_up(protocol, take, clock.moments.synchronize, agree)
        write_counts(env.folder, rank_info.rank, counts)
        clock.make_room(counts.timed + protocol.after)
    else:
        take(counts.warmup)
    for probe in probes:
        probe.before_measured()
    take(counts.measured)
    for probe in probes:
        probe.after_measured()
    if protocol.instrumented:
        with switched_on(probes, clock) as watched:
            train(training, watched, range(counts.timed, counts.timed + protocol.instrumented))
    for probe in probes:
        probe.after_instrumented()
    clock.finish()
    report = report_of(case, rank_info.rank, training, parallel, known)
    report.facts["collectives"] = join.calls()
    # What a strategy says of itself it knows better than a probe.
    numbers = dict(report.numbers)
    for probe in probes:
        probe.report(report)
    report.numbers |= {**numbers, **clock.moments.numbers()}
    report.readings += clock.lags()
    return report


def report_of(
    case: Case, rank: int, training: Training, parallel: ParallelModel, known: Mapping[str, Any]
) -> TrainingReport:
    """What a rank says of a training that is over, its probes apart; a collective call. Raises UsageError for a number
    of a strategy's that is none."""
    facts = parallel.facts()
    numbers = parallel.numbers()
    check_numbers(case, numbers)
    arithmetic = arithmetic_of(getattr(training.optimizer, "left_out", None))
    return TrainingReport(
        rank=rank,
        losses=training.losses.read(),
        grad_norm=training.grad_norm,
        facts={**known, **facts, **arithmetic, **loaded_nccl(case)},
        numbers=dict(numbers),
        rank_facts={} if training.compiled is None else {"compiled": training.compiled.facts()},
    )


def check_numbers(case: Case, numbers: Mapping[str, Any]) -> None:
    """Raise UsageError for a number of a strategy's that is no metric, or none at all."""
    for name, value in numbers.items():
        if name not in METRICS or not isinstance(value, (int, float)):
            raise UsageError(
                f"strategy {case.strategy!r} tells {name} = {value!r}; give a number under a name of metrics.METRICS"
            )


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
    for step, row in report.rows(marks):
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
    """One rank's instrumented steps on the clock: their parts, and when training was blocked on communication."""
    for step, row in report.rows(marks):
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


def phase_windows(
    ranks: Iterable[tuple[TrainingReport, Marks]], phases: Sequence[Phase]
) -> dict[str, tuple[float, float]]:
    """{phase: (begin, end)} of a launch, from its first rank's first step to its last rank's last, on the clock that
    all processes of a host share. A phase that no rank finished a step of is left out."""
    windows: dict[str, tuple[float, float]] = {}
    for report, marks in ranks:
        for step, row in report.rows(marks):
            if not math.isnan(row[-1]):
                phase = phases[step]
                begin, end = windows.get(phase, (math.inf, -math.inf))
                windows[phase.value] = min(begin, float(row[0])), max(end, float(row[-1]))
    return windows


def ranks_word(ranks: Sequence[int]) -> str:
    """The ranks of a group in a word: `0-3` where they follow one another, else `0,2`."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


def parts_of(row: Marks) -> Iterator[tuple[str, float, float]]:
    """(part, begin, end) of a step's marks. Where forward and backward took turns there is no mark between them; a
    watched loop has a sixth, where it went on."""
    begin, loaded, forward, backward, end, *later = row
    yield "data_s", begin, loaded
    if math.isnan(forward):
        yield "forward_backward_s", loaded, backward
    else:
        yield "forward_s", loaded, forward
        yield "backward_s", forward, backward
    yield "optimizer_s", backward, end
    if later:
        yield "other_s", end, later[0]
