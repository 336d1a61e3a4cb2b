"""Record a watched loop on rank 0: write the results of all ranks to a session, and write its report."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from parabench.launch.launcher import launch
from parabench.launch.outcome import is_echo, shares_of
from parabench.launch.processes import ProcessOutcome
from parabench.launch.rank import error_of
from parabench.launch.results import MarkLayout, Marks, NodeResult, RankReport, of_ranks
from parabench.launch.spec import LaunchSpec, RankEnv, Workload
from parabench.machine.machine import this_machine
from parabench.plan.case import Case
from parabench.plan.plan import Plan
from parabench.plan.protocol import Protocol
from parabench.plan.schedule import MOST_STEPS
from parabench.probes import CaseReport
from parabench.probes.sampler import Sampler
from parabench.session.request import Planned, Request
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
from parabench.watching.group import LOOK_S, Group, describe_rank, environment_of, machine_of
from parabench.watching.loop import WIDTH
from parabench.watching.observer import Observer
from parabench.watching.schedule import Schedule
from parabench.workloads.steps import phase_windows, record_case, samples, step_marks

# The longest wait for a results database that another run locks. Recording a loop takes less.
BUSY_S = 10.0

# The warnings that are printed at the end: about changes of the loop, and about missing measurements.
PRINTED = (
    "data_bound", "launch_bound", "slow_rank", "straggler", "slow_node", "model_uncalled", BATCH_UNSEEN,
    "instrument_off", "no_measured_step",
)  # fmt: skip

# If the mean steps of ranks differ by no more than this share, the ranks wait for each other.
NEAR = 0.01
COMPUTES = ("forward_s", "backward_s", "forward_backward_s")

LOOP = Finding(
    WATCHED,
    "This is your own training loop. Each run is one launch, and one launch does not show how much runs differ.",
    "Run it again with the same label, watch(..., label='before'): runs with one label are launches of one session.",
)
UNCOMPARED = Finding(
    UNVERIFIED,
    "The losses were not compared: only models that parabench builds have a reference.",
    "No action is needed.",
)


def thinned(steps: int, recorded: int) -> Finding:
    """Return the warning that only a sample of the steps of a long loop is recorded."""
    return Finding(
        "steps_sampled",
        f"The loop took {steps:,} steps, and {recorded:,} are recorded: the first steps, instrumented steps, and a "
        "random sample of the others, the same on every rank.",
        "No action is needed: step time and parts count all steps; other figures are estimates from the sample.",
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


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """All results of one rank, which it sends to rank 0."""

    report: RankReport
    marks: Marks
    # The start of the block in seconds on the host's clock. The times of samples count from here.
    began_s: float
    about: dict[str, Any]  # of `group.describe_rank`
    stopped: bool  # a signal or sys.exit ended the block
    device_samples: list[DeviceSample]
    host_samples: list[HostSample]
    sampler: dict[str, Any]

    @classmethod
    def of(
        cls, observer: Observer, sampler: Sampler, clock: dict[str, float] | None, error: BaseException | None
    ) -> RankResult:
        """Read the results of this rank at the end of its block, which may have ended with `error`."""
        group = observer.group
        stopped = isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit))
        report, marks = observer.read(None if error is None or stopped else error_of(error))
        report.clock = clock
        return cls(
            report=report,
            marks=marks,
            began_s=observer.began_s,
            about=describe_rank(group, this_machine()),
            stopped=stopped,
            device_samples=sampler.samples(DeviceSample),
            # All ranks of a host read the same load.
            host_samples=[s for s in sampler.samples(HostSample) if s.rank is not None or group.local_rank == 0],
            sampler=sampler.facts(),
        )

    @classmethod
    def from_json(cls, values: Any) -> RankResult | None:
        """Return the results from the output of `as_json`; `None` from `None`."""
        if not values:
            return None
        return msgspec.convert(values, cls, str_keys=True, dec_hook=lambda _, numbers: np.array(numbers, np.float64))


def record(observer: Observer, found: Sequence[RankResult | None], waited_s: float) -> None:
    """Store the results of all ranks, write the report, and log the conclusions.

    `found` has the results of each rank; `None` for a rank that sent none within `waited_s` seconds. Raises UsageError
    if the folder cannot be written.
    """
    nodes = node_results(observer.group, found, waited_s)
    steps = max(report.of(0).steps for report, _ in of_ranks(nodes))
    case, protocol = observer.case(), protocol_of(observer.schedule, steps)
    of_caps = tuple(case.replace(bucket_mib=cap) for cap in observer.caps)
    spec = LaunchSpec.of(case, protocol, time.perf_counter() - nodes[0].began_s)
    launched = launch(spec, workload=WatchWorkload(observer.schedule, of_caps), run=lambda *_: nodes)
    findings = observer.findings()
    repetitions = 2 if of_caps else 1  # the caps of a tuning are in the second
    plan = Plan(cases=of_caps or (case,), skipped=(), protocol=protocol.replace(launches=repetitions), seed=0)
    with free_store(observer.out, observer.log) as store:
        session_id, repetition = session_of(store, plan, observer, found)
        launched.repetition = repetition
        store.append(session_id, launched)
        for position, arm in enumerate(launched.arms):
            arm.repetition, arm.position = repetition + 1, position
            store.append(session_id, arm)
        for finding in findings:
            store.add_finding(session_id, finding.replace(case_id=case.id))
        if not store.has_finding(session_id, WATCHED):
            store.add_finding(session_id, LOOP)
        store.finish_session(session_id)
        path = store.path
    from parabench.analysis.ranking.best import closing_lines
    from parabench.analysis.session import session_data
    from parabench.analysis.warnings.launches import session_warnings
    from parabench.report.build import write_report

    stored = load(path)
    report = write_report(stored, path.with_name(REPORT_NAME), str(session_id))
    data = session_data(stored, session_id)
    warnings = (*session_warnings(data), *findings, *launched.findings)
    printed = dict.fromkeys(finding.message for finding in warnings if finding.code in PRINTED)
    for line in (*closing_lines(data), *printed, f"store:  {path}@{session_id}", f"report: {report}"):
        observer.log(line)


@contextlib.contextmanager
def free_store(out: Path, log: Callable[[str], None]) -> Iterator[Store]:
    """Open the results database of a folder, or of a new folder if another run locks it for longer than BUSY_S."""
    until = time.monotonic() + BUSY_S
    with contextlib.ExitStack() as on:
        store: Store | None = None
        while store is None:
            try:
                store = on.enter_context(store_in(out))
            except FolderInUse as why:
                if time.monotonic() > until:
                    out = out.with_name(f"{out.name}-{os.getpid()}")
                    log(f"watch: {why}; the session is in {str(out)!r}")
                else:
                    time.sleep(LOOK_S)
        yield store


def node_results(group: Group, found: Sequence[RankResult | None], waited_s: float) -> list[NodeResult]:
    """Join the results of the ranks to one result per node. The arguments are as in `record`.

    If a signal stopped a rank, other ranks may lose their connection to it. These errors are removed.
    """
    stopped = any(each.stopped for each in found if each)
    reports = [each.report if each else RankReport(rank=rank, reported=False) for rank, each in enumerate(found)]
    for report in reports:
        if stopped and report.error is not None and is_echo(report.error):
            report.error = None
    nothing = step_marks(WIDTH, None).nothing()
    nodes: list[NodeResult] = []
    for first in range(0, group.size, group.ranks_per_node):
        own = slice(first, first + group.ranks_per_node)
        parts = [each for each in found[own] if each]
        ok = all(report.reported and report.error is None for report in reports[own])
        # Times of samples count from the start of their rank. They are moved to the start of the node's first rank.
        began_s = parts[0].began_s if parts else 0.0
        later = [(each, each.began_s - began_s) for each in parts]
        costs = [each.sampler["cpu_s"] for each in parts]
        unread = {name: why for each in reversed(parts) for name, why in each.sampler["unread"].items()}
        cost = {"cpu_s": None if None in costs else sum(costs), "unread": unread}
        node = NodeResult(
            node=len(nodes),
            host=group.hosts[first],
            first_rank=first,
            reports=reports[own],
            marks=[each.marks if each else nothing for each in found[own]],
            outcome=ProcessOutcome(ok=ok),
            began_s=began_s,
            tails=[] if ok else [""] * group.ranks_per_node,
            device_samples=[s._replace(t_s=s.t_s + by_s) for each, by_s in later for s in each.device_samples],
            host_samples=[s._replace(t_s=s.t_s + by_s) for each, by_s in later for s in each.host_samples],
            sampler=parts[0].sampler | cost if parts else {},
        )
        nodes.append(node)
    if None in found and all(is_echo(report.error) for report in reports if report.error):
        rank = found.index(None)
        within = f"{max(1, round(waited_s))} s of rank 0's end"
        nodes[0].lost = f"rank {rank} ({group.hosts[rank]}) sent no results within {within}"
    return nodes


def protocol_of(schedule: Schedule, steps: int) -> Protocol:
    """Return the protocol of a loop that took this number of steps. Counts are limited to what a protocol can have."""
    counts = Counter(schedule.phases(steps))
    return Protocol(
        warmup=max(2, counts[Phase.WARMUP]),
        steps=max(1, min(counts[Phase.MEASURE], MOST_STEPS)),
        instrumented=min(counts[Phase.INSTRUMENT], MOST_STEPS),
        launches=1,
        rounds=0,
    )


def session_of(
    store: Store, plan: Plan[Case, Protocol], observer: Observer, found: Sequence[RankResult | None]
) -> tuple[int, int]:
    """Return the id of the session for the loop, and the repetition of its launch.

    It is the last session if that has the same label, script and configurations, else a new one.
    """
    group, label = observer.group, observer.label
    script = Path(getattr(sys.modules["__main__"], "__file__", None) or "python").name
    last = store.last_session(label, script) if label is not None else None
    if last is not None:
        before: Plan[Case, Protocol] = Plan.from_dict(last.plan)
        if before.cases == plan.cases:
            more = before.replace(protocol=before.protocol.replace(launches=before.repetitions + plan.repetitions))
            store.replan(last.id, more.to_dict())
            return last.id, before.repetitions
    # A rank without results is assumed to have the same device as the first one with results.
    known = next(each for each in found if each)
    abouts = [(each or known).about for each in found]
    hosts = [abouts[first : first + group.ranks_per_node] for first in range(0, group.size, group.ranks_per_node)]
    machine = machine_of(hosts[0], this_machine(), group)
    request = Request(argv=[script, *sys.argv[1:]], out=observer.out, label=label, suite=None)
    planned = Planned(plan=plan, suite=script, question="Where does the time of this training's steps go?")
    here, *others = map(environment_of, hosts)
    # The first host's record is completed by `begin_session`.
    nodes = [{"node": 0}, *({"node": node, **each} for node, each in enumerate(others, 1))] if others else []
    return begin_session(store, request, planned, machine, nodes=nodes, about=here).session_id, 0


@dataclass(frozen=True, slots=True)
class WatchWorkload(Workload):
    """The workload of a loop that has ended, which only records. `of_caps` has the case of each tuned bucket cap."""

    schedule: Schedule
    of_caps: tuple[Case, ...] = ()

    def measure(self, spec: LaunchSpec, env: RankEnv, rank: int) -> RankReport:
        raise AssertionError("the loop has ended")

    def marks(self, spec: LaunchSpec) -> MarkLayout:
        return step_marks(WIDTH, None)

    def record(self, launch: Launch, spec: LaunchSpec, nodes: Sequence[NodeResult]) -> None:
        ranks, first = list(of_ranks(nodes)), self.schedule.first_measured
        cases = {report.rank: report.of(0) for report, _ in ranks}
        steps = max(case.steps for case in cases.values())
        phases = self.schedule.phases(steps)
        record_case(launch, 0, ranks, phases)
        launch.facts["phases"] = phase_windows(ranks, phases)
        failures = [(rank, *failure) for rank, case in cases.items() for failure in case.failures.items()]
        launch.findings += [UNCOMPARED, *(switched_off(*failure) for failure in failures)]
        if (loop := slowest_loop(cases)) is not None:
            launch.facts["loop"] = loop
        if launch.status is Status.OK and steps <= first:
            launch.findings.append(only_warm_up(steps, first, self.schedule.tuning is not None))
        if launch.status is Status.OK and min(each.steps for each in cases.values()) >= first:
            launch.arms += self._arms(launch, ranks)
        # All steps of the tuning are recorded, so this is not a warning of its launches.
        recorded = max(len(case.marked or ()) for case in cases.values())
        if recorded < steps:
            launch.findings.append(thinned(steps, recorded))

    def _arms(self, launch: Launch, ranks: Sequence[tuple[RankReport, Marks]]) -> Iterator[Launch]:
        """Yield a launch with the steps of each tuned cap. All of them are recorded, in the first rows of `marks`."""
        if self.schedule.tuning is None:
            return
        shared = {"cases": [case.id for case in self.of_caps], "protocol": self.schedule.tuning.to_dict()}
        for index, arm in shares_of(launch, self.of_caps, range(len(self.of_caps))):
            rows, phases = self.schedule.of_cap(index)
            arm.facts = {"turns": {**shared, "place": index}, "counts": {"warmup": 0, "measured": len(rows)}}
            arm.device_samples, arm.host_samples = [], []
            for report, marks in ranks:
                arm.samples += samples(marks[rows], report.rank, CaseReport(), phases)
            yield arm


def slowest_loop(cases: Mapping[int, CaseReport]) -> dict[str, Any] | None:
    """Return the `loop_time` of the rank with the longest mean step, with its "rank"; `None` if no rank has one."""
    # If ranks wait for each other, they have the same mean step. Then the rank with the shortest forward and backward
    # is the slowest, because the others wait for it there.
    loops = []
    for rank, case in cases.items():
        if case.loop is not None:
            seconds, steps = case.loop["seconds"], case.loop["steps"]
            computing = sum(seconds.get(part, 0.0) for part in COMPUTES) / steps
            loops.append((sum(seconds.values()) / steps, computing, {"rank": rank, **case.loop}))
    longest = max((mean for mean, *_ in loops), default=0.0)
    near = [(computing, loop) for mean, computing, loop in loops if mean >= (1 - NEAR) * longest]
    return min(near, key=lambda each: each[0])[1] if near else None
