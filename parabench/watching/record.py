"""What rank 0 makes of what all ranks saw: a session in the store, and its report."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parabench.launch.launcher import launch
from parabench.launch.outcome import is_echo
from parabench.launch.processes import ProcessOutcome
from parabench.launch.results import NodeResult
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import handed_over
from parabench.machine.machine import Machine, this_machine
from parabench.plan.case import Case
from parabench.plan.plan import Plan
from parabench.plan.protocol import MOST_STEPS, Protocol
from parabench.session.request import Planned, TrainingRequest
from parabench.session.resume import REPORT_NAME, FolderInUse, begin_session, store_in
from parabench.store.record import BATCH_UNSEEN, WATCHED, Finding, Launch, Phase
from parabench.store.results import load
from parabench.store.store import Store
from parabench.watching.group import LOOK_S, Group
from parabench.watching.hosts import About, environment_of, machine_of, node_records, of_this
from parabench.watching.observer import Observer
from parabench.watching.schedule import Schedule
from parabench.watching.workload import WatchReport, WatchWorkload

# How long another run may hold the store: one that records another loop does for moments, one that measures for hours.
BUSY_S = 10.0

# Of what is found in a session these are told at the end: they say what to change in the loop, or where.
TOLD = ("data_bound", "launch_bound", "slow_rank", "straggler", "slow_node", "other_optimizer", "model_uncalled")
# These are printed too: they say what could not be measured, and why.
TOLD_UNKNOWN = (BATCH_UNSEEN, "instrument_off", "no_measured_step")

LOOP = Finding(
    WATCHED,
    "The training is a loop of your own. Each run of it is one launch: how much runs differ is known only of several.",
    "Run it again with the same label, watch(..., label='before'): runs of one label are launches of one session.",
)

QUESTION = "Where does the time of this training's steps go?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What rank 0 is to record. `results` are of one rank each, None of those that handed nothing over; `said` is what
    each rank says of its host."""

    out: Path
    label: str | None
    script: str
    group: Group
    case: Case
    schedule: Schedule
    caps: tuple[float, ...]
    results: Sequence[NodeResult | None]
    said: Sequence[About | None]
    findings: Sequence[Finding]
    waited_s: float

    @classmethod
    def of(
        cls,
        observer: Observer,
        came: Sequence[Mapping[str, Any] | None],
        out: Path,
        label: str | None,
        script: str,
        waited_s: float,
    ) -> Seen:
        """What ranks handed over, as `watch` makes it; None of those that did not come within `waited_s` seconds."""
        results = [NodeResult.from_dict(each["result"], WatchReport) if each else None for each in came]
        if any(each and each["stopped"] for each in came):
            forgive(results)
        return cls(
            out=out,
            label=label,
            script=script,
            group=observer.group,
            case=observer.case(),
            schedule=observer.schedule,
            caps=observer.caps,
            results=results,
            said=[each["about"] if each else None for each in came],
            findings=observer.findings(),
            waited_s=waited_s,
        )

    @property
    def raced(self) -> tuple[Case, ...]:
        """The case of each cap of a race."""
        return tuple(self.case.replace(bucket_mib=cap) for cap in self.caps)

    @property
    def steps(self) -> int:
        """How many steps any rank took."""
        ranks = handed_over([each for each in self.results if each], WatchReport)
        return max((report.steps for report, _ in ranks), default=0)


def forgive(results: Sequence[NodeResult | None]) -> None:
    """Where ranks were asked to stop, errors of others that only lost their connections to them are none."""
    for result in results:
        if result is not None and (error := result.reports[0].error) is not None and is_echo(error):
            result.reports[0].error, result.outcome = None, ProcessOutcome(ok=True)


def about_this(group: Group) -> dict[str, Any]:
    """What this rank says of its host and device."""
    return of_this(group, this_machine())


def script_name() -> str:
    """The file that the loop is in."""
    return Path(getattr(sys.modules["__main__"], "__file__", None) or "python").name


def record(seen: Seen, log: Callable[[str], None]) -> int:
    """Store the session and write its report: the session's number. Raises UsageError where the folder cannot be
    written."""
    launched = as_launch(seen)
    here, machine, nodes = described(seen)
    with free_store(seen.out, log) as store:
        session_id, block = session_of(store, seen, machine, here, nodes)
        launched.block = block
        store.append(session_id, launched)
        for place, arm in enumerate(launched.arms):
            arm.block, arm.position = block + 1, place
            store.append(session_id, arm)
        for finding in seen.findings:
            store.add_finding(session_id, finding.replace(case_id=seen.case.id))
        if not store.has_finding(session_id, WATCHED):
            store.add_finding(session_id, LOOP)
        store.finish_session(session_id)
        path = store.path
    from parabench.analysis.session import session_data
    from parabench.analysis.text.best import closing_lines
    from parabench.analysis.warnings.launches import session_warnings
    from parabench.report.build import write_report

    results = load(path)
    report = write_report(results, path.with_name(REPORT_NAME), str(session_id))
    data = session_data(results, session_id)
    told = [finding.message for finding in session_warnings(data) if finding.code in TOLD]
    told += [f.message for f in (*seen.findings, *launched.findings) if f.code in (*TOLD, *TOLD_UNKNOWN)]
    for line in (*closing_lines(data), *dict.fromkeys(told)):
        log(line)
    log(f"store:  {path}@{session_id}")
    log(f"report: {report}")
    return session_id


@contextlib.contextmanager
def free_store(out: Path, log: Callable[[str], None]) -> Iterator[Store]:
    """The store of a folder; where another run holds that for longer than BUSY_S, of a new folder beside it."""
    until = time.monotonic() + BUSY_S
    with contextlib.ExitStack() as on:
        while True:
            try:
                store = on.enter_context(store_in(out))
                break
            except FolderInUse as why:
                if time.monotonic() > until:
                    out, until = out.with_name(f"{out.name}-{os.getpid()}"), math.inf
                    log(f"watch: {why}; what was seen is in {str(out)!r}")
                else:
                    time.sleep(LOOK_S)
        yield store


def as_launch(seen: Seen) -> Launch:
    """What all ranks saw, as one launch."""
    of_ranks = [each or silent(seen, rank) for rank, each in enumerate(seen.results)]
    nodes = group_by_node(of_ranks, seen.group.ranks_per_node)
    lost = next((each.lost for each in of_ranks if each.lost), None)
    errors = (report.error for each in of_ranks for report in each.reports if report.error)
    if all(is_echo(error) for error in errors):
        nodes[0].lost = lost
    began_s = nodes[0].began_s
    spec = LaunchSpec.of(seen.case, protocol_of(seen.schedule, seen.steps), time.perf_counter() - began_s)
    return launch(spec, workload=WatchWorkload(seen.schedule, seen.raced), run=lambda *_: nodes)


def group_by_node(parts: Sequence[NodeResult], ranks_per_node: int) -> list[NodeResult]:
    """Join results of one rank each, which are in the order of ranks, into one result per node."""
    return [_node(parts[first : first + ranks_per_node]) for first in range(0, len(parts), ranks_per_node)]


def _node(parts: Sequence[NodeResult]) -> NodeResult:
    ok = all(part.outcome.ok for part in parts)
    # Moments count from when the node's first rank began; readings of another rank from when that one did.
    first = next((part for part in parts if part.lost is None), parts[0])
    return replace(
        parts[0],
        began_s=first.began_s,
        outcome=ProcessOutcome(ok=ok),
        reports=[report for part in parts for report in part.reports],
        marks=[each for part in parts for each in part.marks],
        tails=[] if ok else [tail for part in parts for tail in part.tails or [""]],
        device_samples=[
            sample._replace(t_s=sample.t_s + part.began_s - first.began_s)
            for part in parts
            for sample in part.device_samples
        ],
        sampler=_sampler([part.sampler for part in parts if part.sampler]),
    )


def _sampler(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the cost of all ranks' readings on a host, and the sources that any of them could not read."""
    if not each:
        return {}
    costs = [one["cpu_s"] for one in each]
    return {
        **each[0],
        "cpu_s": None if None in costs else sum(costs),
        "unread": {name: why for one in reversed(each) for name, why in one["unread"].items()},
    }


def silent(seen: Seen, rank: int) -> NodeResult:
    """Of a rank that handed nothing over."""
    workload = WatchWorkload(seen.schedule)
    spec = LaunchSpec.of(seen.case, Protocol(), 1.0)
    waited_s = max(1, round(seen.waited_s))
    return NodeResult.silent(
        rank // seen.group.ranks_per_node,
        seen.group.hosts[rank],
        range(rank, rank + 1),
        workload.marks(spec),
        workload.report_type,
        lost=f"rank {rank} ({seen.group.hosts[rank]}) handed nothing over within {waited_s} s of rank 0's end",
    )


def protocol_of(schedule: Schedule, steps: int) -> Protocol:
    """How many steps of each kind there were; of a loop that took more than a protocol can have, as many as it can."""
    counts = Counter(schedule.phases(steps))
    return Protocol(
        warmup=max(2, counts[Phase.WARMUP]),
        steps=max(1, min(counts[Phase.MEASURE], MOST_STEPS)),
        instrumented=min(counts[Phase.INSTRUMENT], MOST_STEPS),
        launches=1,
        rounds=0,
    )


def described(seen: Seen) -> tuple[dict[str, Any], Machine, list[dict[str, Any]]]:
    """Node 0's environment, what is known of its machine, and the environments of all nodes where there are several."""
    own = seen.said[0]
    assert own is not None
    said: list[About] = [each or own for each in seen.said]
    hosts = [
        said[first : first + seen.group.ranks_per_node]
        for first in range(0, seen.group.size, seen.group.ranks_per_node)
    ]
    machine = machine_of(hosts[0], this_machine(), seen.group)
    return environment_of(hosts[0]), machine, node_records(hosts)


def session_of(
    store: Store,
    seen: Seen,
    machine: Machine,
    here: Mapping[str, Any],
    nodes: Sequence[Mapping[str, Any]],
) -> tuple[int, int]:
    """The session that the launch belongs to, and its block: the store's last one of the label that was given and the
    script, where that has the cases; else a new one. What raced is in the block after it."""
    blocks = 2 if seen.caps else 1
    protocol = protocol_of(seen.schedule, seen.steps).replace(launches=blocks)
    cases = seen.raced or (seen.case,)
    plan = Plan(cases=cases, skipped=(), protocol=protocol, seed=0)
    last = store.last_labelled(seen.label, seen.script) if seen.label is not None else None
    if last is not None:
        before: Plan[Case, Protocol] = Plan.from_dict(last.plan)
        if before.cases == plan.cases:
            more = before.replace(protocol=before.protocol.replace(launches=before.blocks + blocks))
            store.replan(last.id, more.to_dict())
            return last.id, before.blocks
    request = TrainingRequest(argv=[seen.script, *sys.argv[1:]], out=seen.out, label=seen.label, suite=None)
    planned = Planned(plan=plan, suite=seen.script, question=QUESTION)
    return begin_session(store, request, planned, machine, nodes=nodes, about=here).session_id, 0
