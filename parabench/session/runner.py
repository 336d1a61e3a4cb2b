"""Runs what is left of a plan: each launch is verified, and handed on at once to be stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Generic, cast

from parabench.analysis.launch_number import launch_number
from parabench.collectives.nccl import is_nccls
from parabench.launch.spec import LaunchSpec
from parabench.machine import accelerator
from parabench.machine.machine import Room
from parabench.plan.case import Case
from parabench.plan.cohorts import cohorts, share_modules, twin_of, why_alone
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.collective_protocol import CollectiveProtocol
from parabench.plan.plan import C, P, Plan, PlannedLaunch
from parabench.plan.protocol import DEADLINE_FACTOR, LEAST_DEADLINE_S, Protocol
from parabench.plan.turns import ISOLATED, TurnsProtocol, turns_protocol
from parabench.plan.validate import entry_of_model
from parabench.session.progress import Progress
from parabench.store.record import (
    EXPLAIN_BLOCK,
    FIRST_BLOCK,
    PIN_REFUSED,
    REFERENCE_BLOCK,
    TWIN_BLOCK,
    UNVERIFIED,
    Finding,
    Launch,
    Phase,
    Status,
)
from parabench.workloads import kind_of
from parabench.workloads.verify import Reference, reference_of, verify

REFERENCE_TRIES = 2

# The steps of a launch for NCCL's debug log: DDP has its final buckets after the first.
EXPLAINING = Protocol(warmup=2, steps=1, launches=1, instrumented=0, explain=True)

# What a core surely computes: the guess for the very first launch of a model, before anything is known.
SURE_FLOPS = 5e9

# What torch.compile takes at most in the first launch of a model, before its code is cached.
COMPILE_S = 60.0

# What a link surely carries, a second: the guess for the first launch of a collective.
SURE_BYTES_PER_S = 100e6


# The process seam: `launcher.launch` with the nodes that it needs, or a test's stand-in.
Executor = Callable[[LaunchSpec], Launch]


def launches_left(plan: Plan[C, P], done: Collection[tuple[str, int]]) -> list[PlannedLaunch[C]]:
    """What is still to be launched, references not counted; `done` holds (case id, block)."""
    return [each for each in plan.launches() if (each.case.id, each.block) not in done]


def peak_metric(device: str) -> str:
    """The metric of the peak of a rank's memory: of its accelerator, or of its process."""
    return "peak_reserved_bytes" if device == accelerator.TYPE else "peak_rss_bytes"


def peaks_of(launch: Launch) -> list[float]:
    """The peak of each rank's memory, as far as it is known."""
    metric = peak_metric(launch.case.device)
    return [each.value for each in launch.samples if each.metric == metric and each.value]


def _nobody(*_: Any, **__: Any) -> Any:
    raise AssertionError("this runner launches nothing")


@dataclass(kw_only=True)
class Runner(Generic[C, P]):
    """Runs a plan. `keep` stores a launch; a resumed session has `done` from before. `replan` stores a plan from which
    a case was taken; without it none is taken. `check` raises where no launch can follow one. Without
    `probes` NCCL is not asked what it chooses. Traces that the protocol asks for go to the folder `traces`. Cases that
    share a launch have that `room`."""

    plan: Plan[C, P]
    launch: Executor = _nobody
    keep: Callable[[Launch], None] = _nobody
    progress: Progress = field(default_factory=Progress)
    done: Collection[tuple[str, int]] = ()
    replan: Callable[[Plan[C, P]], None] | None = None
    check: Callable[[Launch], None] = lambda launch: None
    probes: bool = True
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
        """`planned` by the launches that it takes: one each, where cases do not share them."""
        yield from ((each,) for each in planned)

    def run_turns(self, planned: Sequence[PlannedLaunch[C]]) -> None:
        """Launch cases that share a launch, whose references were run."""
        raise NotImplementedError

    def expected(self) -> Iterator[tuple[C, int, Any]]:
        """(case, block, protocol) of what `run` measures where all succeed; of cases that share a launch each."""
        left = launches_left(self.plan, self.done)
        yield from ((each.case, each.block, self.protocol_in(each)) for each in left)

    def protocol_in(self, planned: PlannedLaunch[C]) -> Any:
        """How a case is measured in a launch to come."""
        return self.plan.protocol

    def run_launch(self, planned: PlannedLaunch[C]) -> None:
        """Launch a case whose reference was run."""
        launch = self._launch(planned.case, planned.block)
        launch.position = planned.position
        if self.plan.isolated:
            launch.facts[ISOLATED] = True
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
        spec = LaunchSpec.of(case, protocol or self.plan.protocol, self.deadline_s(case), self.traces)
        launch = self.launch(spec)
        launch.block = block
        return launch

    def _finish(self, launch: Launch) -> None:
        # Of one that cases shared each has an equal part of the time, whatever it took.
        alone = launch.block != EXPLAIN_BLOCK and "turns" not in launch.facts
        if launch.status in (Status.OK, Status.WRONG) and alone:
            self._wall_s[launch.case.id, launch.block == REFERENCE_BLOCK] = launch.wall_s
        self.keep(launch)
        self.progress.launched(launch)
        self.check(launch)
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

    def deadline_s(self, case: C) -> float:
        """What was asked for, or ten times the time that is expected of the case."""
        if self.plan.protocol.deadline_s is not None:
            return self.plan.protocol.deadline_s
        expected = self._wall_s.get((case.id, False))
        return max(LEAST_DEADLINE_S, DEADLINE_FACTOR * (self._expected_s(case) if expected is None else expected))

    def _expected_s(self, case: C) -> float:
        """How long a case that was not launched yet must take at most."""
        raise NotImplementedError


def training_operations(parameters: int, case: Case, steps: int) -> int:
    """Floating-point operations of so many steps over all ranks: 6 a parameter and token (Kaplan et al., "Scaling laws
    for neural language models", 2020)."""
    return 6 * parameters * case.global_batch * case.seq_len * steps


def reference_protocol(protocol: Protocol) -> Protocol:
    """How the single-device reference of a session's launches is launched: where they go by time with a fixed number of
    steps, so that how many losses are compared is no matter of speed. The tolerances were measured over so many
    (docs/explanation/verification.md); nothing of a reference is ranked."""
    if not protocol.by_time:
        return protocol
    return replace(protocol, warmup=None, steps=None, warmup_s=None, measure_s=None).resolved("cpu")


@dataclass(kw_only=True)
class TrainingRunner(Runner[Case, Protocol]):
    """Verifies each training against that of one device."""

    _failed_references: dict[str, int] = field(default_factory=dict)

    def _judge(self, launch: Launch, case: Case) -> None:
        reference = self.references.get(case.reference().id)
        verify(launch, reference)
        # One that failed has no losses that anybody would compare.
        if reference is None and launch.status is Status.OK:
            launch.findings.append(
                Finding(
                    UNVERIFIED,
                    "The single-device reference did not run, so this launch's losses were not compared.",
                    "Make the model or the batch smaller, until one device can run it.",
                    case.id,
                )
            )

    def launches_of(self, planned: Sequence[PlannedLaunch[Case]]) -> Iterator[tuple[PlannedLaunch[Case], ...]]:
        """With rounds, in all blocks but the first, those that can share."""
        for block, of_block in groupby(planned, lambda each: each.block):
            launches = list(of_block)
            if block == FIRST_BLOCK or not self.plan.takes_turns:
                yield from ((each,) for each in launches)
                continue
            by_case = {each.case: each for each in launches}
            # What has failed once has launches of its own from then on.
            alone = [each for each in launches if each.case.id in self.failed]
            together = cohorts([case for case in by_case if case.id not in self.failed], self.room, self.held(), True)
            yield from (tuple(by_case[case] for case in cohort) for cohort in together)
            yield from ((each,) for each in alone)

    def held(self) -> dict[str, float]:
        """What launches of their own have held of their room, by the id of the case."""
        return {
            case.id: max(peaks) if case.device == accelerator.TYPE else sum(peaks) / case.nodes
            for case in self.plan.cases
            if (peaks := self.peaks.get(case.id))
        }

    def _finish(self, launch: Launch) -> None:
        if launch.status is not Status.OK and launch.block >= FIRST_BLOCK:
            self.failed.add(launch.case.id)
        elif launch.block == FIRST_BLOCK:
            self.step_times[launch.case.id] = launch_number(launch.step_times(Phase.MEASURE), launch.case.device)
            if peaks := peaks_of(launch):
                self.peaks[launch.case.id] = peaks
        super()._finish(launch)

    def run_turns(self, planned: Sequence[PlannedLaunch[Case]]) -> None:
        """One launch of all. Of one that failed it is the case whose turn it was, and the others are launched again;
        where it is not known whose, each has a launch of its own."""
        left = {each.case: each for each in planned}
        while left:
            block = planned[0].block
            self.progress.taking_turns(list(left), block)
            spec = self.turns_spec(tuple(left), block)
            launch = self.launch(spec)
            for case in self.keep_turns(launch, left):
                del left[case]
            if launch.status is Status.OK:
                self.progress.took_turns(len(launch.arms), block, spec.protocol.rounds, launch.wall_s)
            if not launch.arms:
                self.failed |= {case.id for case in left}
                for each in left.values():
                    self.run_launch(each)
                left = {}

    def keep_turns(self, launch: Launch, planned: Mapping[Case, PlannedLaunch[Case]]) -> list[Case]:
        """Judge and keep what a shared launch tells of cases; which they are."""
        kept: list[Case] = []
        for place, arm in enumerate(launch.arms):
            case = cast(Case, arm.case)
            # A twin comes after its case.
            twin = case in kept
            arm.block, arm.position = (TWIN_BLOCK, place) if twin else (planned[case].block, planned[case].position)
            self._judge(arm, case)
            self._finish(arm)
            kept += [] if twin else [case]
        return kept

    def turns_spec(self, cases: tuple[Case, ...], block: int) -> LaunchSpec:
        """A launch in which these cases take turns, one of them twice where it is to check itself."""
        plan = self.plan
        if plan.protocol.self_check:
            cases = (*cases, twin_of([case for case in plan.cases if case in cases]))
        shared = share_modules(cases, self.room, self.held())
        protocol = replace(self._turns_of(cases, block), share_modules=shared)
        if plan.protocol.deadline_s is not None:
            deadline_s = plan.protocol.deadline_s * len(cases)
        else:
            # Each is built as in a launch of its own, and takes its steps besides.
            expected = sum(self._wall_s.get((case.id, False), self._expected_s(case)) for case in cases)
            step_s = [self.step_times.get(case.id) for case in cases]
            known = [protocol.steps_of(place) * each for place, each in enumerate(step_s) if each is not None]
            if len(known) == len(cases):
                expected += sum(known)
            else:
                expected *= protocol.all_steps / plan.protocol.all_steps
            deadline_s = max(LEAST_DEADLINE_S, DEADLINE_FACTOR * expected)
        return LaunchSpec(kind=kind_of(protocol), cases=cases, protocol=protocol, deadline_s=deadline_s)

    def _turns_of(self, cases: Sequence[Case], block: int) -> TurnsProtocol:
        # Who asks for rounds gets the same of every session: sides of an `ab` must agree.
        device = cases[0].device
        by_time = self.plan.races or device == accelerator.TYPE
        step_s = [self.step_times.get(case.id) if by_time else None for case in cases]
        return turns_protocol(self.plan.protocol, self.plan.seed, block, step_s, self.plan.settle, device)

    def run_nccl_probe(self, case: Case) -> None:
        """Let NCCL tell in a launch of its own, which never counts, what it chooses for the case's sizes, and whether
        it can do what it is pinned to."""
        if self._is_probed(case):
            launch = self._launch(case, EXPLAIN_BLOCK, EXPLAINING)
            self._blame_pin(launch)
            self._finish(launch)

    def _is_probed(self, case: Case) -> bool:
        on_nccl = case.backend == "nccl" and case.world_size > 1
        return self.probes and on_nccl and (case.id, EXPLAIN_BLOCK) not in self.done

    def protocol_in(self, planned: PlannedLaunch[Case]) -> Any:
        plan = self.plan
        shared = plan.takes_turns and planned.block > FIRST_BLOCK and why_alone(planned.case) is None
        return self._turns_of([planned.case], planned.block) if shared else plan.protocol

    def expected(self) -> Iterator[tuple[Case, int, Any]]:
        counted = list(super().expected())
        cases = list(dict.fromkeys(case for case, _, _ in counted))
        singles = {single.id: single for single in (case.reference() for case in cases)}
        yield from counted
        protocol = reference_protocol(self.plan.protocol)
        yield from ((each, REFERENCE_BLOCK, protocol) for name, each in singles.items() if name not in self.references)
        yield from ((case, EXPLAIN_BLOCK, EXPLAINING) for case in cases if self._is_probed(case))

    def run_reference(self, case: Case) -> None:
        """Launch the single-device run of the same training, once a session."""
        single = case.reference()
        # What failed once may have been an accident: one more try, not one before every launch.
        tries = self._failed_references.get(single.id, 0)
        if self.references.get(single.id) is None and tries < REFERENCE_TRIES:
            launch = self._launch(single, REFERENCE_BLOCK, reference_protocol(self.plan.protocol))
            self._finish(launch)
            if launch.status is Status.OK:
                self.references[single.id] = reference_of(launch)
            else:
                self._failed_references[single.id] = tries + 1

    def _expected_s(self, case: Case) -> float:
        """What its reference took, or what its arithmetic must take."""
        protocol = self.plan.protocol
        more_s = (COMPILE_S if case.compile else 0.0) + protocol.seconds
        known = self._wall_s.get((case.reference().id, True))
        if known is not None:
            return known + more_s
        parameters = entry_of_model(case).parameters or 0
        steps = reference_protocol(protocol).all_steps
        return training_operations(parameters, case, steps) / SURE_FLOPS + more_s


# What NCCL says where nothing is left of what it was pinned to ("no algorithm/protocol available", src/enqueue.cc), and
# how torch calls that error, ncclInvalidUsage.
_INVALID_USAGE = re.compile("invalid usage|ncclInvalidUsage|no algorithm/protocol available", re.IGNORECASE)


@dataclass(kw_only=True)
class CollectivesRunner(Runner[CollectiveCase, CollectiveProtocol]):
    """Of collective operations each launch checks its own results against exact values."""

    def _judge(self, launch: Launch, case: CollectiveCase) -> None:
        """There is no launch that only explains: the first one tells what NCCL refuses."""
        if launch.failure and _INVALID_USAGE.search(launch.failure.message):
            self._blame_pin(launch)

    def _expected_s(self, case: CollectiveCase) -> float:
        """What its bytes must take when one rank's link carries those of all."""
        return self.plan.protocol.expected_s(case, SURE_BYTES_PER_S / case.world_size)


RUNNERS: dict[str, type[Runner[Any, Any]]] = {"training": TrainingRunner, "collectives": CollectivesRunner}
