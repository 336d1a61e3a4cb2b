"""Rank 0 of a group of processes that somebody else started: it leads the other ranks, and brings what each of them saw
together by nodes, to be judged and kept like a launch of fresh processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any

from parabench.cluster.attached.environment import ProcessEnvironment
from parabench.cluster.attached.hosts import About, environment_of, monitored_devices, node_records
from parabench.cluster.attached.in_process import SHARED, InProcessLaunch
from parabench.cluster.attached.join import BEGIN_S, FIRST_S, topology_of_group
from parabench.cluster.attached.monitor import HostMonitor
from parabench.cluster.coordinator import LOOK_S, Coordinator
from parabench.cluster.fingerprint import user_code
from parabench.cluster.shared_store import SharedStore
from parabench.cluster.waiting import Waiting, numbered
from parabench.errors import NodeGone, UsageError
from parabench.launch.processes import ProcessOutcome
from parabench.launch.rendezvous import LaunchContext
from parabench.launch.results import NodeResult
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import Workload
from parabench.machine.nvml import Used
from parabench.signals import Interrupted, stop_signals
from parabench.store.record import AnyCase, Launch, Status
from parabench.store.store import Store

# What ranks get to hand over what they saw when this one is asked to stop, and may be killed a moment later.
LAST_LOOK_S = 0.25


class RankCoordinator(Coordinator):
    """The whole group, as rank 0 has it: its session ends with the first launch that leaves processes amid something.

    `sane` as long as all ranks came to the end of every launch; `stop` is who asked for the end while a rank was found
    to be gone."""

    unit = "rank"
    attached = True
    most_growth = None  # what rank 0 measures is in this process too
    go_on = "the same command with --resume"
    hand_over_s, goodbye_s = 5.0, 2.0

    def __init__(
        self,
        store: SharedStore,
        group: ProcessEnvironment,
        facts: Mapping[str, Any],
        about: Mapping[str, Any],
        log: Callable[[str], None],
    ) -> None:
        self._group = group
        super().__init__(store, topology_of_group(group), facts, log)
        self.sane = True
        self.stop: Interrupted | None = None
        self._about = about
        self._hosts: list[list[About]] = []
        self._pids: Sequence[int] = ()
        self._used: Sequence[Used] = ()
        self._monitor = HostMonitor()

    @property
    def _size(self) -> int:
        return self._group.size

    def members_of(self, spec: LaunchSpec) -> int:
        return spec.world_size

    # ---- who is there

    def wait_for_ranks(self) -> list[About]:
        """What every rank of this host says of itself, in their order. Raises UsageError when any rank does not come or
        has other software or another suite, Interrupted when any is asked to stop."""
        size, where = self._size, f"{self._group.address} port {self._group.port}"

        def missing() -> list[int]:
            self._membership.take_requests()
            came = self._membership.claimed()
            return [rank for rank in range(1, size) if rank not in came]

        waiting = Waiting(self._log, BEGIN_S, FIRST_S)
        with stop_signals():
            left = self._wait(
                missing, waiting, lambda who: f"rank 0 waits at {where} for {who} of {size}, for up to {BEGIN_S:g} s"
            )
        if left:
            raise UsageError(f"{numbered('rank', left)} of {size} did not come within {BEGIN_S:g} s; start all of them")
        came = self._membership.claimed()
        self._membership.are_alike(came)
        said, of_each = [self._about, *(each.about for each in came.values())], self._group.local_size
        self._hosts = [said[first : first + of_each] for first in range(0, size, of_each)]
        self._pids = [about["pid"] for about in said]
        self.environments, self.about = node_records(self._hosts), environment_of(self._hosts[0])
        return self._hosts[0]

    def assemble(self, cases: Sequence[AnyCase]) -> None:
        """Let all ranks know of one another, and each of the devices that it is to look at. Raises UsageError when one
        has not the same of the user's own code."""
        monitored = [used for said in self._hosts for used in monitored_devices(said)]
        self._used, self._membership.code = monitored[0], user_code(cases)
        ranks = self._membership.claimed()
        with stop_signals():
            self._membership.are_alike(ranks)
        for rank, each in ranks.items():
            devices = [astuple(used) for used in monitored[rank]]
            self._membership.admit(each, rank, 0, pids=self._pids, monitored=devices)
        self._membership.begun = True

    def begun(self, store: Store, session_id: int) -> None:
        if not store.has_finding(session_id, SHARED.code):
            store.add_finding(session_id, SHARED)
        self._log(f"{self._size:,} process{'es' * (self._size > 1)}: {SHARED.message}")

    def check(self, launch: Launch) -> None:
        if self.stop is not None:
            raise self.stop
        if not self.sane:
            raise NodeGone(f"a launch that ends {Status(launch.status)} leaves its processes where no other can begin")

    def _look(self, store: Any) -> None:
        """Nothing: a launcher looks after its ranks."""

    # ---- launches

    def run(self, spec: LaunchSpec, workload: Workload) -> list[NodeResult]:
        with InProcessLaunch(spec, workload, self._group, self._monitor, self._used, self._pids) as self._here:
            try:
                results = super().run(spec, workload)
            except Interrupted as stop:
                self.sane = False
                if not self._is_echo(spec, workload):
                    raise
                self.stop, self._results[0] = stop, self._here.result()
                results = self.results(spec, workload)
            except NodeGone:
                self.sane = False
                raise
        # One rank alone that failed has left no other in the middle of anything.
        alone = len(results) == 1 and self._here.over.is_set()
        self.sane = self.sane and (alone or all(result.outcome.ok for result in results))
        # What rank 0 measures next is in this process too, and its memory with it.
        self._results = {}
        del self._here
        return group_by_node(results, spec.ranks_per_node)

    def run_here(self, spec: LaunchSpec, workload: Workload, context: LaunchContext) -> NodeResult:
        # Also of one rank alone: what is set stays in this process, and later launches meet other hosts.
        return self._here.run(replace(context, environment=self._store.route.environment()), spec.deadline_s)

    def silent(self, number: int, spec: LaunchSpec, workload: Workload) -> NodeResult:
        host, node = self._membership.participants[number].host, number // spec.ranks_per_node
        nothing, ranks = workload.marks(spec), range(number, number + 1)
        return NodeResult.silent(node, host, ranks, nothing, workload.report_type, rank=number)

    def _is_echo(self, spec: LaunchSpec, workload: Workload) -> bool:
        """Whether all are asked to stop only because one is gone, as torchrun and mpirun do: then this rank's own
        collectives fail, and that one has said nothing."""
        until = time.monotonic() + LAST_LOOK_S
        while (left := self.collect_now(spec, workload)) and time.monotonic() < until:
            time.sleep(LOOK_S)
        members = [self._membership.participants[rank] for rank in left]
        gone = [each for each in members if not self._client.has(f"stop/{each.join_id}")]
        return bool(gone) and self._here.over.is_set() and not self._here.ok


def group_by_node(parts: Sequence[NodeResult], ranks_per_node: int) -> list[NodeResult]:
    """Parts of one rank each, in their order, brought together node by node."""
    return [_node(parts[first : first + ranks_per_node]) for first in range(0, len(parts), ranks_per_node)]


def _node(parts: Sequence[NodeResult]) -> NodeResult:
    ok = all(part.outcome.ok for part in parts)
    gone = next((part.outcome.rank for part in parts if part.outcome.rank is not None), None)
    # Moments count from when the node's first rank began; readings of another rank from when that one did.
    first = next((part for part in parts if part.outcome.rank is None), parts[0])
    return replace(
        parts[0],
        began_s=first.began_s,
        outcome=ProcessOutcome(ok=ok, hung=any(part.outcome.hung for part in parts), rank=gone),
        reports=[report for part in parts for report in part.reports],
        marks=[each for part in parts for each in part.marks],
        tails=[] if ok else [tail for part in parts for tail in part.tails or [""]],
        stacked=[rank for part in parts for rank in part.stacked],
        answers=[answer for part in parts for answer in part.answers or [{}]],
        device_samples=[
            sample._replace(t_s=sample.t_s + part.began_s - first.began_s)
            for part in parts
            for sample in part.device_samples
        ],
        sampler=_sampler([part.sampler for part in parts if part.sampler]),
        counts=next((part.counts for part in parts if part.counts), None),
    )


def _sampler(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What reading cost in all, where several ranks of a host look at devices; what any of them could not read."""
    if not each:
        return {}
    costs = [one["cpu_s"] for one in each]
    return {
        **each[0],
        "cpu_s": None if None in costs else sum(costs),
        "unread": {name: why for one in reversed(each) for name, why in one["unread"].items()},
    }
