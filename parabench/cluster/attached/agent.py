"""A rank that is not rank 0: it takes its part in every launch until rank 0 ends the session, and says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parabench.cluster.agent import LATER_S, Agent
from parabench.cluster.attached.environment import ProcessEnvironment
from parabench.cluster.attached.in_process import InProcessLaunch
from parabench.cluster.attached.monitor import HostMonitor
from parabench.cluster.shared_store import SharedStore
from parabench.launch.rendezvous import LaunchContext
from parabench.launch.results import NodeResult
from parabench.launch.spec import LaunchSpec
from parabench.launch.store_client import StoreLost
from parabench.launch.workload import workload_of
from parabench.machine.nvml import Used
from parabench.signals import STOPPED, Interrupted, stop_signals

LOST = 1


class RankAgent(Agent):
    """This rank. It is `sane` as long as no launch failed."""

    # A launcher looks after its ranks. One that is slow to answer, because it measures, is not lost.
    patience_s = None

    def __init__(
        self, group: ProcessEnvironment, facts: Mapping[str, Any], about: Mapping[str, Any], traces: Path
    ) -> None:
        super().__init__(group.rank, facts, about, traces, lambda line: None)
        self.sane = True
        self._group = group
        self._monitor = HostMonitor() if group.local_rank == 0 else None

    def follow(self, store: SharedStore) -> int:
        """Take part until the end; the exit code that rank 0 gives. Raises nothing: rank 0 does the talking."""
        try:
            with stop_signals():
                return self.serve(store)
        except Interrupted:
            self.sane = False
            return STOPPED
        except StoreLost:
            self.sane = False
            return LOST

    def rejected(self, why: str, code: int) -> int:
        return code

    def admitted(self, answer: Mapping[str, Any]) -> None:
        self._pids = answer["pids"]
        self._used = [Used(*one) for one in answer["monitored"]]
        if self._used and self._monitor is None:
            self._monitor = HostMonitor()

    def node_of(self, spec: LaunchSpec) -> int | None:
        return self._group.node if self._group.rank < spec.world_size else None

    def run(self, spec: LaunchSpec, context: LaunchContext) -> NodeResult:
        workload = workload_of(spec.kind)
        with InProcessLaunch(spec, workload, self._group, self._monitor, self._used, self._pids) as launch:
            result = launch.run(context, spec.deadline_s + LATER_S)
        self.sane = self.sane and result.outcome.ok
        return result
