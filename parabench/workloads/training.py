"""A launch that trains: the part of each rank.

A launch of one configuration has instruments. If several share a launch, all are built in the same ranks, and their
steps are interleaved (`plan.turns`). A smaller configuration uses the first ranks.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Mapping, Sequence
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
from parabench.launch.spec import LaunchSpec
from parabench.launch.token import Partner
from parabench.launch.workload import RankEnv, Workload
from parabench.machine import accelerator
from parabench.plan.case import Case
from parabench.plan.protocol import Counts
from parabench.plan.turns import BUILD, TurnsProtocol, turns
from parabench.probes import CaseReport, ProbedRank, nccl, probe_classes, switched_on
from parabench.probes.flops import count_flops
from parabench.probes.memory import forget_building
from parabench.probes.step_clock import MARKS, StepClock, write_counts
from parabench.store.record import Launch
from parabench.strategies import entry_of
from parabench.strategies.base import RankInfo
from parabench.workloads.pace import Agreement, warm_up
from parabench.workloads.steps import record_case, record_turns, step_marks, turn_marks
from parabench.workloads.trainer import Material, Training, build, prepare


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
        """Join the group, train, and leave the group."""
        largest: Case = spec.largest
        torch.set_num_threads(largest.threads)
        info = RankInfo(rank, largest.world_size, device_of(largest))
        # Workers of data loaders are forked before the group has threads and memory that a fork would break.
        materials = {place: prepare(case, info) for place, case in enumerate(spec.cases) if rank < case.world_size}
        with in_group(partial(_join, spec, env, rank)) as clock:
            if isinstance(spec.protocol, TurnsProtocol):
                report = take_turns(spec, env, info, materials)
            else:
                report = RankReport(rank=rank, cases=[train_case(spec, env, info, materials[0])])
        report.clock = clock
        if not isinstance(spec.protocol, TurnsProtocol):
            report.of(0).rank_facts |= nccl.left_behind(spec.protocol, env.folder)
        return report

    def record(self, launch: Launch, spec: LaunchSpec, nodes: Sequence[NodeResult]) -> None:
        (record_turns if isinstance(spec.protocol, TurnsProtocol) else record_case)(launch, spec, nodes)


def _join(spec: LaunchSpec, env: RankEnv, rank: int) -> dict[str, float] | None:
    """Join the group of the launch. In a shared launch, each case later makes a group of these ranks."""
    largest: Case = spec.largest
    if isinstance(spec.protocol, TurnsProtocol):
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


def train_case(spec: LaunchSpec, env: RankEnv, info: RankInfo, material: Material | None = None) -> CaseReport:
    """Train the only case of a launch, with instruments, and return the observations of this rank."""
    case: Case = spec.case
    protocol = spec.protocol
    in_group = dist.is_initialized() and not spec.alone
    training = built(case, info, material, checks_groups=in_group)
    clock = StepClock(marks_path(env.folder, info.rank), protocol.all_steps, info.device)
    hang.watch(clock, info.device)
    stem = f"{case.id}-{re.sub('[^0-9TZ]', '', env.started_utc)}"
    probed = ProbedRank(
        case=case,
        protocol=protocol,
        info=info,
        parallel=training.parallel,
        optimizer=training.optimizer,
        clock=clock,
        take_step=lambda: training.take(clock, 1),
        traces=Path(spec.traces) / stem if spec.traces else None,
        alone=spec.alone,
    )
    training.probes = probes = [probe(probed) for probe in probe_classes()]

    def take(steps: int) -> None:
        clock.make_room(training.taken + steps)
        training.take(clock, steps)

    counts: Counts = protocol.least
    if protocol.by_time:
        store = c10d._get_default_store() if in_group else None
        agree = Agreement(store, info.rank, info.world_size if store else 1)
        counts = warm_up(protocol, take, clock.moments.synchronize, agree)
        write_counts(env.folder, info.rank, counts)
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


def take_turns(spec: LaunchSpec, env: RankEnv, info: RankInfo, materials: Mapping[int, Material]) -> RankReport:
    """Build the training runs of this rank, interleave their steps, and return the observations.

    Args:
        materials: the material of each case that this rank takes part in, by place.
    """
    groups = join.WorldGroups(spec.cases[0].backend, env.timeout_s)
    all_turns = list(turns(spec.protocol, len(spec.cases)))
    clock = StepClock(marks_path(env.folder, info.rank), sum(each.steps for each in all_turns), info.device)
    hang.watch(clock, info.device)
    arms: dict[int, Training] = {}
    partner = Partner(spec.pair) if spec.pair and info.rank == 0 else None

    def use(place: int) -> None:
        case = spec.cases[place]
        groups.use(place, ranks=case.world_size, algorithm=case.algorithm, ranks_per_node=case.ranks_per_node)

    def wait_for_all() -> None:
        """Wait until all ranks and their devices are done with the turn. Ranks without a part in it wait here, asleep.

        The ranks of a paired launch have their turns in between.
        """
        accelerator.synchronize(info.device)
        groups.barrier()
        if spec.pair:
            if partner:
                partner.next_turn()
            groups.barrier()

    number = BUILD
    for turn in all_turns:
        if turn.round != number:
            # The collector is off during turns, so it runs between rounds.
            if number == BUILD:
                forget_building(info.device)
            else:
                gc.collect()
            gc.disable()
            number = turn.round
        wait_for_all()
        if turn.arm not in materials:
            # This rank has come further than those it waits for.
            for _ in range(turn.steps * MARKS):
                clock.mark()
        elif turn.round == BUILD:
            clock.mark()
            use(turn.arm)
            arms[turn.arm] = built(spec.cases[turn.arm], info, materials[turn.arm])
            for _ in range(MARKS - 2):
                clock.skip()
            clock.mark()
        else:
            use(turn.arm)
            arms[turn.arm].take(clock, turn.steps)
    gc.enable()
    clock.finish()
    # Reading a training run takes time on its device too, and a peer may still be in the last turn.
    wait_for_all()
    report = RankReport(rank=info.rank, first=partner.first if partner else [], cases=[None] * len(spec.cases))
    for place, arm in arms.items():
        use(place)
        report.cases[place] = arm.report()
    if spec.pair:
        accelerator.synchronize(info.device)
        groups.barrier()
    if partner:
        partner.end()
    groups.close()
    return report
