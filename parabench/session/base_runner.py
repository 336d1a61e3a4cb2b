"""Runs what is left of a plan, whatever it measures: each launch is judged, and handed on at once to be stored."""

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

# The process seam: `launcher.launch` with the nodes that it needs, or a test's stand-in.
Executor = Callable[[LaunchSpec], Launch]


def launches_left(plan: Plan[C, P], done: Collection[tuple[str, int]]) -> list[PlannedLaunch[C]]:
    """What is still to be launched, references not counted; `done` holds (case id, block)."""
    return [each for each in plan.launches() if (each.case.id, each.block) not in done]


def _nobody(*_: Any, **__: Any) -> Any:
    raise AssertionError("this runner launches nothing")


@dataclass(kw_only=True)
class Runner(Generic[C, P]):
    """Runs a plan. `keep` stores a launch; a resumed session has `done` from before. `replan` stores a plan from which
    a case was taken; without it none is taken. Traces that the protocol asks for go to the folder `traces`. Cases that
    share a launch have that `room`."""

    plan: Plan[C, P]
    launch: Executor = _nobody
    keep: Callable[[Launch], None] = _nobody
    progress: Progress = field(default_factory=Progress)
    done: Collection[tuple[str, int]] = ()
    replan: Callable[[Plan[C, P]], None] | None = None
    traces: Path | None = None
    room: Room | None = None
    # Of the single-device runs of trainings, by case.
    references: dict[str, Reference] = field(default_factory=dict)
    # How long a step of each case takes, in seconds, by its id; and the ids of those of which a launch failed, which
    # share none from then on.
    step_times: dict[str, float | None] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    # By the id of a case: the peak of each rank's memory, of its process or of its accelerator.
    peaks: dict[str, list[float]] = field(default_factory=dict)
    # By (case id, whether it was launched as a reference, which may take another number of steps).
    _wall_s: dict[tuple[str, bool], float] = field(default_factory=dict)

    def run(self) -> None:
        """Launch what is left. Raises Interrupted when asked to stop; what is kept stays kept."""
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
        """`planned` by the launches that it takes: of a block that is shared, those that can share; else one each."""
        for block, of_block in groupby(planned, lambda each: each.block):
            launches = list(of_block)
            if not self.is_shared(block):
                yield from ((each,) for each in launches)
                continue
            by_case = {each.case: each for each in launches}
            # What has failed once has launches of its own from then on.
            alone = [each for each in launches if each.case.id in self.failed]
            together = self.cohorts_of([case for case in by_case if case.id not in self.failed])
            yield from (tuple(by_case[case] for case in cohort) for cohort in together)
            yield from ((each,) for each in alone)

    def is_shared(self, block: int) -> bool:
        """Whether the cases of a block share launches."""
        return self.plan.takes_turns

    def cohorts_of(self, cases: Sequence[C]) -> Sequence[tuple[C, ...]]:
        """`cases` by those that share a launch."""
        raise NotImplementedError

    def turns_spec(self, cases: tuple[C, ...], block: int) -> LaunchSpec:
        """A launch in which these cases take turns."""
        raise NotImplementedError

    def rounds_of(self, cases: tuple[C, ...], protocol: Any) -> int:
        """In how many rounds these cases take turns in a launch that they share."""
        raise NotImplementedError

    def run_turns(self, planned: Sequence[PlannedLaunch[C]]) -> None:
        """One launch of all, whose references were run. Of one that failed it is the case whose turn it was, and the
        others are launched again; where it is not known whose, each has a launch of its own."""
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
        """Judge and keep what a shared launch tells of cases; which they are."""
        kept: list[C] = []
        for place, arm in enumerate(launch.arms):
            case = cast(C, arm.case)
            # A twin comes after its case.
            twin = case in kept
            arm.block, arm.position = (TWIN_BLOCK, place) if twin else (planned[case].block, planned[case].position)
            self._judge(arm, case)
            self._finish(arm)
            kept += [] if twin else [case]
        return kept

    def expected(self) -> Iterator[tuple[C, int, Any]]:
        """(case, block, protocol) of what `run` measures where all succeed; of cases that share a launch each."""
        left = launches_left(self.plan, self.done)
        yield from ((each.case, each.block, self.protocol_in(each)) for each in left)

    def protocol_in(self, planned: PlannedLaunch[C]) -> Any:
        """How a case is measured in a launch to come."""
        return self.plan.protocol

    @property
    def own_protocol(self) -> P:
        """The protocol of a launch that a case has to itself."""
        return self.plan.protocol

    def run_launch(self, planned: PlannedLaunch[C]) -> None:
        """Launch a case whose reference was run."""
        launch = self._launch(planned.case, planned.block)
        launch.position = planned.position
        self._judge(launch, planned.case)
        self._finish(launch)

    def run_nccl_probe(self, case: C) -> None:
        """Let NCCL tell once a session what it chooses, before anything is timed."""

    def run_reference(self, case: C) -> None:
        """Launch what the case is compared with, once a session."""

    def _judge(self, launch: Launch, case: C) -> None:
        """What the launch itself cannot know of its result."""

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
        # Of one that cases shared each has an equal part of the time, whatever it took.
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
        """Where NCCL has refused the algorithm that a failed launch was pinned to, it would refuse it in every launch:
        the case is to be taken out of the plan."""
        case = launch.case
        if self.replan is None or not is_nccls(case.algorithm) or launch.status is not Status.FAILED:
            return
        why = launch.failure.message if launch.failure else "it failed"
        said = f"{case.label}: NCCL could not be pinned to {case.algorithm} ({why}), so it was not launched again."
        advice = (
            "See the launch's error for what NCCL lacks (a switch that reduces, CollNet); native is its own choice."
        )
        launch.findings.append(Finding(PIN_REFUSED, said, advice, case.id))

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
