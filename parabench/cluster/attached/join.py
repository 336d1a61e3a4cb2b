"""A process' way into its group: they meet in a store that torchrun's agent already keeps, or that rank 0 does. Every
rank but 0 takes its part in each launch until rank 0 ends the session, and says nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from parabench.cluster.agent import LATER_S, Agent
from parabench.cluster.attached.environment import LOOPBACK, ProcessEnvironment, WrongRank
from parabench.cluster.attached.in_process import InProcessLaunch
from parabench.cluster.attached.monitor import HostMonitor
from parabench.cluster.network import Route
from parabench.cluster.shared_store import TRY_S, SharedStore, open_store, reach_store
from parabench.cluster.topology import Topology
from parabench.cluster.waiting import Waiting
from parabench.errors import UsageError
from parabench.launch.rendezvous import LaunchContext
from parabench.launch.results import NodeResult
from parabench.launch.spec import LaunchSpec
from parabench.launch.store_client import StoreLost
from parabench.launch.workload import workload_of
from parabench.machine.nvml import Used
from parabench.signals import STOPPED, Interrupted, stop_signals

# How long a rank waits for the others to begin, as torchrun does. They begin at the same moment, but import torch
# first: who waits for longer than FIRST_S wants to know for whom.
BEGIN_S, FIRST_S = 600.0, 5.0

# The exit code of a rank whose store is gone.
LOST = 1


def topology_of_group(group: ProcessEnvironment) -> Topology:
    """The group's hosts, and where it meets."""
    return Topology(
        nodes=group.nodes,
        ranks_per_node=group.local_size,
        host=group.address,
        port=group.port,
        node=int(group.rank > 0 or group.agents),
        run_id=f"inside/{group.name}",
    )


def join_group(group: ProcessEnvironment, log: Callable[[str], None]) -> SharedStore:
    """Open the store or reach it. Raises UsageError when that cannot be done in time."""
    topology, where = topology_of_group(group), f"{group.address} port {group.port}"
    try:
        store = open_store(topology, log)
    except UsageError as why:
        reason = why.__cause__.strerror if isinstance(why.__cause__, OSError) else None
        raise UsageError(
            f"rank 0 cannot listen on {where}: {reason or why}; give all ranks another MASTER_PORT, or rank 0's own "
            "host as MASTER_ADDR"
        ) from why
    if store is None:
        tries = f"rank {group.rank} tries to reach rank 0 at {where}, for up to {BEGIN_S:g} s"
        try:
            store = reach_store(
                topology,
                Waiting(log, BEGIN_S, FIRST_S),
                lambda why: f"{tries} ({why})",
                lambda client: client.call("check", ["parabench"], timeout_s=TRY_S),
            )
        except StoreLost as why:
            raise WrongRank(
                f"rank {group.rank} did not reach rank 0 at {where} within {BEGIN_S:g} s ({why}); give all ranks the "
                "same MASTER_ADDR and MASTER_PORT"
            ) from why
    return store if group.nodes > 1 else replace(store, route=Route(LOOPBACK, "lo", restricted=True))


class RankAgent(Agent):
    """This rank. It is `sane` as long as no launch failed."""

    # A launcher looks after its ranks. One that is slow to answer, because it measures, is not lost.
    patience_s = None
    meet_s = BEGIN_S
    differs = WrongRank

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
