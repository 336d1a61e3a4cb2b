"""A launch that trains: the part of each rank.

All cases of a launch are built in the same ranks, and take the turns of its schedule (`plan.schedule`). A smaller case
uses the first ranks. If the launch has one case and no rounds, it has instruments.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from parabench.collectives import alone, join
from parabench.launch import hang
from parabench.launch.rank import device_of, in_group, join_group
from parabench.launch.results import MarkLayout, NodeResult, RankReport, marks_path
from parabench.launch.spec import LaunchSpec, RankEnv, Workload
from parabench.launch.token import Partner
from parabench.machine import accelerator
from parabench.plan.case import Case
from parabench.plan.schedule import BUILD, WARM_UP, TrainingSchedule
from parabench.probes import CaseReport, Probe, ProbedRank, nccl, probe_classes, switched_on
from parabench.probes.flops import count_flops
from parabench.probes.memory import forget_building
from parabench.probes.step_clock import MARKS, StepClock, write_counts
from parabench.store.record import Launch
from parabench.strategies import entry_of
from parabench.strategies.base import RankInfo
from parabench.workloads.pace import Agreement, warm_up
from parabench.workloads.steps import record, turn_marks
from parabench.workloads.trainer import Material, Training, build, prepare


class TrainingWorkload(Workload):
    """Steps of training runs; ranks mark each step with five times."""

    def ranks(self, spec: LaunchSpec) -> int:
        return 1 if entry_of(spec.cases[0].strategy).one_process else spec.world_size

    def prepare(self, spec: LaunchSpec, folder: Path) -> Mapping[str, str]:
        if spec.traces is not None and spec.protocol.traced:
            Path(spec.traces).mkdir(exist_ok=True)
        return nccl.environment(spec.protocol, folder)

    def marks(self, spec: LaunchSpec) -> MarkLayout:
        return turn_marks(spec)

    def measure(self, spec: LaunchSpec, env: RankEnv, rank: int) -> RankReport:
        """Join the group, train, and leave the group."""
        largest: Case = spec.largest
        torch.set_num_threads(largest.threads)
        info = RankInfo(rank, largest.world_size, device_of(largest))
        # Workers of data loaders are forked before the group has threads and memory that a fork would break.
        materials = {place: prepare(case, info) for place, case in enumerate(spec.cases) if rank < case.world_size}
        with in_group(partial(_join, spec, env, rank)) as clock:
            report = train(spec, env, info, materials)
        report.clock = clock
        if not spec.protocol.takes_turns:
            report.of(0).rank_facts |= nccl.left_behind(spec.protocol, env.folder)
        return report

    def record(self, launch: Launch, spec: LaunchSpec, nodes: Sequence[NodeResult]) -> None:
        record(launch, spec, nodes)


def _join(spec: LaunchSpec, env: RankEnv, rank: int) -> dict[str, float] | None:
    """Join the group of the launch. In a shared launch, each case later makes a group of these ranks."""
    largest: Case = spec.largest
    if spec.protocol.takes_turns:
        return join_group(largest.replace(algorithm="native"), env, rank)
    if spec.alone:
        # A rank of 64 computes its shard and its part of the batch, and holds the same memory as among all 64. As many
        # ranks run as a node has, because ranks that share cores or memory slow each other down.
        alone.join(rank, largest.world_size, env.timeout_s)
        return None
    entry = entry_of(largest.strategy)
    return None if entry.one_rank_only or entry.one_process else join_group(largest, env, rank)


def built(case: Case, info: RankInfo, material: Material | None, *, checks_groups: bool = True) -> Training:
    """Build a case's training run over the default group.

    Raises RuntimeError if groups that it makes use another algorithm than the case's.
    """
    others = join.known_groups() - {dist.group.WORLD} if checks_groups else set()
    training = build(case, replace(info, world_size=case.world_size), material)
    if checks_groups:
        join.check_groups(info.device, case.backend, case.algorithm, others)
    return training


class Peers:
    """The other ranks of a launch. If cases share it, they wait for each other between turns.

    In a paired launch, the turns of the other variant come in between. `first` has for each turn if it was the first of
    the two.
    """

    def __init__(self, spec: LaunchSpec, env: RankEnv, info: RankInfo) -> None:
        self._spec, self._device = spec, info.device
        self._groups = join.WorldGroups(spec.cases[0].backend, env.timeout_s) if spec.protocol.takes_turns else None
        self._partner = Partner(spec.pair) if spec.pair and info.rank == 0 else None
        self.first = self._partner.first if self._partner else []

    def use(self, place: int) -> None:
        """Make the group of the case at `place` the default one."""
        case = self._spec.cases[place]
        if self._groups:
            self._groups.use(place, ranks=case.world_size, algorithm=case.algorithm, ranks_per_node=case.ranks_per_node)

    def wait(self) -> None:
        """Wait until all ranks and their devices are done with the turn before. Ranks without a part in it wait
        asleep."""
        self._all_done()
        if self._groups and self._spec.pair:
            if self._partner:
                self._partner.next_turn()
            self._groups.barrier()

    def start_round(self) -> None:
        """Collect garbage between rounds of a shared launch. The collector is off during turns."""
        if self._groups:
            gc.collect()
            gc.disable()

    def leave(self) -> None:
        """Wait for the other ranks of a paired launch, and release the groups."""
        if self._spec.pair:
            self._all_done()
        if self._partner:
            self._partner.end()
        if self._groups:
            self._groups.close()

    def _all_done(self) -> None:
        if self._groups:
            accelerator.synchronize(self._device)
            self._groups.barrier()


def train(
    spec: LaunchSpec, env: RankEnv, info: RankInfo, materials: Mapping[int, Material] | None = None
) -> RankReport:
    """Take the turns of a launch, and return the observations of this rank.

    Args:
        materials: the material of each case that this rank takes part in, by place; by default, it is made.
    """
    schedule: TrainingSchedule = spec.protocol
    peers = Peers(spec, env, info)
    materials = materials or {}
    rounds = schedule.by_round()
    steps = sum(turn.steps for turns in rounds.values() for turn in turns)
    clock = StepClock(marks_path(env.folder, info.rank), steps, info.device)
    hang.watch(clock, info.device)
    in_group = dist.is_initialized() and not spec.alone
    trainings: dict[int, Training] = {}
    probes: Sequence[Probe] = ()

    def take(place: int, steps: int) -> None:
        if place in trainings:
            peers.use(place)
            trainings[place].take(clock, steps)
        else:
            # This rank has come further than those it waits for.
            for _ in range(steps * MARKS):
                clock.mark()

    def take_more(steps: int) -> None:
        clock.make_room(trainings[0].taken + steps)
        take(0, steps)

    def take_round(number: int) -> None:
        peers.start_round()
        for turn in rounds[number]:
            peers.wait()
            take(turn.arm, turn.steps)

    for turn in rounds[BUILD]:
        peers.wait()
        case: Case = spec.cases[turn.arm]
        if info.rank >= case.world_size:
            take(turn.arm, turn.steps)
            continue
        peers.use(turn.arm)
        with _row_of_marks(clock, turn.steps):
            trainings[turn.arm] = built(case, info, materials.get(turn.arm), checks_groups=in_group)
    if schedule.takes_turns:
        forget_building(info.device)
    else:
        probes = trainings[0].probes = _probes(spec, env, info, trainings[0], clock)
    if schedule.by_time:
        store = c10d._get_default_store() if in_group else None
        agree = Agreement(store, info.rank, info.world_size if store else 1)
        counts = warm_up(schedule, take_more, clock.moments.synchronize, agree)
        write_counts(env.folder, info.rank, counts)
        schedule = schedule.with_counts(counts)
        rounds = schedule.by_round()
        clock.make_room(schedule.all_steps)
    else:
        take_round(WARM_UP)
    for probe in probes:
        probe.before_measured()
    for number in range(max(1, schedule.rounds)):
        take_round(number)
    gc.enable()
    for probe in probes:
        probe.after_measured()
    if schedule.instrumented:
        with switched_on(probes, clock) as watched:
            trainings[0].take(watched, schedule.instrumented)
    for probe in probes:
        probe.after_instrumented()
    clock.finish()
    # Reading a training run takes time on its device too, and a peer may still be in the last turn.
    peers.wait()
    report = RankReport(rank=info.rank, first=peers.first, cases=[None] * len(spec.cases))
    for place, training in trainings.items():
        peers.use(place)
        report.cases[place] = training.report()
    if probes:
        _add_instruments(report.of(0), trainings[0], probes, clock)
    peers.leave()
    return report


@contextmanager
def _row_of_marks(clock: StepClock, steps: int) -> Iterator[None]:
    """Mark the start and the end of the block as a step, if the schedule has one for it."""
    if steps:
        clock.mark()
    yield
    if steps:
        for _ in range(MARKS - 2):
            clock.skip()
        clock.mark()


def _probes(spec: LaunchSpec, env: RankEnv, info: RankInfo, training: Training, clock: StepClock) -> list[Probe]:
    """Return the instruments of the only case of a launch."""
    stem = f"{spec.case.id}-{re.sub('[^0-9TZ]', '', env.started_utc)}"
    probed = ProbedRank(
        case=spec.case,
        schedule=spec.protocol,
        info=info,
        parallel=training.parallel,
        optimizer=training.optimizer,
        clock=clock,
        take_step=lambda: training.take(clock, 1),
        traces=Path(spec.traces) / stem if spec.traces else None,
        alone=spec.alone,
    )
    return [probe(probed) for probe in probe_classes()]


def _add_instruments(report: CaseReport, training: Training, probes: Sequence[Probe], clock: StepClock) -> None:
    """Add the observations of the instruments to the report of a training run. A collective call."""
    report.facts["collectives"] = join.calls()
    # A strategy's own numbers are better than a probe's.
    numbers = dict(report.numbers)
    for probe in probes:
        probe.report(report)
    report.numbers |= {**numbers, **clock.moments.numbers()}
    report.readings += clock.lags()
    if training.case == training.case.reference():  # its operations count for all strategies that train the same
        report.facts["flops"] = count_flops(training.compute, training.batches)
