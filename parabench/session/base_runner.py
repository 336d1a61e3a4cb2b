"""Run the rest of a plan of any kind. Each launch is judged, and stored when it ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Generic, cast

from parabench.collectives.nccl import is_nccls
from parabench.launch.spec import LaunchSpec
from parabench.machine.machine import Room
from parabench.plan.plan import C, P, Plan, PlannedLaunch
from parabench.plan.protocol import DEADLINE_FACTOR, LEAST_DEADLINE_S
from parabench.session.progress import Progress
from parabench.store.record import (
    EXPLAIN_BLOCK,
    FIRST_BLOCK,
    PIN_REFUSED,
    REFERENCE_BLOCK,
    TWIN_BLOCK,
    Finding,
    Launch,
    Status,
)
from parabench.workloads.verify import Reference

# Runs a launch: `launcher.launch` with the nodes that it needs, or a fake in tests.
Executor = Callable[[LaunchSpec], Launch]


def launches_left(plan: Plan[C, P], done: Collection[tuple[str, int]]) -> list[PlannedLaunch[C]]:
    """Return the launches to come, without references. `done` holds (case id, block)."""
    return [each for each in plan.launches() if (each.case.id, each.block) not in done]


def _nobody(*_: Any, **__: Any) -> Any:
    raise AssertionError("this runner launches nothing")


@dataclass(kw_only=True)
class Runner(Generic[C, P]):
    """Run a plan.

    Args:
        keep: stores a launch.
        done: the (case id, block) that a resumed session has.
        replan: stores a plan from which a case was removed; without it, none is removed.
        traces: the folder for traces.
        room: the memory for cases that share a launch.
    """

    plan: Plan[C, P]
    launch: Executor = _nobody
    keep: Callable[[Launch], None] = _nobody
    progress: Progress = field(default_factory=Progress)
    done: Collection[tuple[str, int]] = ()
    replan: Callable[[Plan[C, P]], None] | None = None
    traces: Path | None = None
    room: Room | None = None
    # The single-device training runs, by case.
    references: dict[str, Reference] = field(default_factory=dict)
    # The seconds of a step by case id, and the ids of cases that have failed, which share no launch from then on.
    step_times: dict[str, float | None] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    # The peak memory of each rank, of its process or its accelerator, by case id.
    peaks: dict[str, list[float]] = field(default_factory=dict)
    # By (case id, whether it is a reference, which may have another number of steps).
    _wall_s: dict[tuple[str, bool], float] = field(default_factory=dict)

    def run(self) -> None:
        """Launch what is left. Raises Interrupted if asked to stop."""
        left = launches_left(self.plan, self.done)
        for case in dict.fromkeys(each.case for each in left):
            self.run_nccl_probe(case)
        planned, cases = self.plan, set(self.plan.cases)
        for group in self.launches_of(left):
            if self.plan is not planned:
                planned, cases = self.plan, set(self.plan.cases)
            runs = [each for each in group if each.case in cases]
            for each in runs:
                self.run_reference(each.case)
            if len(group) > 1:
                self.run_turns(runs)
            elif runs:
                self.run_launch(runs[0])

    def launches_of(self, planned: Sequence[PlannedLaunch[C]]) -> Iterator[tuple[PlannedLaunch[C], ...]]:
        """Yield the planned launches in groups that share a launch."""
        for block, of_block in groupby(planned, lambda each: each.block):
            launches = list(of_block)
            if not self.is_shared(block):
                yield from ((each,) for each in launches)
                continue
            by_case = {each.case: each for each in launches}
            # A case that has failed is launched by itself from then on.
            alone = [each for each in launches if each.case.id in self.failed]
            together = self.cohorts_of([case for case in by_case if case.id not in self.failed])
            yield from (tuple(by_case[case] for case in cohort) for cohort in together)
            yield from ((each,) for each in alone)

    def is_shared(self, block: int) -> bool:
        """Return whether the cases of a block share launches."""
        return self.plan.takes_turns

    def cohorts_of(self, cases: Sequence[C]) -> Sequence[tuple[C, ...]]:
        """Return `cases` in groups that share a launch."""
        raise NotImplementedError

    def turns_spec(self, cases: tuple[C, ...], block: int) -> LaunchSpec:
        """Return a launch in which these cases are interleaved."""
        raise NotImplementedError

    def rounds_of(self, cases: tuple[C, ...], protocol: Any) -> int:
        """Return the number of interleaved rounds of these cases."""
        raise NotImplementedError

    def run_turns(self, planned: Sequence[PlannedLaunch[C]]) -> None:
        """Run one launch of all. If it fails, the others are launched again without the case that ran.

        If that case is unknown, each is launched by itself.
        """
        left = {each.case: each for each in planned}
        while left:
            block = planned[0].block
            cases = tuple(left)
            spec = self.turns_spec(cases, block)
            rounds = self.rounds_of(cases, spec.protocol)
            self.progress.sharing(len(cases), block, rounds)
            launch = self.launch(spec)
            for case in self.keep_turns(launch, left):
                del left[case]
            if launch.status is Status.OK:
                self.progress.shared(len(launch.arms), block, rounds, launch.wall_s)
            if not launch.arms:
                self.failed |= {case.id for case in left}
                for each in left.values():
                    self.run_launch(each)
                left = {}

    def keep_turns(self, launch: Launch, planned: Mapping[C, PlannedLaunch[C]]) -> list[C]:
        """Judge and store the parts of a shared launch. Return their cases."""
        kept: list[C] = []
        for place, arm in enumerate(launch.arms):
            case = cast(C, arm.case)
            # The copy of an A/A test comes after its case.
            twin = case in kept
            arm.block, arm.position = (TWIN_BLOCK, place) if twin else (planned[case].block, planned[case].position)
            self._judge(arm, case)
            self._finish(arm)
            kept += [] if twin else [case]
        return kept

    def expected(self) -> Iterator[tuple[C, int, Any]]:
        """Yield the (case, block, protocol) of each launch to come if all succeed."""
        left = launches_left(self.plan, self.done)
        yield from ((each.case, each.block, self.protocol_in(each)) for each in left)

    def protocol_in(self, planned: PlannedLaunch[C]) -> Any:
        """Return the protocol of a launch to come."""
        return self.plan.protocol

    @property
    def own_protocol(self) -> P:
        """The protocol of a launch of one case."""
        return self.plan.protocol

    def run_launch(self, planned: PlannedLaunch[C]) -> None:
        """Launch a case. Its reference was run before."""
        launch = self._launch(planned.case, planned.block)
        launch.position = planned.position
        self._judge(launch, planned.case)
        self._finish(launch)

    def run_nccl_probe(self, case: C) -> None:
        """Read once per session what NCCL chooses, before anything is timed."""

    def run_reference(self, case: C) -> None:
        """Launch the single-device reference of a case, once per session."""

    def _judge(self, launch: Launch, case: C) -> None:
        """Compare the launch with its reference."""

    def _launch(self, case: C, block: int, protocol: P | None = None) -> Launch:
        self.progress.launching(case, block)
        protocol = protocol or self.own_protocol
        spec = LaunchSpec.of(case, protocol, self.deadline_s(case, protocol), self.traces)
        launch = self.launch(spec)
        launch.block = block
        return launch

    def _finish(self, launch: Launch) -> None:
        if launch.status is not Status.OK and launch.block >= FIRST_BLOCK:
            self.failed.add(launch.case.id)
        # In a shared launch, each case has an equal part of the time.
        alone = launch.block != EXPLAIN_BLOCK and "turns" not in launch.facts
        if launch.status in (Status.OK, Status.WRONG) and alone:
            self._wall_s[launch.case.id, launch.block == REFERENCE_BLOCK] = launch.wall_s
        self.keep(launch)
        self.progress.launched(launch)
        for finding in launch.findings:
            if finding.code == PIN_REFUSED and self.replan is not None:
                case: Any = launch.case
                self.plan = self.plan.without(case, finding.message)
                self.replan(self.plan)

    def _blame_pin(self, launch: Launch) -> None:
        """Add the finding that removes a case from the plan, if NCCL refuses its pinned algorithm."""
        case = launch.case
        if self.replan is None or not is_nccls(case.algorithm) or launch.status is not Status.FAILED:
            return
        why = launch.failure.message if launch.failure else "it failed"
        message = f"{case.label}: NCCL could not be pinned to {case.algorithm} ({why}), so it was not launched again."
        advice = (
            "See the launch's error for what NCCL lacks (a switch that reduces, CollNet); native is its own choice."
        )
        launch.findings.append(Finding(PIN_REFUSED, message, advice, case.id))

    def deadline_s(self, case: C, protocol: P | None = None) -> float:
        """Return the requested deadline, ten times what an earlier launch of the case took, or an estimate."""
        if self.plan.protocol.deadline_s is not None:
            return self.plan.protocol.deadline_s
        known = self._wall_s.get((case.id, False))
        if known is not None:
            return max(LEAST_DEADLINE_S, DEADLINE_FACTOR * known)
        return self._first_deadline_s(case, protocol or self.own_protocol)

    def _first_deadline_s(self, case: C, protocol: P) -> float:
        """Return the deadline of a case that was not launched yet, in seconds."""
        raise NotImplementedError
