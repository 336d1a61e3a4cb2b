"""Record the results of all ranks on rank 0: a session in the results database, and its report."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from parabench.launch.launcher import launch
from parabench.launch.outcome import is_echo
from parabench.launch.processes import ProcessOutcome
from parabench.launch.results import NodeResult, of_ranks
from parabench.launch.spec import LaunchSpec
from parabench.machine.machine import this_machine
from parabench.plan.case import Case
from parabench.plan.plan import Plan
from parabench.plan.protocol import MOST_STEPS, Protocol
from parabench.session.request import Planned, TrainingRequest
from parabench.session.resume import REPORT_NAME, FolderInUse, begin_session, store_in
from parabench.store.record import BATCH_UNSEEN, WATCHED, Finding, Launch, Phase
from parabench.store.results import load
from parabench.store.store import Store
from parabench.watching.group import LOOK_S, Group
from parabench.watching.hosts import About, environment_of, machine_of, node_records
from parabench.watching.observer import Observer
from parabench.watching.schedule import Schedule
from parabench.watching.workload import WatchWorkload

# Another run may hold the results database for so long: one that records a loop is done earlier.
BUSY_S = 10.0

# Warnings that are printed at the end: they show what to change in the loop, or where.
TOLD = ("data_bound", "launch_bound", "slow_rank", "straggler", "slow_node", "other_optimizer", "model_uncalled")
# These are printed, too: they have the reason why something could not be measured.
TOLD_UNKNOWN = (BATCH_UNSEEN, "instrument_off", "no_measured_step")

LOOP = Finding(
    WATCHED,
    "The training is a loop of your own. Each run of it is one launch: how much runs differ is known only of several.",
    "Run it again with the same label, watch(..., label='before'): runs of one label are launches of one session.",
)

QUESTION = "Where does the time of this training's steps go?"


@dataclass(slots=True, kw_only=True)
class Seen:
    """What rank 0 records: `came` has the dictionary of each rank, as `watch` makes it, None for ranks that handed over
    nothing within `waited_s` seconds."""

    observer: Observer
    came: Sequence[Mapping[str, Any] | None]
    out: Path
    label: str | None
    waited_s: float
    group: Group = field(init=False)
    schedule: Schedule = field(init=False)
    case: Case = field(init=False)
    results: list[NodeResult | None] = field(init=False)

    def __post_init__(self) -> None:
        self.group, self.schedule, self.case = self.observer.group, self.observer.schedule, self.observer.case()
        self.results = [NodeResult.from_json(each["result"]) if each else None for each in self.came]
        if any(each and each["stopped"] for each in self.came):
            forgive(self.results)

    @property
    def raced(self) -> tuple[Case, ...]:
        """Return the case of each cap of a race."""
        return tuple(self.case.replace(bucket_mib=cap) for cap in self.observer.caps)

    @property
    def steps(self) -> int:
        """Return the most steps of a rank."""
        ranks = of_ranks([each for each in self.results if each])
        return max((report.of(0).steps for report, _ in ranks), default=0)


def forgive(results: Sequence[NodeResult | None]) -> None:
    """Remove errors of ranks that only lost their connection, because another rank was asked to stop."""
    for result in results:
        if result is not None and (error := result.reports[0].error) is not None and is_echo(error):
            result.reports[0].error, result.outcome = None, ProcessOutcome(ok=True)


def record(seen: Seen, log: Callable[[str], None]) -> int:
    """Store the session, write its report, and return the session's number.

    Raises UsageError if the folder cannot be written.
    """
    launched, findings = as_launch(seen), seen.observer.findings()
    with free_store(seen.out, log) as store:
        session_id, block = session_of(store, seen)
        launched.block = block
        store.append(session_id, launched)
        for place, arm in enumerate(launched.arms):
            arm.block, arm.position = block + 1, place
            store.append(session_id, arm)
        for finding in findings:
            store.add_finding(session_id, finding.replace(case_id=seen.case.id))
        if not store.has_finding(session_id, WATCHED):
            store.add_finding(session_id, LOOP)
        store.finish_session(session_id)
        path = store.path
    from parabench.analysis.ranking.words import closing_lines
    from parabench.analysis.session import session_data
    from parabench.analysis.warnings.launches import session_warnings
    from parabench.report.build import write_report

    results = load(path)
    report = write_report(results, path.with_name(REPORT_NAME), str(session_id))
    data = session_data(results, session_id)
    told = [finding.message for finding in session_warnings(data) if finding.code in TOLD]
    told += [f.message for f in (*findings, *launched.findings) if f.code in (*TOLD, *TOLD_UNKNOWN)]
    for line in (*closing_lines(data), *dict.fromkeys(told)):
        log(line)
    log(f"store:  {path}@{session_id}")
    log(f"report: {report}")
    return session_id


@contextlib.contextmanager
def free_store(out: Path, log: Callable[[str], None]) -> Iterator[Store]:
    """Yield the results database of a folder; if another run holds it for longer than BUSY_S, that of a new folder."""
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
    """Return the results of all ranks as one launch."""
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
    # Times count from the start of the node's first rank, but readings of a rank from its own start.
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
    """Return the result of a rank that handed nothing over."""
    workload = WatchWorkload(seen.schedule)
    spec = LaunchSpec.of(seen.case, Protocol(), 1.0)
    waited_s = max(1, round(seen.waited_s))
    return NodeResult.silent(
        rank // seen.group.ranks_per_node,
        seen.group.hosts[rank],
        range(rank, rank + 1),
        workload.marks(spec),
        lost=f"rank {rank} ({seen.group.hosts[rank]}) handed nothing over within {waited_s} s of rank 0's end",
    )


def protocol_of(schedule: Schedule, steps: int) -> Protocol:
    """Return the number of steps of each kind, at most as many as a protocol can have."""
    counts = Counter(schedule.phases(steps))
    return Protocol(
        warmup=max(2, counts[Phase.WARMUP]),
        steps=max(1, min(counts[Phase.MEASURE], MOST_STEPS)),
        instrumented=min(counts[Phase.INSTRUMENT], MOST_STEPS),
        launches=1,
        rounds=0,
    )


def session_of(store: Store, seen: Seen) -> tuple[int, int]:
    """Return the session of the launch and its block: the last session with the same label, script and cases, else a
    new one. Caps that raced are in the next block."""
    blocks = 2 if seen.observer.caps else 1
    protocol = protocol_of(seen.schedule, seen.steps).replace(launches=blocks)
    plan = Plan(cases=seen.raced or (seen.case,), skipped=(), protocol=protocol, seed=0)
    script = Path(getattr(sys.modules["__main__"], "__file__", None) or "python").name
    last = store.last_labelled(seen.label, script) if seen.label is not None else None
    if last is not None:
        before: Plan[Case, Protocol] = Plan.from_dict(last.plan)
        if before.cases == plan.cases:
            more = before.replace(protocol=before.protocol.replace(launches=before.blocks + blocks))
            store.replan(last.id, more.to_dict())
            return last.id, before.blocks
    own = seen.came[0]
    assert own is not None
    said: list[About] = [(each or own)["about"] for each in seen.came]
    per_node = seen.group.ranks_per_node
    hosts = [said[first : first + per_node] for first in range(0, seen.group.size, per_node)]
    machine = machine_of(hosts[0], this_machine(), seen.group)
    request = TrainingRequest(argv=[script, *sys.argv[1:]], out=seen.out, label=seen.label, suite=None)
    planned = Planned(plan=plan, suite=script, question=QUESTION)
    here, nodes = environment_of(hosts[0]), node_records(hosts)
    return begin_session(store, request, planned, machine, nodes=nodes, about=here).session_id, 0
