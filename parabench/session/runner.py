"""Run the remaining launches of a plan. Each launch is verified and stored when it ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from parabench.analysis.launch_number import launch_number
from parabench.collectives.nccl import is_nccls
from parabench.launch.spec import LaunchSpec
from parabench.machine import accelerator
from parabench.machine.machine import Room
from parabench.plan.cohorts import cohorts, twin_of
from parabench.plan.plan import Plan, PlannedLaunch
from parabench.plan.protocol import DEADLINE_FACTOR, LEAST_DEADLINE_S
from parabench.plan.schedule import TrainingSchedule
from parabench.session.deadlines import first_deadline_s
from parabench.session.progress import Progress
from parabench.store.record import (
    EXPLAIN_REPETITION,
    FIRST_REPETITION,
    PIN_REFUSED,
    REFERENCE_REPETITION,
    TWIN_REPETITION,
    UNVERIFIED,
    Finding,
    Launch,
    Phase,
    Status,
)
from parabench.workloads import WORKLOADS
from parabench.workloads.verify import Reference, reference_of, verify

# Runs a launch: `launcher.launch` with the nodes that it needs, or a fake in tests.
Executor = Callable[[LaunchSpec], Launch]

REFERENCE_TRIES = 2
# The steps of a launch for NCCL's debug log. DDP has its final buckets after the first step.
EXPLAINING = TrainingSchedule(warmup=2, timed=(1,), explain=True)
# NCCL's message if a pin leaves no algorithm (src/enqueue.cc), and torch's name of that error.
_INVALID_USAGE = re.compile("invalid usage|ncclInvalidUsage|no algorithm/protocol available", re.IGNORECASE)


def peak_metric(device: str) -> str:
    """Return the metric of a rank's peak memory, of its accelerator or its process."""
    return "peak_reserved_bytes" if device == accelerator.TYPE else "peak_rss_bytes"


def _no_launch(*_: Any, **__: Any) -> Any:
    raise AssertionError("this runner launches nothing")


@dataclass(kw_only=True)
class Runner:
    """Run the launches of a plan.

    Training runs are verified against one device, and collectives against exact values in their ranks. Compute-only
    launches are not verified, because their ranks do not communicate.

    Args:
        launch: runs a launch.
        keep: stores a launch.
        done: the pairs (case id, repetition) of launches that a resumed session has.
        replan: stores a plan after a case was removed. Without it, no case is removed.
        traces: the folder for traces.
        room: the bytes of memory for a shared launch, by device.
    """

    plan: Plan[Any, Any]
    launch: Executor = _no_launch
    keep: Callable[[Launch], None] = _no_launch
    progress: Progress = field(default_factory=Progress)
    done: Collection[tuple[str, int]] = ()
    replan: Callable[[Plan[Any, Any]], None] | None = None
    traces: Path | None = None
    room: Room | None = None
    # The results of single-device references, by case id.
    references: dict[str, Reference] = field(default_factory=dict)
    # The seconds of a step by case id, and the ids of failed cases, which share no launch from then on.
    step_times: dict[str, float | None] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    # The peak memory of each rank in bytes, by case id: of its accelerator, or of its process on the CPU.
    peaks: dict[str, list[float]] = field(default_factory=dict)
    # The seconds of a separate launch by case id. Without one, the seconds of the case in its first shared launch.
    _wall_s: dict[str, float] = field(default_factory=dict)
    # The seconds of single-device references by case id. A reference may have fewer steps than its case.
    _reference_s: dict[str, float] = field(default_factory=dict)
    _failed_references: dict[str, int] = field(default_factory=dict)

    # -- the order of launches -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run all remaining launches of the plan. Raises Interrupted if asked to stop."""
        left = self.plan.launches(self.done)
        for case in dict.fromkeys(each.case for each in left):
            self.run_nccl_probe(case)
        for group in self.launches_of(left):
            refused = {each.case for each in self.plan.skipped}
            runs = [each for each in group if each.case not in refused]
            for each in runs:
                self.run_reference(each.case)
            if runs:
                self.run_launch(runs, shared=len(group) > 1)

    def launches_of(self, planned: Sequence[PlannedLaunch[Any]]) -> Iterator[tuple[PlannedLaunch[Any], ...]]:
        """Yield the planned launches in groups that share a launch."""
        for repetition, of_repetition in groupby(planned, lambda each: each.repetition):
            by_case = {each.case: each for each in of_repetition}
            if not self._shares(repetition):
                yield from ((each,) for each in by_case.values())
                continue
            failed = [case for case in by_case if case.id in self.failed]
            groups = cohorts([case for case in by_case if case not in failed], self.room, self.held())
            for group in (*groups, *((case,) for case in failed)):
                yield tuple(by_case[case] for case in group)

    def _shares(self, repetition: int) -> bool:
        """Return whether cases may share launches in this repetition."""
        return bool(self.plan.protocol.takes_turns and repetition >= self.plan.protocol.first_shared)

    def expected(self) -> Iterator[tuple[Any, int, Any]]:
        """Yield (case, repetition, protocol) of all remaining launches, if no launch fails and racing adds none.

        A shared launch yields each of its cases.
        """
        left = self.plan.launches(self.done)
        unshared = {cohort[0] for cohort in cohorts(self.plan.cases, self.room) if len(cohort) == 1}
        for each in left:
            shared = self._shares(each.repetition) and each.case not in unshared
            yield each.case, each.repetition, self._protocol([each.case], each.repetition, shared=shared)
        cases = list(dict.fromkeys(each.case for each in left))
        if self._verifies:
            singles = {single.id: single for single in (case.reference() for case in cases)}
            yield from (
                (one, REFERENCE_REPETITION, self._single)
                for name, one in singles.items()
                if name not in self.references
            )
        yield from ((case, EXPLAIN_REPETITION, EXPLAINING) for case in cases if self._is_probed(case))

    # -- launches that do not count ------------------------------------------------------------------------------------

    def run_nccl_probe(self, case: Any) -> None:
        """Read NCCL's choices, and whether it accepts a pinned algorithm, in a launch that does not count."""
        if self._is_probed(case):
            launch = self._launch_uncounted(case, EXPLAIN_REPETITION, EXPLAINING)
            self._blame_pin(launch)
            self._finish(launch)

    def _is_probed(self, case: Any) -> bool:
        on_nccl = case.backend == "nccl" and case.world_size > 1
        return self._verifies and on_nccl and (case.id, EXPLAIN_REPETITION) not in self.done

    def run_reference(self, case: Any) -> None:
        """Launch the single-device reference of a case, once per session."""
        if not self._verifies:
            return
        single = case.reference()
        # After a failure, there is one more attempt, not one before every launch.
        tries = self._failed_references.get(single.id, 0)
        if self.references.get(single.id) is None and tries < REFERENCE_TRIES:
            launch = self._launch_uncounted(single, REFERENCE_REPETITION, self._single)
            self._finish(launch)
            if launch.status is Status.OK:
                self.references[single.id] = reference_of(launch)
            else:
                self._failed_references[single.id] = tries + 1

    @property
    def _verifies(self) -> bool:
        """Return whether launches are compared with a single-device reference."""
        return WORKLOADS[self.plan.kind].verified

    @property
    def _single(self) -> TrainingSchedule:
        """Return the steps of single-device references."""
        single: TrainingSchedule = self.plan.protocol.alone().by_steps()
        return single

    def _launch_uncounted(self, case: Any, repetition: int, schedule: TrainingSchedule) -> Launch:
        self.progress.launching([case], repetition)
        launch = self.launch(self._spec((case,), schedule))
        launch.repetition = repetition
        return launch

    # -- launches of one or several cases ------------------------------------------------------------------------------

    def spec_of(self, cases: tuple[Any, ...], repetition: int, *, shared: bool) -> LaunchSpec:
        """Return the specification of a launch of these cases. For `--aa`, a shared launch has a copy of one case."""
        if shared and self.plan.protocol.aa_test:
            cases = (*cases, twin_of([case for case in self.plan.cases if case in cases]))
        return self._spec(cases, self._protocol(cases, repetition, shared=shared))

    def _protocol(self, cases: Sequence[Any], repetition: int, *, shared: bool) -> Any:
        plan = self.plan
        if not shared:
            return plan.protocol.alone()
        # With explicit rounds, the steps do not depend on measurements, because they must be equal in variants of an
        # `ab`.
        device = cases[0].device
        by_time = plan.protocol.races or device == accelerator.TYPE
        step_s = [self.step_times.get(case.id) if by_time else None for case in cases]
        return plan.protocol.shared(f"{plan.seed}, {repetition}", step_s, device)

    def _spec(self, cases: tuple[Any, ...], protocol: Any) -> LaunchSpec:
        return LaunchSpec(
            kind=self.plan.kind,
            cases=cases,
            protocol=protocol,
            deadline_s=self.deadline_s(cases, protocol),
            traces=None if self.traces is None else str(self.traces),
        )

    def run_launch(self, planned: Sequence[PlannedLaunch[Any]], *, shared: bool) -> None:
        """Run one launch of all given cases. If it fails, launch the other cases again without the one that failed.

        If the case that failed is unknown, each case has a separate launch.
        """
        left = {each.case: each for each in planned}
        while left:
            cases, repetition = list(left), planned[0].repetition
            spec = self.spec_of(tuple(cases), repetition, shared=shared)
            rounds = spec.protocol.most_rounds(spec.cases) if shared else None
            self.progress.launching(cases, repetition, rounds)
            launch = self.launch(spec)
            kept = self.keep_launch(launch, spec, left)
            if rounds is not None and launch.status is Status.OK:
                self.progress.shared(len(launch.arms), repetition, rounds, launch.wall_s)
            for case in kept:
                del left[case]
            if not kept:
                self.failed |= {case.id for case in left}
                for each in left.values():
                    self.run_launch([each], shared=False)
                return

    def keep_launch(self, launch: Launch, spec: LaunchSpec, planned: Mapping[Any, PlannedLaunch[Any]]) -> list[Any]:
        """Verify and store a launch, or each case's part of a shared launch. Return the stored cases."""
        kept: list[Any] = []
        shared = spec.protocol.takes_turns
        for place, arm in enumerate(launch.arms if shared else [launch]):
            # The copy of an A/A test comes after its case.
            twin = arm.case in kept
            first = planned[arm.case]
            arm.repetition, arm.position = (TWIN_REPETITION, place) if twin else (first.repetition, first.position)
            self._judge(arm)
            self._finish(arm)
            kept += [] if twin else [arm.case]
        return kept

    def held(self) -> dict[str, float]:
        """Return the bytes of memory that each case used: per accelerator, or per node on the CPU."""
        return {
            case.id: max(peaks) if case.device == accelerator.TYPE else sum(peaks) / case.nodes
            for case in self.plan.cases
            if (peaks := self.peaks.get(case.id))
        }

    # -- the end of a launch -------------------------------------------------------------------------------------------

    def _judge(self, launch: Launch) -> None:
        """Verify a training run. For other launches, detect algorithms that NCCL refuses, as `run_nccl_probe` does."""
        case: Any = launch.case
        if not self._verifies:
            if launch.failure and _INVALID_USAGE.search(launch.failure.message):
                self._blame_pin(launch)
            return
        reference = self.references.get(case.reference().id)
        verify(launch, reference)
        # A failed launch has no losses to compare.
        if reference is None and launch.status is Status.OK:
            launch.findings.append(
                Finding(
                    UNVERIFIED,
                    "The single-device reference did not run, so this launch's losses were not compared.",
                    "Make the model or the batch smaller, until one device can run it.",
                    case.id,
                )
            )

    def _finish(self, launch: Launch) -> None:
        """Store a launch, and remember its results that later launches depend on."""
        case: Any = launch.case
        if launch.status is Status.OK and launch.repetition == FIRST_REPETITION and case.kind == "training":
            self.step_times[case.id] = launch_number(launch.step_times(Phase.MEASURE), case.device)
            metric = peak_metric(case.device)
            if peaks := [each.value for each in launch.samples if each.metric == metric and each.value]:
                self.peaks[case.id] = peaks
        if launch.status is not Status.OK and launch.repetition >= FIRST_REPETITION:
            self.failed.add(case.id)
        ended = launch.status in (Status.OK, Status.WRONG) and launch.repetition != EXPLAIN_REPETITION
        if ended and launch.repetition == REFERENCE_REPETITION:
            self._reference_s[case.id] = launch.wall_s
        elif ended and ("turns" not in launch.facts or case.id not in self._wall_s):
            self._wall_s[case.id] = launch.wall_s
        self.keep(launch)
        self.progress.launched(launch)
        for finding in launch.findings:
            if finding.code == PIN_REFUSED and self.replan is not None:
                self.plan = self.plan.without(case, finding.message)
                self.replan(self.plan)

    def _blame_pin(self, launch: Launch) -> None:
        """Add the warning that removes a case from the plan, if NCCL refuses its pinned algorithm."""
        case = launch.case
        if self.replan is None or not is_nccls(case.algorithm) or launch.status is not Status.FAILED:
            return
        why = launch.failure.message if launch.failure else "it failed"
        message = f"{case.label}: NCCL could not be pinned to {case.algorithm} ({why}), so it was not launched again."
        advice = (
            "See the launch's error for what NCCL lacks (a switch that reduces, CollNet); native is its own choice."
        )
        launch.findings.append(Finding(PIN_REFUSED, message, advice, case.id))

    # -- deadlines -----------------------------------------------------------------------------------------------------

    def deadline_s(self, cases: Sequence[Any], protocol: Any) -> float:
        """Return the deadline of a launch of these cases, in seconds.

        Without a requested deadline, this is ten times the duration of earlier launches, plus an estimate for new
        cases.
        """
        requested_s = self.plan.protocol.deadline_s
        if requested_s is not None:
            return float(requested_s * len(cases))
        new = [case for case in cases if case.id not in self._wall_s]
        known_s = sum(self._wall_s.get(case.id, 0.0) for case in cases)
        if protocol.takes_turns:  # earlier launches may have had fewer steps; collectives have no step times
            for place, case in enumerate(cases):
                if step_s := self.step_times.get(case.id):
                    known_s += sum(protocol.counts(place)) * step_s
        known_s = max(LEAST_DEADLINE_S, DEADLINE_FACTOR * known_s) if known_s or not new else 0.0
        if not new:
            return known_s
        if not self._verifies:
            return known_s + first_deadline_s(new, protocol)
        if protocol.takes_turns:  # each case is built and compiled as in a separate launch
            own = self.plan.protocol.alone()
            return known_s + first_deadline_s(new, own, longer=max(1.0, protocol.all_steps / own.all_steps))
        return known_s + first_deadline_s(new, protocol, self._reference_s.get(new[0].reference().id))
