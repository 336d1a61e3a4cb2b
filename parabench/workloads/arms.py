"""A case of a shared launch in one rank: its training, and how many of its steps were taken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from parabench.collectives import join
from parabench.plan.case import Case
from parabench.probes.replicas import checksums
from parabench.strategies.base import ParallelModel, RankInfo, StepMarker
from parabench.workloads.trainer import Material, Training, build, train
from parabench.workloads.training import TrainingReport, report_of


@dataclass(slots=True, eq=False)
class Arm:
    """The training of a case in one rank. `known` is what building it found out."""

    case: Case
    training: Training
    parallel: ParallelModel
    known: dict[str, Any]
    taken: int = 0

    def take(self, clock: StepMarker, steps: int) -> None:
        """Train for `steps` further steps."""
        train(self.training, clock, range(self.taken, self.taken + steps))
        self.taken += steps


def built(case: Case, info: RankInfo, material: Material) -> Arm:
    """Build a case's training over the default group.

    Raises RuntimeError if groups of its own use another algorithm than the case's.
    """
    others = join.known_groups() - {torch.distributed.group.WORLD}
    training, parallel, known = build(case, replace(info, world_size=case.world_size), material)
    join.check_groups(info.device, case.backend, case.algorithm, others)
    return Arm(case, training, parallel, known)


def told_of(arm: Arm, rank: int) -> TrainingReport:
    """Return a rank's report of a case's training that is over. A collective call."""
    report = report_of(arm.case, rank, arm.training, arm.parallel, arm.known)
    report.checksums |= checksums(arm.parallel, arm.case.world_size)
    return report
