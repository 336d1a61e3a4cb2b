"""Record the results of all ranks on rank 0: a session in the results database, and its report."""

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
from parabench.launch.rank import error_of
from parabench.launch.results import MarkLayout, Marks, NodeResult, RankReport, as_json, of_ranks
from parabench.launch.spec import LaunchSpec
from parabench.launch.workload import RankEnv, Workload, shares_of
from parabench.machine.machine import this_machine
from parabench.plan.case import Case
from parabench.plan.plan import Plan
from parabench.plan.protocol import MOST_STEPS, Counts, Protocol
from parabench.probes import CaseReport
from parabench.probes.sampler import Sampler
from parabench.session.request import Planned, TrainingRequest
from parabench.session.resume import REPORT_NAME, FolderInUse, begin_session, store_in
from parabench.store.record import (
    BATCH_UNSEEN,
    UNVERIFIED,
    WATCHED,
    DeviceSample,
    Finding,
    HostSample,
    Launch,
    Phase,
    Status,
)
from parabench.store.results import load
from parabench.store.store import Store
from parabench.watching.group import LOOK_S, About, Group, environment_of, machine_of, node_records, of_this
from parabench.watching.loop import WIDTH
from parabench.watching.observer import Observer
from parabench.watching.schedule import Schedule
from parabench.workloads.training import record_ranks, samples, step_marks

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


def found_of(
    observer: Observer,
    sampler: Sampler,
    clock: dict[str, float] | None,
    error: BaseException | None,
    log: Callable[[str], None],
) -> dict[str, Any]:
    """Return what this rank hands over: {"result": a NodeResult of one rank, "about": facts of its host, "stopped":
    True if it was asked to end}."""
    group = observer.group
    stopped = isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit))
    failed = error if not stopped else None
    report, marks = observer.read(error_of(failed) if failed is not None else None, log)
    report.clock = clock
    result = NodeResult(
        node=group.node,
        host=group.hosts[group.rank],
        first_rank=group.rank,
        reports=[report],
        marks=[marks],
        outcome=ProcessOutcome(ok=failed is None),
        began_s=observer.began_s,
        tails=[] if failed is None else [""],
        device_samples=sampler.samples(DeviceSample),
        host_samples=[each for each in sampler.samples(HostSample) if each.rank is not None or group.local_rank == 0],
        sampler=sampler.facts(),
    )
    return {"result": as_json(result), "about": of_this(group, this_machine()), "stopped": stopped}


def record(
    observer: Observer,
    found: Sequence[Mapping[str, Any] | None],
    waited_s: float,
    out: Path,
    label: str | None,
    log: Callable[[str], None],
) -> int:
    """Store what the ranks sent (`found_of`, in order; None for a rank that did not within `waited_s` seconds),
    write the report, and return the session's number.

    Raises UsageError if the folder cannot be written.
    """
    nodes = results_of(observer.group, found, waited_s)
    steps = max(report.of(0).steps for report, _ in of_ranks(nodes))
    case, protocol = observer.case(), protocol_of(observer.schedule, steps)
    of_caps = tuple(case.replace(bucket_mib=cap) for cap in observer.caps)
    spec = LaunchSpec.of(case, protocol, time.perf_counter() - nodes[0].began_s)
    launched = launch(spec, workload=WatchWorkload(observer.schedule, of_caps), run=lambda *_: nodes)
    findings = observer.findings()
    # A rank that handed nothing over is like the first one.
    abouts: list[About] = [(each or found[0] or {})["about"] for each in found]
    blocks = 2 if of_caps else 1  # the caps of a tuning are in the second
    plan = Plan(cases=of_caps or (case,), skipped=(), protocol=protocol.replace(launches=blocks), seed=0)
    with free_store(out, log) as store:
        session_id, block = session_of(store, plan, observer.group, abouts, label, out)
        launched.block = block
        store.append(session_id, launched)
        for place, arm in enumerate(launched.arms):
            arm.block, arm.position = block + 1, place
            store.append(session_id, arm)
        for finding in findings:
            store.add_finding(session_id, finding.replace(case_id=case.id))
        if not store.has_finding(session_id, WATCHED):
            store.add_finding(session_id, LOOP)
        store.finish_session(session_id)
        path = store.path
    from parabench.analysis.ranking.words import closing_lines
    from parabench.analysis.session import session_data
    from parabench.analysis.warnings.launches import session_warnings
    from parabench.report.build import write_report

    stored = load(path)
    report = write_report(stored, path.with_name(REPORT_NAME), str(session_id))
    data = session_data(stored, session_id)
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


def results_of(group: Group, found: Sequence[Mapping[str, Any] | None], waited_s: float) -> list[NodeResult]:
    """Return the result of each node, from what its ranks sent within `waited_s` seconds.

    If a rank was asked to stop, errors of ranks that only lost their connection to it are removed.
    """
    results = []
    for rank, each in enumerate(found):
        if each:
            result = NodeResult.from_json(each["result"])
        else:
            host = group.hosts[rank]
            lost = f"rank {rank} ({host}) handed nothing over within {max(1, round(waited_s))} s of rank 0's end"
            ranks = range(rank, rank + 1)
            result = NodeResult.silent(rank // group.ranks_per_node, host, ranks, step_marks(WIDTH, None), lost=lost)
        results.append(result)
    if any(each and each["stopped"] for each in found):
        for result in results:
            if (error := result.reports[0].error) is not None and is_echo(error):
                result.reports[0].error, result.outcome = None, ProcessOutcome(ok=True)
    nodes = group_by_node(results, group.ranks_per_node)
    if all(is_echo(error) for each in results if (error := each.reports[0].error)):
        nodes[0].lost = next((each.lost for each in results if each.lost), None)
    return nodes


def group_by_node(parts: Sequence[NodeResult], ranks_per_node: int) -> list[NodeResult]:
    """Join results of one rank each, which are in the order of ranks, into one result per node."""
    return [_node(parts[first : first + ranks_per_node]) for first in range(0, len(parts), ranks_per_node)]


def _node(parts: Sequence[NodeResult]) -> NodeResult:
    ok = all(part.outcome.ok for part in parts)
    # Times count from the start of the node's first rank, but readings of a rank from its own start.
    first = next((part for part in parts if part.lost is None), parts[0])
    samplers = [part.sampler for part in parts if part.sampler]
    costs = [each["cpu_s"] for each in samplers]
    unread = {name: why for each in reversed(samplers) for name, why in each["unread"].items()}
    cost = {"cpu_s": None if None in costs else sum(costs), "unread": unread}
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
        sampler=samplers[0] | cost if samplers else {},
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


def session_of(
    store: Store, plan: Plan[Case, Protocol], group: Group, abouts: Sequence[About], label: str | None, out: Path
) -> tuple[int, int]:
    """Return the session of the launch, and its repetition: the last session with the same label, script and
    configurations, else a new one. The caps of a tuning are in the next repetition."""
    script = Path(getattr(sys.modules["__main__"], "__file__", None) or "python").name
    last = store.last_labelled(label, script) if label is not None else None
    if last is not None:
        before: Plan[Case, Protocol] = Plan.from_dict(last.plan)
        if before.cases == plan.cases:
            more = before.replace(protocol=before.protocol.replace(launches=before.blocks + plan.blocks))
            store.replan(last.id, more.to_dict())
            return last.id, before.blocks
    each = group.ranks_per_node
    hosts = [abouts[first : first + each] for first in range(0, group.size, each)]
    machine = machine_of(hosts[0], this_machine(), group)
    request = TrainingRequest(argv=[script, *sys.argv[1:]], out=out, label=label, suite=None)
    planned = Planned(plan=plan, suite=script, question=QUESTION)
    here, nodes = environment_of(hosts[0]), node_records(hosts)
    return begin_session(store, request, planned, machine, nodes=nodes, about=here).session_id, 0


# -- the rows of the loop in the results database ---------------------------------------------------------------------


# Among ranks whose mean step differs by no more than this share, others wait for the rank that computes least.
NEAR = 0.01

UNCOMPARED = Finding(
    UNVERIFIED,
    "Its losses were not compared: it is a training of your own, and only what parabench builds has a reference.",
    "Nothing is to be done.",
)


def thinned(steps: int, recorded: int) -> Finding:
    """Return the warning that only a sample of the steps of a long loop is recorded."""
    return Finding(
        "steps_sampled",
        f"The loop took {steps:,} steps; {recorded:,} of them are recorded: the first ones, instrumented ones, and a "
        "random sample of the others, the same on every rank.",
        "Nothing is to be done: step time and parts count all steps; other figures are estimates from the sample.",
    )


def switched_off(rank: int, instrument: str, why: str) -> Finding:
    """Return the warning that an instrument of a rank failed."""
    return Finding(
        "instrument_off",
        f"Rank {rank} switched off {instrument} after an error ({why}); the training and other instruments went on.",
        "Report the error with the model's class, the optimizer, and the versions of torch and parabench.",
    )


def only_warm_up(steps: int, first: int, tuning: bool) -> Finding:
    """Return the warning that no step of the loop counts."""
    what, taken = "warm-up and tuning" if tuning else "warm-up", f"{steps:,} step{'' if steps == 1 else 's'}"
    return Finding(
        "no_measured_step",
        f"The loop took {taken}, and the first {first} are {what}, so its step time is unknown.",
        "Take more steps, or give a smaller warmup: watch(..., warmup=2).",
    )


@dataclass(frozen=True, slots=True)
class WatchWorkload(Workload):
    """The steps of a loop that has run already. `of_caps` has the case of each bucket cap of a tuning."""

    schedule: Schedule
    of_caps: tuple[Case, ...] = ()

    def measure(self, spec: LaunchSpec, env: RankEnv, rank: int) -> RankReport:
        raise AssertionError("the loop has run already")

    def marks(self, spec: LaunchSpec) -> MarkLayout:
        return step_marks(WIDTH, None)

    def record(self, launch: Launch, spec: LaunchSpec, nodes: Sequence[NodeResult]) -> None:
        ranks = list(of_ranks(nodes))
        cases = {report.rank: report.of(0) for report, _ in ranks}
        steps = max(case.steps for case in cases.values())
        record_ranks(launch, ranks, self.schedule.phases(steps))
        launch.findings.append(UNCOMPARED)
        launch.findings += [
            switched_off(rank, instrument, why)
            for rank, case in cases.items()
            for instrument, why in case.failures.items()
        ]
        loop = slowest_loop(cases)
        if loop is not None:
            launch.facts["loop"] = loop
        if launch.status is Status.OK and steps <= self.schedule.first_measured:
            tuning = self.schedule.tuning is not None
            launch.findings.append(only_warm_up(steps, self.schedule.first_measured, tuning))
        if launch.status is Status.OK and min(each.steps for each in cases.values()) >= self.schedule.first_measured:
            launch.arms += self._arms(launch, ranks)
        # All steps of the tuning are recorded, so its arms have no such warning.
        recorded = max(len(case.marked or ()) for case in cases.values())
        if recorded < steps:
            launch.findings.append(thinned(steps, recorded))

    def _arms(self, launch: Launch, ranks: Sequence[tuple[RankReport, Marks]]) -> Iterator[Launch]:
        """Yield a launch for each cap of a tuning; its steps are the first rows of marks."""
        if self.schedule.tuning is None:
            return
        shared = {"cases": [case.id for case in self.of_caps], "protocol": self.schedule.tuning.to_dict()}
        for place, arm in shares_of(launch, self.of_caps, range(len(self.of_caps))):
            rows, phases = self.schedule.of_cap(place)
            arm.facts = {"turns": {**shared, "place": place}, "counts": Counts(warmup=0, measured=len(rows)).to_dict()}
            arm.device_samples, arm.host_samples = [], []
            for report, marks in ranks:
                arm.samples += samples(marks[rows], report.rank, CaseReport(), phases)
            yield arm


def slowest_loop(cases: Mapping[int, CaseReport]) -> dict[str, Any] | None:
    """Return the account of the rank with the longest mean step, with its `rank`; `None` if no rank has one.

    Ranks that wait for one another have the same mean step. Of these, the rank with the shortest forward and backward
    is shown: the others wait for it there.
    """

    def mean(loop: Mapping[str, Any]) -> float:
        return float(sum(loop["seconds"].values()) / loop["steps"])

    def computing(loop: Mapping[str, Any]) -> float:
        computes = ("forward_s", "backward_s", "forward_backward_s")
        return float(sum(loop["seconds"].get(part, 0.0) for part in computes) / loop["steps"])

    loops = [{"rank": rank, **case.loop} for rank, case in cases.items() if case.loop is not None]
    longest = max(map(mean, loops), default=0.0)
    return min((loop for loop in loops if mean(loop) >= (1 - NEAR) * longest), key=computing, default=None)
