"""A launch that several trainings share: each is built whole in the same ranks, and they take turns (`plan.turns`).

There are as many ranks as the largest case has; a smaller one lives in the first of them, and the others wait.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

import torch

from parabench.collectives import join
from parabench.data.loader import end_workers
from parabench.launch import hang
from parabench.launch.outcome import failed_at
from parabench.launch.rank import device_of, join_group
from parabench.launch.results import MarkLayout, Marks, NodeResult, RankReport, marks_path
from parabench.launch.spec import LaunchSpec
from parabench.launch.token import Partner
from parabench.launch.workload import RankEnv, Workload, handed_over, shares_of
from parabench.machine import accelerator
from parabench.plan.case import Case
from parabench.plan.protocol import Counts
from parabench.plan.turns import BUILD, WARM_UP, Turn, TurnsProtocol, turns
from parabench.probes.memory import forget_building
from parabench.probes.replicas import replicas_apart
from parabench.probes.step_clock import MARKS, StepClock
from parabench.store.record import Launch, Phase, Status
from parabench.strategies.base import RankInfo
from parabench.workloads.arms import Arm, built, told_of
from parabench.workloads.trainer import Material, prepare
from parabench.workloads.training import TrainingReport, rank_facts, samples


@dataclass(slots=True, kw_only=True)
class TurnsReport(RankReport):
    """What a rank tells of each of its trainings, in the order of the launch's cases; None of one that it has no part
    in."""

    arms: list[TrainingReport | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        # JSON has dicts of them.
        self.arms = [TrainingReport.from_dict(each) if isinstance(each, dict) else each for each in self.arms]

    def later(self, by_s: float) -> Self:
        return replace(self, arms=[each and each.later(by_s) for each in self.arms])

    def to_dict(self) -> dict[str, Any]:
        return RankReport.to_dict(self) | {"arms": [each and each.to_dict() for each in self.arms]}


class TurnsWorkload(Workload):
    """Trainings that take turns; a rank marks each step of whichever has its turn, as `TrainingWorkload` does."""

    report_type = TurnsReport

    def marks(self, spec: LaunchSpec) -> MarkLayout:
        all_turns = list(turns(spec.protocol, len(spec.cases)))

        def position(moments: int) -> str:
            turn, step = turn_at(all_turns, moments // MARKS)
            if turn is None:
                return "to the end of its turns"
            label = spec.cases[turn.arm].label
            if turn.round == BUILD:
                return f"to the building of {label}"
            where = "the warm-up" if turn.round == WARM_UP else f"round {turn.round + 1} of {spec.protocol.rounds}"
            return f"to step {step}, part {moments % MARKS}, of {label} in {where}"

        return MarkLayout(columns=MARKS, moments=MARKS, rows=sum(each.steps for each in all_turns), position=position)

    def measure(self, spec: LaunchSpec, env: RankEnv, rank: int) -> TurnsReport:
        cases = cases_of(spec)
        largest = max(cases, key=lambda case: case.world_size)
        torch.set_num_threads(largest.threads)
        info = RankInfo(rank, spec.world_size, device_of(largest))
        # Workers of data loaders are forked before the group has threads and memory that a fork would break.
        materials = {place: prepare(case, info) for place, case in enumerate(cases) if rank < case.world_size}
        clock = join_group(largest.replace(algorithm="native"), env, rank)
        report = take_turns(spec, env, info, materials)
        end_workers()
        # As after a training: what uses a group goes before the group.
        gc.collect()
        join.leave()
        report.clock = clock
        return report

    def record(self, launch: Launch, spec: LaunchSpec, nodes: Sequence[NodeResult]) -> None:
        """A launch of each case; of one that failed only the case whose turn it was, where that is known."""
        reports, marks = zip(*handed_over(nodes, TurnsReport), strict=True)
        protocol: TurnsProtocol = spec.protocol
        all_turns = list(turns(protocol, len(spec.cases)))
        shared = {"cases": [case.id for case in spec.cases], "protocol": protocol.to_dict()}
        first = launch.facts.pop("first", ())
        ended = range(len(spec.cases))
        if launch.status is not Status.OK:
            culprit = culprit_of(launch, marks, all_turns, [case.world_size for case in spec.cases])
            ended = range(0) if culprit is None else range(culprit, culprit + 1)
        for place, arm in shares_of(launch, spec.cases, ended):
            own = reports[: arm.case.world_size]
            told = [each for report in own if report.arms and (each := report.arms[place])]
            counts = Counts(warmup=protocol.warmup, measured=protocol.steps_of(place) - protocol.warmup)
            arm.facts |= {
                **(told[0].facts if told else {}),
                **replicas_apart([each.checksums for each in told]),
                **rank_facts(told),
                "turns": {**shared, "place": place, **pair_facts(spec, all_turns, place, first)},
                "counts": counts.to_dict(),
            }
            for report, steps in zip(own, marks, strict=False):
                rows, phases = steps_of(steps, all_turns, place)
                seen = report.arms[place] if report.arms else None
                arm.samples += samples(rows, seen or TrainingReport(rank=report.rank), phases)
            launch.arms.append(arm)


def cases_of(spec: LaunchSpec) -> tuple[Case, ...]:
    """The cases of a launch of this kind."""
    return tuple(cast(Case, each) for each in spec.cases)


def take_turns(spec: LaunchSpec, env: RankEnv, info: RankInfo, materials: Mapping[int, Material]) -> TurnsReport:
    """Build the training of every case that this rank has a part in, {place: its material}, let all take their turns,
    and read what was seen."""
    groups = join.WorldGroups(spec.cases[0].backend, env.timeout_s)
    all_turns = list(turns(spec.protocol, len(spec.cases)))
    clock = StepClock(marks_path(env.folder, info.rank), sum(each.steps for each in all_turns), info.device)
    hang.watch(clock, info.device)
    cases = cases_of(spec)
    arms: dict[int, Arm] = {}
    at = BUILD
    partner = Partner(spec.pair) if spec.pair and info.rank == 0 else None

    def use(place: int) -> None:
        case = cases[place]
        groups.use(place, ranks=case.world_size, algorithm=case.algorithm, ranks_per_node=case.ranks_per_node)

    def hand_on() -> None:
        """Wait for the next turn: nobody has it while others are in this one, or their devices; those without a part
        wait here, asleep. A partner's ranks have theirs in between."""
        accelerator.synchronize(info.device)
        groups.barrier()
        if spec.pair:
            if partner:
                partner.next_turn()
            groups.barrier()

    for turn in all_turns:
        if turn.round != at:
            # Collect what the round left where nothing is timed: inside turns the collector is off.
            if at == BUILD:
                forget_building(info.device)
            else:
                gc.collect()
            gc.disable()
            at = turn.round
        hand_on()
        if turn.arm not in materials:
            # It has come further than those it waits for.
            for _ in range(turn.steps * MARKS):
                clock.mark()
            continue
        if turn.round == BUILD:
            clock.mark()
            use(turn.arm)
            arms[turn.arm] = built(cases[turn.arm], info, materials[turn.arm])
            for _ in range(MARKS - 2):
                clock.skip()
            clock.mark()
            continue
        use(turn.arm)
        arms[turn.arm].take(clock, turn.steps)
    gc.enable()
    clock.finish()
    # What is read of a training takes time too, its device's as well, and somebody may still have the last turn.
    hand_on()
    report = TurnsReport(rank=info.rank, arms=[None] * len(cases))
    if partner:
        report.facts["first"] = partner.first
    for place, arm in arms.items():
        use(place)
        report.arms[place] = told_of(arm, info.rank)
    if spec.pair:
        accelerator.synchronize(info.device)
        groups.barrier()
    if partner:
        partner.end()
    groups.close()
    return report


def turn_at(all_turns: Sequence[Turn], row: int) -> tuple[Turn | None, int]:
    """The turn that a row of marks belongs to, and which of its steps that is; None after the last."""
    for turn in all_turns:
        if row < turn.steps:
            return turn, row
        row -= turn.steps
    return None, 0


def culprit_of(launch: Launch, marks: Sequence[Marks], all_turns: Sequence[Turn], sizes: Sequence[int]) -> int | None:
    """The place of the case whose turn it was when a launch failed, on the rank that `failed_at` tells. None before the
    first and after the last turn, and in one that the rank has no part in; each case has so many ranks as `sizes`
    say."""
    rank, came = failed_at(launch.failure, marks)
    turn, _ = turn_at(all_turns, came // MARKS)
    return turn.arm if came and turn is not None and rank < sizes[turn.arm] else None


def pair_facts(spec: LaunchSpec, all_turns: Sequence[Turn], place: int, first: Sequence[bool]) -> dict[str, Any]:
    """Of a launch that took turns with another: which side of which run it is, and in which rounds the case at `place`
    had its turn before the other side's. `first` says of each turn whether it was."""
    if spec.pair is None:
        return {}
    rounds = [was for turn, was in zip(all_turns, first, strict=False) if turn.arm == place and turn.round >= 0]
    return {"pair": {"run": spec.pair.run, "side": spec.pair.side, "first": rounds}}


def steps_of(marks: Marks, all_turns: Sequence[Turn], place: int) -> tuple[Marks, list[Phase]]:
    """The rows of a rank's marks that are steps of the case at `place`, and the phase of each."""
    at = 0
    rows: list[int] = []
    phases: list[Phase] = []
    for turn in all_turns:
        if turn.arm == place and turn.round != BUILD:
            rows += range(at, at + turn.steps)
            phases += turn.phases
        at += turn.steps
    return marks[rows], phases
