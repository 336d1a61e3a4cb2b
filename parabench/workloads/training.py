"""The workload of launches that train, and the part of a launch that runs in each rank.

All cases of a launch are built in the same ranks, and take the turns of its schedule (`plan.schedule`). A smaller case
uses the first ranks. If the launch has one case and no rounds, it has instruments.
"""

from __future__ import annotations

import gc
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from parabench.collectives import alone, join
from parabench.data.loader import Loading
from parabench.launch import hang
from parabench.launch.rank import device_of, in_group, join_group
from parabench.launch.results import MarkLayout, NodeResult, RankReport, marks_path
from parabench.launch.spec import LaunchSpec, RankEnv, Workload
from parabench.launch.token import Partner
from parabench.machine import accelerator
from parabench.models.base import Model
from parabench.plan.case import Case
from parabench.plan.schedule import BUILD, LEAST_MEASURED, MOST_STEPS, WARM_UP, TrainingSchedule
from parabench.probes import CaseReport, Probe, ProbedRank, nccl, probe_classes, switched_on
from parabench.probes.memory import forget_building
from parabench.probes.profiler import count_flops
from parabench.probes.step_clock import MARKS, StepClock, write_counts
from parabench.store.record import Launch
from parabench.strategies import entry_of
from parabench.strategies.base import RankInfo
from parabench.workloads.steps import record, turn_marks
from parabench.workloads.trainer import Training, build, prepare


class TrainingWorkload(Workload):
    """Take steps of training runs. Each rank marks a step with five timestamps."""

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
        parts = {place: prepare(case, info) for place, case in enumerate(spec.cases) if rank < case.world_size}
        with in_group(partial(_join, spec, env, rank)) as clock:
            report = train(spec, env, info, parts)
        report.clock = clock
        if not spec.protocol.takes_turns:
            report.of(0).rank_facts |= nccl.left_behind(spec.protocol, env.folder)
        return report

    def record(self, launch: Launch, spec: LaunchSpec, nodes: Sequence[NodeResult]) -> None:
        record(launch, spec, nodes)


def _join(spec: LaunchSpec, env: RankEnv, rank: int) -> dict[str, float] | None:
    """Join the group of the launch. If cases share the launch, each case later makes a group of its ranks."""
    largest: Case = spec.largest
    if spec.protocol.takes_turns:
        return join_group(largest.replace(algorithm="native"), env, rank)
    if spec.alone:
        # A rank has the same shard, part of the batch and memory as in the whole group. All ranks of one node run,
        # because ranks that share cores or memory slow each other down.
        alone.join(rank, largest.world_size, env.timeout_s)
        return None
    entry = entry_of(largest.strategy)
    return None if entry.one_rank_only or entry.one_process else join_group(largest, env, rank)


class Peers:
    """The other ranks of a launch. If cases share the launch, ranks wait for each other between turns.

    In a paired launch, turns of the other variant come in between. `first` has True for each turn that came first.
    """

    def __init__(self, spec: LaunchSpec, env: RankEnv, info: RankInfo) -> None:
        self._spec, self._device = spec, info.device
        self._groups = join.WorldGroups(spec.cases[0].backend, env.timeout_s) if spec.protocol.takes_turns else None
        self._partner = Partner(spec.pair) if spec.pair and info.rank == 0 else None
        self.first = self._partner.first if self._partner else []

    def use(self, place: int) -> None:
        """Make the group of a case the default group. `place` is the index of the case."""
        case = self._spec.cases[place]
        if self._groups:
            self._groups.use(place, ranks=case.world_size, algorithm=case.algorithm, ranks_per_node=case.ranks_per_node)

    def wait(self) -> None:
        """Wait until all ranks and their devices have finished the previous turn, and in a pair for the next turn.

        Ranks without a part in the turn sleep meanwhile.
        """
        self._all_done()
        if self._groups and self._spec.pair:
            if self._partner:
                self._partner.next_turn()
            self._groups.barrier()

    def leave(self) -> None:
        """Wait for the other ranks of a paired launch, and release the groups."""
        if self._spec.pair:
            self._all_done()
        if self._partner:
            self._partner.end()
        if self._groups:
            self._groups.close()

    def _all_done(self) -> None:
        """If cases share the launch, wait for all ranks and their devices."""
        if self._groups:
            accelerator.synchronize(self._device)
            self._groups.barrier()


def train(
    spec: LaunchSpec, env: RankEnv, info: RankInfo, parts: dict[int, tuple[Model, Loading]] | None = None
) -> RankReport:
    """Take all turns of a launch, and return the observations of this rank.

    Args:
        parts: {index of a case: result of `prepare`} for the cases of this rank. By default, `prepare` is called here.
            Entries are removed, because strategies free parts of a model.
    """
    schedule: TrainingSchedule = spec.protocol
    peers = Peers(spec, env, info)
    rounds = schedule.by_round()
    steps = sum(turn.steps for turns in rounds.values() for turn in turns)
    clock = StepClock(marks_path(env.folder, info.rank), steps, info.device)
    hang.set_clock(clock, info.device)
    in_group = dist.is_initialized() and not spec.alone
    trainings: dict[int, Training] = {}
    probes: Sequence[Probe] = ()

    def take(place: int, steps: int) -> None:
        """Take steps of a case. A rank without a part in it only marks them."""
        if place in trainings:
            peers.use(place)
            trainings[place].take(clock, steps)
        else:
            # Mark them, so that this rank does not count as the slowest one.
            for _ in range(steps * MARKS):
                clock.mark()

    def take_more(steps: int) -> None:
        clock.make_room(trainings[0].taken + steps)
        take(0, steps)

    def take_round(number: int) -> None:
        """Take all turns of a round."""
        if schedule.takes_turns:  # garbage is collected between rounds, and not during turns
            gc.collect()
            gc.disable()
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
        if turn.steps:
            clock.mark()
        others = join.known_groups() - {dist.group.WORLD} if in_group else set()
        of_case = replace(info, world_size=case.world_size)
        trainings[turn.arm] = build(case, of_case, (parts or {}).pop(turn.arm, None))
        if in_group:
            # Groups that the strategy made must use the case's algorithm.
            join.check_groups(info.device, case.backend, case.algorithm, others)
        if turn.steps:
            for _ in range(MARKS - 2):
                clock.skip()
            clock.mark()
    if schedule.takes_turns:
        forget_building(info.device)
    else:
        probes = trainings[0].probes = _probes(spec, env, info, trainings[0], clock)
    if schedule.by_time:
        store = c10d._get_default_store() if in_group else None
        agree = agreement(store, info.rank, info.world_size if store else 1)
        counts = warm_up(schedule, take_more, clock.moments.synchronize, agree)
        write_counts(env.folder, info.rank, counts)
        schedule = schedule.with_counts(*counts)
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


def _probes(spec: LaunchSpec, env: RankEnv, info: RankInfo, training: Training, clock: StepClock) -> list[Probe]:
    """Return the instruments of a launch with one case."""
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
    if training.case == training.case.reference():  # the count is the same for all strategies
        report.facts["flops"] = count_flops(training.compute, training.batches)


# -- the number of steps of a launch by time ---------------------------------------------------------------------------

# Ranks with different numbers of steps would wait for each other forever. After each piece of the warm-up, every rank
# publishes the time of the piece, and the longest one counts.

# The fewest pieces of a warm-up by time. The last one determines the step time.
PIECES = 4

# Warm-up steps after the last wait for the device.
RUN_IN = 2


def warm_up(
    schedule: TrainingSchedule,
    take: Callable[[int], None],
    wait: Callable[[], None],
    agree: Callable[[float], float],
    now: Callable[[], float] = perf_counter,
) -> tuple[int, int]:
    """Take the warm-up steps of a `schedule` by time. Return the agreed numbers of (warm-up steps, measured steps).

    `take` takes steps, `wait` waits for the device, and `agree` returns the largest value of all ranks. The first steps
    do not count, because they compile and connect.
    """

    def timed(steps: int) -> float:
        """Take steps, from an idle device to an idle device. Return the seconds of one step on the slowest rank."""
        wait()
        began = now()
        take(steps)
        wait()
        # The clock may not have moved, and the result is a divisor.
        return max(agree(now() - began) / steps, 1e-9)

    warmup, measured = schedule.counts()
    if schedule.warmup_s is None:
        last = warmup // 2
        run_in = min(RUN_IN, (warmup - last) // 2)
        take(warmup - last - run_in)
        step_s = timed(last)
    else:
        run_in, piece = RUN_IN, warmup // 2
        spent = 0.0
        take(warmup - piece)
        step_s = timed(piece)
        while spent < schedule.warmup_s and warmup < MOST_STEPS - run_in:
            # The first steps say little about a step, so a piece grows slowly.
            piece = max(1, min(2 * piece, math.ceil(schedule.warmup_s / PIECES / step_s), MOST_STEPS - run_in - warmup))
            step_s = timed(piece)
            spent += step_s * piece
            warmup += piece
        warmup += run_in
    take(run_in)
    if schedule.measure_s is not None:
        measured = min(max(math.ceil(schedule.measure_s / step_s), LEAST_MEASURED), MOST_STEPS)
    return warmup, measured


def agreement(store: Any, rank: int, world_size: int) -> Callable[[float], float]:
    """Return a function that returns the largest value of all ranks. Every rank must call it.

    It uses the rendezvous `store`, because a collective would be counted, and could create a communicator before the
    training does.
    """
    rounds = itertools.count()

    def largest(value: float) -> float:
        if world_size == 1:
            return value
        key = f"parabench/pace/{next(rounds)}"
        if rank:
            store.set(f"{key}/{rank}", repr(value))
            return float(store.get(key))
        most = max([value, *(float(store.get(f"{key}/{other}")) for other in range(1, world_size))])
        store.set(key, repr(most))
        return most

    return largest
