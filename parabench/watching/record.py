"""What rank 0 makes of what all ranks saw: a session in the store, and its report."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parabench.cluster.attached.coordinator import group_by_node
from parabench.cluster.attached.environment import ProcessEnvironment
from parabench.cluster.attached.hosts import About, environment_of, machine_of, node_records, of_this
from parabench.launch.launcher import launch
from parabench.launch.results import NodeResult
from parabench.launch.spec import LaunchSpec
from parabench.machine.machine import Machine, this_machine
from parabench.plan.case import Case
from parabench.plan.plan import Plan
from parabench.plan.protocol import Protocol
from parabench.session.request import Planned, TrainingRequest
from parabench.session.resume import REPORT_NAME, begin_session, store_in
from parabench.store.record import Finding, Launch, Phase
from parabench.store.results import load
from parabench.store.store import Store
from parabench.watching.group import Group
from parabench.watching.schedule import Schedule
from parabench.watching.workload import WatchWorkload

QUESTION = "Where does the time of this training's steps go?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What rank 0 is to record. `results` are of one rank each, None of those that handed nothing over; `said` is what
    each rank says of its host."""

    out: Path
    label: str | None
    script: str
    case: Case
    schedule: Schedule
    results: Sequence[NodeResult | None]
    said: Sequence[About | None]
    findings: Sequence[Finding]
    waited_s: float


def environment_here(group: Group) -> ProcessEnvironment:
    """The group as what describes hosts knows it."""
    return ProcessEnvironment(
        rank=group.rank, size=group.size, local_rank=group.local_rank, local_size=group.ranks_per_node, address="", port=0
    )


def about_this(group: Group) -> dict[str, Any]:
    """What this rank says of its host and device."""
    return of_this(environment_here(group), this_machine())


def script_name() -> str:
    """The file that the loop is in."""
    return Path(getattr(sys.modules["__main__"], "__file__", None) or "python").name


def record(seen: Seen, group: Group, log: Callable[[str], None]) -> int:
    """Store the session and write its report: the session's number. Raises UsageError where the folder cannot be
    written."""
    launched = as_launch(seen, group)
    here, machine, nodes = described(seen, group)
    with store_in(seen.out) as store:
        session_id = session_of(store, seen, launched, machine, here, nodes)
        store.append(session_id, launched)
        for finding in seen.findings:
            store.add_finding(session_id, replace(finding, case_id=seen.case.id))
        store.finish_session(session_id)
        path = store.path
    from parabench.report.build import write_report

    report = write_report(load(path), path.with_name(REPORT_NAME), str(session_id))
    log(f"store:  {path}@{session_id}")
    log(f"report: {report}")
    return session_id


def as_launch(seen: Seen, group: Group) -> Launch:
    """What all ranks saw, as one launch."""
    nodes = group_by_node([each or silent(seen, group, rank) for rank, each in enumerate(seen.results)], group.ranks_per_node)
    steps = max((len(marks) for node in nodes for marks in node.marks), default=0)
    began_s = nodes[0].began_s
    spec = LaunchSpec.of(seen.case, protocol_of(seen.schedule, steps), time.perf_counter() - began_s)
    return launch(spec, workload=WatchWorkload(seen.schedule), run=lambda *_: nodes)


def silent(seen: Seen, group: Group, rank: int) -> NodeResult:
    """Of a rank that handed nothing over."""
    workload = WatchWorkload(seen.schedule)
    spec = LaunchSpec.of(seen.case, Protocol(), 1.0)
    return NodeResult.silent(
        rank // group.ranks_per_node,
        group.hosts[rank],
        range(rank, rank + 1),
        workload.marks(spec),
        workload.report_type,
        lost=f"rank {rank} ({group.hosts[rank]}) handed nothing over within {seen.waited_s:g} s of rank 0's end",
    )


def protocol_of(schedule: Schedule, steps: int) -> Protocol:
    """How many steps of each kind there were."""
    phases = schedule.phases(steps)
    return Protocol(
        warmup=max(2, phases.count(Phase.WARMUP)),
        steps=max(1, phases.count(Phase.MEASURE)),
        instrumented=phases.count(Phase.INSTRUMENT),
        launches=1,
        rounds=0,
    )


def described(seen: Seen, group: Group) -> tuple[dict[str, Any], Machine, list[dict[str, Any]]]:
    """Node 0's environment, what is known of its machine, and the environments of all nodes where there are several."""
    own = seen.said[0]
    assert own is not None
    said: list[About] = [each or own for each in seen.said]
    hosts = [said[first : first + group.ranks_per_node] for first in range(0, group.size, group.ranks_per_node)]
    machine = machine_of(hosts[0], this_machine(), environment_here(group))
    return environment_of(hosts[0]), machine, node_records(hosts)


def session_of(
    store: Store,
    seen: Seen,
    launched: Launch,
    machine: Machine,
    here: Mapping[str, Any],
    nodes: Sequence[Mapping[str, Any]],
) -> int:
    """The session that the launch belongs to: the store's last where that has the label which was given, the script and
    the case, and then the launch is in a block of its own; else a new one."""
    steps = max((len(marks) for each in seen.results if each for marks in each.marks), default=0)
    plan = Plan(cases=(seen.case,), skipped=(), protocol=protocol_of(seen.schedule, steps), seed=0)
    last = store.last_session()
    if last is not None and seen.label is not None and (last.label, last.suite) == (seen.label, seen.script):
        before: Plan[Case, Protocol] = Plan.from_dict(last.plan)
        if before.cases == plan.cases:
            launched.block = before.blocks
            more = replace(before, protocol=replace(before.protocol, launches=before.blocks + 1))
            store.replan(last.id, more.to_dict())
            return last.id
    request = TrainingRequest(argv=[seen.script, *sys.argv[1:]], out=seen.out, label=seen.label, suite=None)
    planned = Planned(plan=plan, suite=seen.script, question=QUESTION)
    return begin_session(store, request, planned, machine, nodes=nodes, about=here).session_id
