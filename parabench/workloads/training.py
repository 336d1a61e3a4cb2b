"""A launch that trains: what its ranks do, and the rows of the record that follow.

One configuration has a launch to itself, with instruments; several share one and are interleaved (`workloads.turns`).
If each rank is alone (`ComputeProtocol`), a rank of 64 computes its shard and its part of the batch, and holds what it
would hold among all 64, but nothing is exchanged (`collectives.alone`) and nothing is verified. As many ranks run as a
node has, because ranks that share cores or memory slow one another down.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from parabench.collectives import alone, join
from parabench.launch import hang
from parabench.launch.rank import device_of, in_group, join_group
from parabench.launch.results import MarkLayout, Marks, NodeResult, RankReport, marks_path, of_ranks
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import RankEnv, Workload, arms_of
from parabench.plan.case import Case
from parabench.plan.protocol import Counts, Protocol
from parabench.plan.turns import TurnsProtocol, turns
from parabench.probes import CaseReport, ProbedRank, nccl, probe_classes, switched_on
from parabench.probes.flops import count_flops
from parabench.probes.replicas import replicas_apart
from parabench.probes.step_clock import MARKS, StepClock, write_counts
from parabench.store.record import WAIT, CollectiveSample, Launch, Phase, Sample, Span
from parabench.strategies import entry_of
from parabench.strategies.base import RankInfo
from parabench.workloads.pace import Agreement, warm_up
from parabench.workloads.trainer import Material, build, prepare
from parabench.workloads.turns import owners_of, pair_facts, steps_of, take_turns, turn_marks


class TrainingWorkload(Workload):
    """Steps of training runs; ranks mark each step with five times."""

    def ranks(self, spec: LaunchSpec) -> int:
        return 1 if entry_of(spec.cases[0].strategy).one_process else spec.world_size

    def prepare(self, spec: LaunchSpec, folder: Path) -> Mapping[str, str]:
        if isinstance(spec.protocol, TurnsProtocol):
            return {}
        if spec.traces is not None and spec.protocol.traced:
            Path(spec.traces).mkdir(exist_ok=True)
        return nccl.environment(spec.protocol, folder)

    def marks(self, spec: LaunchSpec) -> MarkLayout:
        if isinstance(spec.protocol, TurnsProtocol):
            return turn_marks(spec)
        return step_marks(MARKS, None if spec.protocol.by_time else spec.protocol.all_steps)

    def measure(self, spec: LaunchSpec, env: RankEnv, rank: int) -> RankReport:
        """Join the group, train, leave the group."""
        largest: Case = spec.largest
        torch.set_num_threads(largest.threads)
        info = RankInfo(rank, largest.world_size, device_of(largest))
        # Workers of data loaders are forked before the group has threads and memory that a fork would break.
        materials = {place: prepare(case, info) for place, case in enumerate(spec.cases) if rank < case.world_size}
        with in_group(partial(self._join, spec, env, rank)) as clock:
            if isinstance(spec.protocol, TurnsProtocol):
                report = take_turns(spec, env, info, materials)
            else:
                report = RankReport(rank=rank, cases=[train_case(spec, env, info, materials[0])])
        report.clock = clock
        if not isinstance(spec.protocol, TurnsProtocol):
            report.of(0).rank_facts |= nccl.left_behind(spec.protocol, env.folder)
        return report

    def _join(self, spec: LaunchSpec, env: RankEnv, rank: int) -> dict[str, float] | None:
        largest: Case = spec.largest
        if isinstance(spec.protocol, TurnsProtocol):
            return join_group(largest.replace(algorithm="native"), env, rank)
        if spec.protocol.alone:
            alone.join(rank, largest.world_size, env.timeout_s)
            return None
        entry = entry_of(largest.strategy)
        return None if entry.one_rank_only or entry.one_process else join_group(largest, env, rank)

    def record(self, launch: Launch, spec: LaunchSpec, nodes: Sequence[NodeResult]) -> None:
        """Add what ranks saw and marked. In a shared launch each case gets its own launch."""
        reports, marks = zip(*of_ranks(nodes), strict=True)
        protocol = spec.protocol
        if not isinstance(protocol, TurnsProtocol):
            counts = protocol.least
            if protocol.by_time:
                counts = agreed(nodes)
                launch.facts["counts"] = counts.to_dict()
            record_ranks(launch, list(zip(reports, marks, strict=True)), phases_of(protocol, counts))
            return
        all_turns = list(turns(protocol, len(spec.cases)))
        shared = {"cases": [case.id for case in spec.cases], "protocol": protocol.to_dict()}
        for place, arm in arms_of(launch, spec, marks, MARKS, owners_of(all_turns)):
            rows, phases = steps_of(all_turns, place)
            own = [(report, seen[rows]) for report, seen in zip(reports, marks, strict=True)][: arm.case.world_size]
            add_case(arm, place, own, phases)
            counts = Counts(warmup=protocol.warmup, measured=protocol.steps_of(place) - protocol.warmup)
            pair = pair_facts(spec, all_turns, place, reports[0].first)
            arm.facts |= {"turns": {**shared, "place": place, **pair}, "counts": counts.to_dict()}
            launch.arms.append(arm)


def step_marks(width: int, steps: int | None) -> MarkLayout:
    """Return the layout of `steps` steps with `width` times each."""

    def position(moments: int) -> str:
        step, part = divmod(moments, width)
        return f"to step {step}, part {part}"

    return MarkLayout(columns=width, moments=width, rows=steps, position=position)


Ranks = Sequence[tuple[RankReport, Marks]]


def add_case(launch: Launch, place: int, ranks: Ranks, phases: Sequence[Phase]) -> None:
    """Add to a launch the facts and samples of the case at `place`. `phases` are those of all its steps."""
    cases = [report.of(place) for report, _ in ranks]
    launch.facts |= next((case.facts for case in cases if case.facts), {})
    launch.facts |= replicas_apart([case.checksums for case in cases])
    for report, case in zip((report for report, _ in ranks), cases, strict=True):
        for name, value in case.rank_facts.items():
            launch.facts.setdefault(name, []).append({"rank": report.rank, **value})
    for report, marks in ranks:
        launch.samples += samples(marks, report.rank, report.of(place), phases)


def record_ranks(launch: Launch, ranks: Ranks, phases: Sequence[Phase]) -> None:
    """Add to a launch of one case the same, and what instruments saw."""
    add_case(launch, 0, ranks, phases)
    launch.facts["phases"] = phase_windows([(report.of(0), marks) for report, marks in ranks], phases)
    for report, marks in ranks:
        case = report.of(0)
        launch.spans += spans(marks, report.rank, case, phases)
        launch.collectives += collectives(report.rank, case, phases)


def train_case(spec: LaunchSpec, env: RankEnv, rank_info: RankInfo, material: Material | None = None) -> CaseReport:
    """Build and train a case that has the launch to itself, with instruments, and report what was seen."""
    case: Case = spec.case
    protocol: Protocol = spec.protocol
    training = build(case, rank_info, material)
    if dist.is_initialized() and not protocol.alone:
        join.check_groups(rank_info.device, case.backend, case.algorithm)
    clock = StepClock(marks_path(env.folder, rank_info.rank), protocol.all_steps, rank_info.device)
    hang.watch(clock, rank_info.device)
    stem = f"{case.id}-{re.sub('[^0-9TZ]', '', env.started_utc)}"
    probed = ProbedRank(
        case=case,
        protocol=protocol,
        info=rank_info,
        parallel=training.parallel,
        optimizer=training.optimizer,
        clock=clock,
        take_step=lambda: training.take(clock, 1),
        traces=Path(spec.traces) / stem if spec.traces else None,
    )
    training.probes = probes = [probe(probed) for probe in probe_classes()]

    def take(steps: int) -> None:
        clock.make_room(training.taken + steps)
        training.take(clock, steps)

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
            training.take(watched, protocol.instrumented)
    for probe in probes:
        probe.after_instrumented()
    clock.finish()
    report = training.report()
    report.facts["collectives"] = join.calls()
    # A strategy's own numbers are better than a probe's.
    numbers = dict(report.numbers)
    for probe in probes:
        probe.report(report)
    report.numbers |= {**numbers, **clock.moments.numbers()}
    report.readings += clock.lags()
    if case == case.reference():  # its operations count for all strategies that train the same
        report.facts["flops"] = count_flops(training.compute, training.batches)
    return report


def agreed(nodes: Sequence[NodeResult]) -> Counts:
    """Return the steps that the ranks of a launch by time agreed on; if they came not so far, all were warm-up."""
    counts = next((node.counts for node in nodes if node.counts), None)
    if counts is None:
        return Counts(warmup=max(len(each) for node in nodes for each in node.marks), measured=0)
    warmup, measured = counts
    return Counts(warmup=warmup, measured=measured)


def phases_of(protocol: Protocol, counts: Counts) -> list[Phase]:
    """Return the phase of each step of a launch with these numbers of warm-up and measured steps."""
    each = {
        Phase.WARMUP: counts.warmup, Phase.MEASURE: counts.measured, Phase.INSTRUMENT: protocol.instrumented,
        Phase.PROFILE: protocol.traced,
    }  # fmt: skip
    return [phase for phase, count in each.items() for _ in range(count)]


def steps_with_marks(marks: Marks, case: CaseReport) -> Iterator[tuple[int, Marks]]:
    """Yield (step, its marks) for each row."""
    return zip(range(len(marks)) if case.marked is None else case.marked, marks, strict=True)


def samples(marks: Marks, rank: int, case: CaseReport, phases: Sequence[Phase]) -> Iterator[Sample]:
    """Yield the samples of a rank: the parts of every step it finished, its losses, and its memory. Waits between the
    batches of one step count as waits for data."""
    for step, row in steps_with_marks(marks, case):
        if math.isnan(row[-1]):
            break
        yield Sample(rank, step, phases[step], "step_s", float(row[-1] - row[0]))
        waited = case.later_waits.get(step, 0.0)
        longer = {"data_s": waited, "forward_backward_s": -waited}
        for part, begin, end in parts_of(row):
            yield Sample(rank, step, phases[step], part, float(end - begin) + longer.get(part, 0.0))
    for step, loss in enumerate(case.losses):
        yield Sample(rank, step, phases[step], "loss", loss if math.isfinite(loss) else None)
    if case.grad_norm is not None:
        norm = case.grad_norm
        yield Sample(rank, 0, Phase.WARMUP, "grad_norm", norm if math.isfinite(norm) else None)
    for step, metric, value in case.readings:
        yield Sample(rank, step, phases[step], metric, value)
    for metric, value in case.numbers.items():
        yield Sample(rank, None, Phase.MEASURE, metric, value)


def spans(marks: Marks, rank: int, case: CaseReport, phases: Sequence[Phase]) -> Iterator[Span]:
    """Yield the parts of a rank's instrumented steps, and the waits of its training for communication."""
    for step, row in steps_with_marks(marks, case):
        if phases[step] is Phase.INSTRUMENT and not math.isnan(row[-1]):
            for part, begin, end in parts_of(row):
                yield Span(rank, step, part.removesuffix("_s"), float(begin), float(end))
    for step, start_s, end_s in case.stalls:
        yield Span(rank, step, WAIT, start_s, end_s)


def collectives(rank: int, case: CaseReport, phases: Sequence[Phase]) -> Iterator[CollectiveSample]:
    """Yield a rank's calls of collectives in the instrumented steps."""
    for call in case.calls:
        yield CollectiveSample(
            rank, call.step, call.seq, call.op, call.algorithm, len(call.ranks), call.bytes, call.start_s,
            call.duration_s, phases[call.step], None, None, ranks_word(call.ranks), call.dtype, call.made_s,
            call.bucket, call.ready_s,
        )  # fmt: skip


def phase_windows(ranks: Iterable[tuple[CaseReport, Marks]], phases: Sequence[Phase]) -> dict[str, tuple[float, float]]:
    """Return {phase: (begin, end)} of a launch, from the first step of any rank to the last one of any rank, on the
    clock that all processes of a host share. A phase is left out if no rank finished a step of it."""
    windows: dict[str, tuple[float, float]] = {}
    for case, marks in ranks:
        for step, row in steps_with_marks(marks, case):
            if not math.isnan(row[-1]):
                phase = phases[step]
                begin, end = windows.get(phase, (math.inf, -math.inf))
                windows[phase.value] = min(begin, float(row[0])), max(end, float(row[-1]))
    return windows


def ranks_word(ranks: Sequence[int]) -> str:
    """Return the ranks of a group as a word: `0-3` if they are consecutive, else `0,2`."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


def parts_of(row: Marks) -> Iterator[tuple[str, float, float]]:
    """Yield (part, begin, end) from the marks of a step. If forward and backward alternated, there is no mark between
    them. A watched loop has a sixth mark, when it went on."""
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
