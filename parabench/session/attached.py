"""`parabench worker`: a session of trainings in a group of processes that is there, the store and report at rank 0."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import Console

from parabench.analysis.text import format
from parabench.cluster import fingerprint
from parabench.cluster.attached.agent import RankAgent
from parabench.cluster.attached.coordinator import RankCoordinator
from parabench.cluster.attached.environment import ProcessEnvironment, group_of
from parabench.cluster.attached.hosts import environment_of, machine_of, monitored_devices, node_records, of_this
from parabench.cluster.attached.in_process import SHARED
from parabench.cluster.attached.join import join_group
from parabench.collectives.nccl import is_nccls
from parabench.errors import NodeGone, UsageError
from parabench.files import remove_abandoned
from parabench.launch.launcher import launch
from parabench.launch.store_client import StoreLost
from parabench.machine.machine import this_machine
from parabench.plan.case import Case
from parabench.plan.plan import Plan, Skipped, TrainingPlan
from parabench.plan.suite import Suite, load_suite, parse_axis
from parabench.session.conclude import conclude
from parabench.session.participants import OneMachine
from parabench.session.request import TrainingRequest, plan_training
from parabench.session.resume import shares_processes
from parabench.session.runner import Executor
from parabench.session.session import NOT_OK, lead_session, logger
from parabench.signals import STOPPED, Interrupted
from parabench.store.record import TRACES, Launch, Status
from parabench.store.store import Store
from parabench.strategies import entry_of


class Attached(OneMachine):
    """The group, as rank 0 leads it: a session ends with the first launch that leaves its processes amid something."""

    attached = True
    go_on = "the same command with --resume"

    def __init__(
        self, lead: RankCoordinator, hosts: Sequence[Sequence[Mapping[str, Any]]], log: Callable[[str], None]
    ) -> None:
        self._lead, self._hosts, self._log = lead, hosts, log
        self.environments, self.about = node_records(hosts), environment_of(hosts[0])

    def executor(self) -> Executor:
        return partial(launch, nodes=self._lead)

    def assemble(self, plan: Plan[Any, Any]) -> None:
        own = fingerprint.user_code(plan.cases)
        self._lead.admit(own, [used for host in self._hosts for used in monitored_devices(host)])

    def begun(self, store: Store, session_id: int) -> None:
        if not shares_processes(store, session_id):
            store.add_finding(session_id, SHARED)
        self._log(f"{format.count(sum(map(len, self._hosts)), 'process')}: {SHARED.message}")

    def check(self, launch: Launch) -> None:
        if self._lead.stop is not None:
            raise self._lead.stop
        if not self._lead.sane:
            raise NodeGone(f"a launch that ends {Status(launch.status)} leaves its processes where no other can begin")


def run_worker(request: TrainingRequest, console: Console) -> tuple[int, bool]:
    """Run the request as this process' rank: the exit code, and whether the process is sane enough to end as others do.

    Raises UsageError, at rank 0 before anything is recorded.
    """
    log = logger(console)
    group = group_of(os.environ)
    group.announce()
    assert request.suite is not None
    suite = load_suite(request.suite)
    machine = this_machine()
    if group.local_rank == 0:
        remove_abandoned()  # of ranks that were killed
    shared = join_group(group, log)
    facts, about = facts_of(suite, request.words()), of_this(group, machine)
    if group.rank:
        # Of a host's ranks only the first tells of the host.
        agent = RankAgent(group, {} if group.local_rank else facts, about, request.out / TRACES)
        return agent.follow(shared), agent.sane
    lead = RankCoordinator(shared, group, facts, about, log)
    try:
        with lead:
            said = lead.wait_for_ranks()
            check_asked(request.axes, group)
            hosts = [said[first : first + group.local_size] for first in range(0, group.size, group.local_size)]
            here = machine_of(hosts[0], machine, group)
            planned = plan_training(request, suite, here)
            planned = replace(planned, plan=fitting(planned.plan, group))
            nodes = Attached(lead, hosts, log)
            code, session_id = lead_session(request, planned, here, nodes, console)
            if code != STOPPED:
                conclude(request, session_id, console)
            lead.end(code)
    except Interrupted as stop:
        log(f"stopped by {stop}")
        return STOPPED, False
    except StoreLost as why:
        log(f"the session ends here: {why}; every finished launch is kept")
        return NOT_OK, False
    return code, lead.sane


def facts_of(suite: Suite, options: Sequence[str]) -> dict[str, str | None]:
    """{what: how it is here} of everything that must be equal on all hosts."""
    return fingerprint.software() | {
        f"suite file {suite.path.name}": fingerprint.of_file(suite.path),
        "options": shlex.join(options) or None,
    }


def fitting(plan: TrainingPlan, group: ProcessEnvironment) -> TrainingPlan:
    """The plan without the cases that these processes cannot run. Raises UsageError when none is left."""
    reasons = {case: exceeds_group(case, group) for case in plan.cases}
    skipped = [Skipped(case, reason) for case, reason in reasons.items() if reason is not None]
    cases = [case for case, reason in reasons.items() if reason is None]
    if not cases:
        raise UsageError(f"nothing to run in this group: {skipped[0].reason}")
    return replace(plan, cases=tuple(cases), skipped=(*plan.skipped, *skipped))


def other_size(group: ProcessEnvironment) -> str:
    """Why a case of another world size than the group's cannot run."""
    return f"the group has {format.count(group.size, 'process')}; use parabench run for other world sizes"


def check_asked(axes: Sequence[str], group: ProcessEnvironment) -> None:
    """Raise UsageError where `axes`, as they are typed, ask for a world size larger than the group, or for none that is
    its own. The planner would speak of nodes, and of sizes that only fresh processes can have."""
    named = dict(text.split("=", 1) for text in axes if "=" in text)
    sizes = [size for size in parse_axis("world_size", named.get("world_size", "auto")) if size != "auto"]
    wrong = next((size for size in sizes if size > group.size or (size > 0 and group.size not in sizes)), None)
    if wrong is not None:
        raise UsageError(f"world_size {wrong} is not this group's: {other_size(group)}")


def exceeds_group(case: Case, group: ProcessEnvironment) -> str | None:
    """Why these processes cannot run the case; None when they can."""
    if case.world_size != group.size:
        return other_size(group)
    if is_nccls(case.algorithm):
        return "NCCL is pinned to an algorithm before a process first uses it, and these are shared; use parabench run"
    if entry_of(case.strategy).package is not None:
        return f"{case.strategy} keeps its first process group as long as its process lives; use parabench run"
    if entry_of(case.strategy).one_process and group.size > 1:
        return f"{case.strategy} drives all devices from one process, and here are {group.size}; use parabench run"
    return None
