"""A case of a shared launch in one rank, and the module that it trains, which cases of DDP may have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from parabench.collectives import join
from parabench.plan.case import Case
from parabench.plan.cohorts import modules_of
from parabench.probes.replicas import checksums
from parabench.strategies.base import ForwardBackward, ParallelModel, RankInfo, StepMarker, StrategyContext
from parabench.strategies.data_parallel import unwrapped, wrap_again
from parabench.workloads.trainer import Material, Training, build, train
from parabench.workloads.training import TrainingReport, report_of


@dataclass(slots=True)
class Module:
    """A module in one rank: how many steps it was trained for, and by whom its wrapper was made, where cases have it in
    common."""

    training: Training
    known: dict[str, Any]
    wrapper: Arm | None = None
    taken: int = 0

    def train(self, clock: StepMarker, steps: int) -> None:
        train(self.training, clock, range(self.taken, self.taken + steps))
        self.taken += steps


@dataclass(slots=True, eq=False)
class Arm:
    """A case of the launch in one rank: its module as it was made parallel, None where it has never had the one that
    it shares; and how many of its steps are marked."""

    case: Case
    module: Module
    parallel: ParallelModel | None = None
    taken: int = 0

    def take(self, clock: StepMarker, steps: int) -> None:
        self.module.train(clock, steps)
        self.taken += steps

    def wrap(self, info: RankInfo) -> None:
        """Have the module that is shared; takes a step, after which DDP knows its buckets."""
        last = self.module.wrapper
        if last is self:
            return
        assert last is not None
        assert last.parallel is not None
        context = StrategyContext(info.rank, self.case.world_size, info.device, self.case)
        before, training = last.parallel, self.module.training
        self.parallel, last.parallel = wrap_again(before, context), unwrapped(before)
        assert isinstance(training.compute, ForwardBackward)
        training.module = self.parallel.module
        training.compute = replace(
            training.compute,
            module=self.parallel.module,
            context=context,
            gradient_sync=self.parallel.gradient_sync,
        )
        self.module.wrapper = self
        self.module.train(Unmarked(), 1)


class Unmarked:
    """The clock of steps that are no case's."""

    def mark(self) -> None: ...

    def skip(self) -> None: ...


def builders(cases: Sequence[Case], share_modules: bool) -> list[int]:
    """Of each case the place of the one that builds its module: its own, or where modules are shared the first's."""
    modules: list[object] = modules_of(cases) if share_modules else [*range(len(cases))]
    return [modules.index(module) for module in modules]


def built(case: Case, info: RankInfo, material: Material) -> Arm:
    """A case's training, over the default group. Raises RuntimeError where groups of its own run by another algorithm
    than the case says."""
    others = join.known_groups() - {torch.distributed.group.WORLD}
    training, parallel, known = build(case, replace(info, world_size=case.world_size), material)
    join.check_groups(info.device, case.backend, case.algorithm, others)
    arm = Arm(case, Module(training, known), parallel)
    arm.module.wrapper = arm
    return arm


def told_of(arm: Arm, rank: int) -> TrainingReport:
    """What a rank says of a case's training that is over; a collective call.

    A module that cases have in common is one training. What it is verified by are its first losses, in the order in
    which it was trained, as many as the case has steps; the last stands for one after it that is no number. The norm of
    its first gradient is that of the case which built it: what others do to theirs shows in launches of their own.
    """
    assert arm.parallel is not None
    module = arm.module
    told = report_of(arm.case, rank, module.training, arm.parallel, module.known)
    if module.taken > arm.taken:
        last, *later = told.losses[arm.taken - 1 :]
        told.losses[arm.taken - 1 :] = [next((loss for loss in later if not math.isfinite(loss)), last)]
    told.checksums |= checksums(arm.parallel, arm.case.world_size)
    return told
