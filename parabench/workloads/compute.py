"""A launch that measures what ranks compute: those of one node of a case, each alone, with nothing exchanged.

A rank of 64 computes on its shard and its part of the batch, and holds what it would hold among all 64; its process
group is over at once with every collective (`collectives.alone`). As many ranks run as a node has, because ranks that
share cores or memory slow one another down. No result is a training's, so none is verified.
"""

from __future__ import annotations

import gc

import torch

from parabench.collectives import alone, join
from parabench.launch.rank import device_of
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import RankEnv
from parabench.plan.case import Case
from parabench.strategies.base import RankInfo
from parabench.workloads.trainer import prepare
from parabench.workloads.training import TrainingReport, TrainingWorkload, train_case


class ComputeWorkload(TrainingWorkload):
    """Steps of ranks that are alone."""

    def ranks(self, spec: LaunchSpec) -> int:
        return spec.world_size

    def measure(self, spec: LaunchSpec, env: RankEnv, rank: int) -> TrainingReport:
        """Train as `rank` of the case's ranks. An error leaves the group as it is."""
        case: Case = spec.case
        torch.set_num_threads(case.threads)
        rank_info = RankInfo(rank, case.world_size, device_of(case))
        material = prepare(case, rank_info)
        alone.join(rank, case.world_size, env.timeout_s)
        report = train_case(spec, env, rank_info, material)
        gc.collect()
        join.leave()
        return report
