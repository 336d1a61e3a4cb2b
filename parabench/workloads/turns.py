"""A launch that several training runs share: all are built in the same ranks, and their steps are interleaved
(`plan.turns`).

The number of ranks is that of the largest case. A smaller case uses the first ranks, and the others wait.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from parabench.collectives import join
from parabench.launch import hang
from parabench.launch.results import MarkLayout, RankReport, marks_path
from parabench.launch.spec import LaunchSpec
from parabench.launch.token import Partner
from parabench.launch.workload import RankEnv
from parabench.machine import accelerator
from parabench.plan.case import Case
from parabench.plan.turns import BUILD, WARM_UP, Turn, turns
from parabench.probes.memory import forget_building
from parabench.probes.step_clock import MARKS, StepClock
from parabench.store.record import Phase
from parabench.strategies.base import RankInfo
from parabench.workloads.trainer import Material, Training, build


def built(case: Case, info: RankInfo, material: Material) -> Training:
    """Build a case's training run over the default group.

    Raises RuntimeError if groups that it makes use another algorithm than the case's.
    """
    others = join.known_groups() - {torch.distributed.group.WORLD}
    training = build(case, replace(info, world_size=case.world_size), material)
    join.check_groups(info.device, case.backend, case.algorithm, others)
    return training


def take_turns(spec: LaunchSpec, env: RankEnv, info: RankInfo, materials: Mapping[int, Material]) -> RankReport:
    """Build the training run of every case that this rank has a part in, {place: its material}, interleave them, and
    report what was seen."""
    groups = join.WorldGroups(spec.cases[0].backend, env.timeout_s)
    all_turns = list(turns(spec.protocol, len(spec.cases)))
    clock = StepClock(marks_path(env.folder, info.rank), sum(each.steps for each in all_turns), info.device)
    hang.watch(clock, info.device)
    arms: dict[int, Training] = {}
    at = BUILD
    partner = Partner(spec.pair) if spec.pair and info.rank == 0 else None

    def use(place: int) -> None:
        case = spec.cases[place]
        groups.use(place, ranks=case.world_size, algorithm=case.algorithm, ranks_per_node=case.ranks_per_node)

    def hand_on() -> None:
        """Wait for the next turn. It starts when all ranks and their devices are done with this one; ranks without a
        part wait here, asleep. The ranks of a paired launch have their turns in between."""
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
            # This rank has come further than those it waits for.
            for _ in range(turn.steps * MARKS):
                clock.mark()
            continue
        if turn.round == BUILD:
            clock.mark()
            use(turn.arm)
            arms[turn.arm] = built(spec.cases[turn.arm], info, materials[turn.arm])
            for _ in range(MARKS - 2):
                clock.skip()
            clock.mark()
            continue
        use(turn.arm)
        arms[turn.arm].take(clock, turn.steps)
    gc.enable()
    clock.finish()
    # To read a training run takes time too, its device's as well, and a peer may still have the last turn.
    hand_on()
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


def turn_marks(spec: LaunchSpec) -> MarkLayout:
    """Return the layout of the marks of a shared launch: each step of the case whose turn it is."""
    all_turns = list(turns(spec.protocol, len(spec.cases)))

    def position(moments: int) -> str:
        step = moments // MARKS
        for turn in all_turns:
            if step < turn.steps:
                break
            step -= turn.steps
        else:
            return "to the end of its turns"
        label = spec.cases[turn.arm].label
        if turn.round == BUILD:
            return f"to the building of {label}"
        where = "the warm-up" if turn.round == WARM_UP else f"round {turn.round + 1} of {spec.protocol.rounds}"
        return f"to step {step}, part {moments % MARKS}, of {label} in {where}"

    return MarkLayout(columns=MARKS, moments=MARKS, rows=len(owners_of(all_turns)), position=position)


def owners_of(all_turns: Sequence[Turn]) -> list[int]:
    """Return the place of the case that each row of marks belongs to."""
    return [turn.arm for turn in all_turns for _ in range(turn.steps)]


def steps_of(all_turns: Sequence[Turn], place: int) -> tuple[list[int], list[Phase]]:
    """Return the rows of marks that are steps of the case at `place`, and the phase of each."""
    at = 0
    rows: list[int] = []
    phases: list[Phase] = []
    for turn in all_turns:
        if turn.arm == place and turn.round != BUILD:
            rows += range(at, at + turn.steps)
            phases += turn.phases
        at += turn.steps
    return rows, phases


def pair_facts(spec: LaunchSpec, all_turns: Sequence[Turn], place: int, first: Sequence[bool]) -> dict[str, Any]:
    """Return, for a launch that is interleaved with another one, which variant of which run it is, and in which rounds
    the case at `place` came before the other variant's. `first` says it for each turn."""
    if spec.pair is None:
        return {}
    rounds = [was for turn, was in zip(all_turns, first, strict=False) if turn.arm == place and turn.round >= 0]
    return {"pair": {"run": spec.pair.run, "side": spec.pair.side, "first": rounds}}
