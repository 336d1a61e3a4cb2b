"""A launch that measures what ranks compute: those of one node of a case, each alone, with nothing exchanged.

A rank of 64 computes on its shard and its part of the batch, and holds what it would hold among all 64; its process
group is over at once with every collective (`collectives.alone`). As many ranks run as a node has, because ranks that
share cores or memory slow one another down. No result is a training's, so none is verified.
"""

from __future__ import annotations

from parabench.collectives import alone
from parabench.launch.workload import RankEnv
from parabench.plan.case import Case
from parabench.workloads.training import TrainingWorkload


class ComputeWorkload(TrainingWorkload):
    """Steps of ranks that are alone."""

    def join(self, case: Case, env: RankEnv, rank: int) -> None:
        """Be `rank` of the case's ranks, of which no other is there."""
        alone.join(rank, case.world_size, env.timeout_s)
