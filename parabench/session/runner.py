"""Run the rest of a plan. Each launch is judged, and stored when it ends."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Generic, cast

from parabench.analysis.launch_number import launch_number
from parabench.collectives.nccl import is_nccls
from parabench.launch.spec import LaunchSpec
from parabench.machine import accelerator
from parabench.machine.machine import Room
from parabench.plan.case import Case
from parabench.plan.cohorts import cohorts, twin_of, why_alone
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.collective_protocol import CollectiveProtocol
from parabench.plan.plan import C, P, Plan, PlannedLaunch
from parabench.plan.protocol import DEADLINE_FACTOR, LEAST_DEADLINE_S, Protocol
from parabench.plan.turns import TurnsProtocol, turns_protocol
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
from parabench.workloads.collective_turns import most_rounds
from parabench.workloads.verify import Reference, reference_of, verify

# Runs a launch: `launcher.launch` with the nodes that it needs, or a fake in tests.
Executor = Callable[[LaunchSpec], Launch]

REFERENCE_TRIES = 2
# The launches whose times predict others: of one case, of several, and of a single-device reference.
ALONE, SHARED, SINGLE = "alone", "shared", "single"
# The steps of a launch for NCCL's debug log: DDP has its final buckets after the first.
EXPLAINING = Protocol(warmup=2, steps=1, launches=1, instrumented=0, explain=True)
# The longest explaining launch on an accelerator, in seconds: it takes three steps.
MOST_EXPLAINING_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowest:
    """The slowest devices and links that a first deadline allows for.

    `compile_s` is the longest compilation of a model by torch.compile; on the CPU a C++ compiler runs for each kernel.
    `start_s` is the longest setup of contexts, communicators and kernels. `most_s` bounds what the rates predict:
    accelerators differ so much that a rate that fits all of them would hide a hang for days.
    """

    flops_per_s: float
    bytes_per_s: float
    compile_s: float
    start_s: float = 0.0
    most_s: float = math.inf


SLOWEST = {
    "cpu": Slowest(flops_per_s=5e9, bytes_per_s=100e6, compile_s=600.0),
    accelerator.TYPE: Slowest(flops_per_s=1e12, bytes_per_s=1e9, compile_s=180.0, start_s=60.0, most_s=600.0),
}


def first_deadline_s(device: str, expected_s: float, allowance_s: float = 0.0, most_s: float = math.inf) -> float:
    """Return the deadline, in seconds, of a launch on `device` that was estimated and not measured.

    Args:
        expected_s: What arithmetic or transfers take at the rates in `SLOWEST`.
        allowance_s: What comes on top and is already an upper bound, such as the time to compile.
        most_s: A bound on the estimated part that is lower than the device's.
    """
    slowest = SLOWEST[device]
    estimated_s = min(DEADLINE_FACTOR * expected_s, slowest.most_s, most_s)
    return max(LEAST_DEADLINE_S, estimated_s) + slowest.start_s + allowance_s


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

    # The first block whose cases share launches.
    first_shared: ClassVar[int] = FIRST_BLOCK
    # The earlier launches that predict a shared one.
    shared_kind: ClassVar[str] = SHARED

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
    # The seconds of a launch by case id and ALONE, SHARED (the case's part) or SINGLE.
    _wall_s: dict[tuple[str, str], float] = field(default_factory=dict)

    def run(self) -> None:
        """Launch what is left. Raises Interrupted if asked to stop."""
        left = launches_left(self.plan, self.done)
        for case in dict.fromkeys(each.case for each in left):
            self.run_nccl_probe(case)
        for group in self.launches_of(left):
            refused = {each.case for each in self.plan.skipped}
            runs = [each for each in group if each.case not in refused]
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
            if not self.plan.takes_turns or block < self.first_shared:
                yield from ((each,) for each in launches)
                continue
            by_case = {each.case: each for each in launches}
            # A case that has failed is launched by itself from then on.
            alone = [each for each in launches if each.case.id in self.failed]
            together = self.cohorts_of([case for case in by_case if case.id not in self.failed])
            yield from (tuple(by_case[case] for case in cohort) for cohort in together)
            yield from ((each,) for each in alone)

    def cohorts_of(self, cases: Sequence[C]) -> Sequence[tuple[C, ...]]:
        """Return `cases` in groups that share a launch."""
        raise NotImplementedError

    def turns_of(self, cases: Sequence[C], block: int) -> Any:
        """Return the protocol of a launch in which these cases are interleaved."""
        raise NotImplementedError

    def turns_spec(self, cases: tuple[C, ...], block: int) -> LaunchSpec:
        """Return a launch in which these cases are interleaved."""
        protocol = self.turns_of(cases, block)
        deadline_s = self.deadline_s(cases, protocol)
        return LaunchSpec(kind=kind_of(protocol), cases=cases, protocol=protocol, deadline_s=deadline_s)

    def run_turns(self, planned: Sequence[PlannedLaunch[C]]) -> None:
        """Run one launch of all. If it fails, the others are launched again without the case that ran.

        If that case is unknown, each is launched by itself.
        """
        left = {each.case: each for each in planned}
        while left:
            block = planned[0].block
            cases = tuple(left)
            spec = self.turns_spec(cases, block)
            protocol = spec.protocol
            by_size = isinstance(protocol, CollectiveProtocol)
            rounds = most_rounds(protocol, spec.cases) if by_size else protocol.rounds
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
                return

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
        spec = LaunchSpec.of(case, protocol, self.deadline_s([case], protocol), self.traces)
        launch = self.launch(spec)
        launch.block = block
        return launch

    def _finish(self, launch: Launch) -> None:
        if launch.status is not Status.OK and launch.block >= FIRST_BLOCK:
            self.failed.add(launch.case.id)
        if launch.status in (Status.OK, Status.WRONG) and launch.block != EXPLAIN_BLOCK:
            kind = SINGLE if launch.block == REFERENCE_BLOCK else SHARED if "turns" in launch.facts else ALONE
            self._wall_s[launch.case.id, kind] = launch.wall_s
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

    def deadline_s(self, cases: Sequence[C], protocol: Any) -> float:
        """Return the deadline of a launch of these cases, in seconds.

        This is the requested deadline for each case, or ten times what earlier launches took, plus an estimate for the
        cases that were not launched yet.
        """
        if self.plan.protocol.deadline_s is not None:
            return self.plan.protocol.deadline_s * len(cases)
        kind = self.shared_kind if len(cases) > 1 else ALONE
        walls = [self._wall_s.get((case.id, kind)) for case in cases]
        known_s = sum(filter(None, walls))
        if isinstance(protocol, TurnsProtocol):
            known_s += sum(
                protocol.steps_of(at) * (self.step_times.get(case.id) or 0.0) for at, case in enumerate(cases)
            )
        new = [case for case, wall_s in zip(cases, walls, strict=True) if wall_s is None]
        first_s = self._first_deadline_s(new, protocol) if new else 0.0
        return first_s + (max(LEAST_DEADLINE_S, DEADLINE_FACTOR * known_s) if known_s or not new else 0.0)

    def _first_deadline_s(self, new: Sequence[C], protocol: Any) -> float:
        """Return the part of a deadline for cases that were not launched yet, in seconds."""
        raise NotImplementedError


def peak_metric(device: str) -> str:
    """Return the metric of a rank's peak memory, of its accelerator or its process."""
    return "peak_reserved_bytes" if device == accelerator.TYPE else "peak_rss_bytes"


def training_operations(parameters: int, case: Case, steps: int) -> int:
    """Return the floating-point operations of these steps on all ranks: 6 per parameter and token.

    Source: Kaplan et al., "Scaling laws for neural language models", 2020.
    """
    return 6 * parameters * case.global_batch * case.seq_len * steps


def reference_protocol(protocol: Protocol) -> Protocol:
    """Return the protocol of single-device references.

    It has a fixed number of steps even if launches are measured by time, because the tolerances were measured over so
    many losses (docs/explanation/verification.md).
    """
    if not protocol.by_time:
        return protocol
    return protocol.replace(warmup=None, steps=None, warmup_s=None, measure_s=None).resolved("cpu")


@dataclass(kw_only=True)
class TrainingRunner(Runner[Case, Protocol]):
    """Verify each training run against one device. Compute-only launches are not verified: a rank alone is no training
    run."""

    first_shared = FIRST_BLOCK + 1
    # A shared launch builds each case as a separate launch does.
    shared_kind = ALONE

    _failed_references: dict[str, int] = field(default_factory=dict)

    @property
    def verifies(self) -> bool:
        """Return whether launches are compared with a single-device reference."""
        return self.plan.kind == "training"

    def _judge(self, launch: Launch, case: Case) -> None:
        if not self.verifies:
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

    def cohorts_of(self, cases: Sequence[Case]) -> Sequence[tuple[Case, ...]]:
        return cohorts(cases, self.room, self.held())

    def held(self) -> dict[str, float]:
        """Return the memory that launches of one case have used, by case id."""
        return {
            case.id: max(peaks) if case.device == accelerator.TYPE else sum(peaks) / case.nodes
            for case in self.plan.cases
            if (peaks := self.peaks.get(case.id))
        }

    def _finish(self, launch: Launch) -> None:
        if launch.status is Status.OK and launch.block == FIRST_BLOCK:
            self.step_times[launch.case.id] = launch_number(launch.step_times(Phase.MEASURE), launch.case.device)
            metric = peak_metric(launch.case.device)
            if peaks := [each.value for each in launch.samples if each.metric == metric and each.value]:
                self.peaks[launch.case.id] = peaks
        super()._finish(launch)

    def turns_spec(self, cases: tuple[Case, ...], block: int) -> LaunchSpec:
        """Return the launch that interleaves these cases, and a copy of one for an A/A test."""
        if self.plan.protocol.self_check:
            cases = (*cases, twin_of([case for case in self.plan.cases if case in cases]))
        return super().turns_spec(cases, block)

    def turns_of(self, cases: Sequence[Case], block: int) -> TurnsProtocol:
        # Explicit rounds have the same turns in every session: variants of an `ab` must agree.
        device = cases[0].device
        by_time = self.plan.races or device == accelerator.TYPE
        step_s = [self.step_times.get(case.id) if by_time else None for case in cases]
        return turns_protocol(self.plan.protocol, self.plan.seed, block, step_s, device)

    def run_nccl_probe(self, case: Case) -> None:
        """Read what NCCL chooses, and whether it accepts a pinned algorithm, in a launch that does not count."""
        if self._is_probed(case):
            launch = self._launch(case, EXPLAIN_BLOCK, EXPLAINING)
            self._blame_pin(launch)
            self._finish(launch)

    def _is_probed(self, case: Case) -> bool:
        on_nccl = case.backend == "nccl" and case.world_size > 1
        return self.verifies and on_nccl and (case.id, EXPLAIN_BLOCK) not in self.done

    def protocol_in(self, planned: PlannedLaunch[Case]) -> Any:
        plan = self.plan
        shared = plan.takes_turns and planned.block > FIRST_BLOCK and why_alone(planned.case) is None
        return self.turns_of([planned.case], planned.block) if shared else plan.protocol

    def expected(self) -> Iterator[tuple[Case, int, Any]]:
        counted = list(super().expected())
        yield from counted
        if not self.verifies:
            return
        cases = list(dict.fromkeys(case for case, _, _ in counted))
        singles = {single.id: single for single in (case.reference() for case in cases)}
        protocol = reference_protocol(self.plan.protocol)
        yield from ((each, REFERENCE_BLOCK, protocol) for name, each in singles.items() if name not in self.references)
        yield from ((case, EXPLAIN_BLOCK, EXPLAINING) for case in cases if self._is_probed(case))

    def run_reference(self, case: Case) -> None:
        """Launch the single-device run of the same training, once per session."""
        if not self.verifies:
            return
        single = case.reference()
        # One more attempt after a failure, but not one before every launch.
        tries = self._failed_references.get(single.id, 0)
        if self.references.get(single.id) is None and tries < REFERENCE_TRIES:
            launch = self._launch(single, REFERENCE_BLOCK, reference_protocol(self.plan.protocol))
            self._finish(launch)
            if launch.status is Status.OK:
                self.references[single.id] = reference_of(launch)
            else:
                self._failed_references[single.id] = tries + 1

    def _first_deadline_s(self, new: Sequence[Case], protocol: Any) -> float:
        allowance = sum(map(self._allowance_s, new))
        device = new[0].device
        if isinstance(protocol, TurnsProtocol):
            own = self.plan.protocol
            longer = max(1.0, protocol.all_steps / own.all_steps)
            return first_deadline_s(device, longer * sum(self._estimated_s(case, own) for case in new), allowance)
        known = self._wall_s.get((new[0].reference().id, SINGLE))
        if known is not None:
            return max(LEAST_DEADLINE_S, DEADLINE_FACTOR * known + SLOWEST[device].start_s + allowance)
        most_s = MOST_EXPLAINING_S if protocol.explain else math.inf
        return first_deadline_s(device, self._estimated_s(new[0], protocol), allowance, most_s)

    def _estimated_s(self, case: Case, protocol: Protocol) -> float:
        """Return how long the arithmetic of a launch takes on the slowest device, in seconds."""
        parameters = entry_of_model(case).parameters or 0
        steps = reference_protocol(protocol).all_steps
        return training_operations(parameters, case, steps) / SLOWEST[case.device].flops_per_s

    def _allowance_s(self, case: Case) -> float:
        # Steps by time exceed it by up to one step.
        return (SLOWEST[case.device].compile_s if case.compile else 0.0) + 2 * self.plan.protocol.seconds


# NCCL's message if a pin leaves no algorithm (src/enqueue.cc), and torch's name of that error.
_INVALID_USAGE = re.compile("invalid usage|ncclInvalidUsage|no algorithm/protocol available", re.IGNORECASE)


@dataclass(kw_only=True)
class CollectivesRunner(Runner[CollectiveCase, CollectiveProtocol]):
    """Run collective operations. Each launch checks its own results against exact values."""

    def _judge(self, launch: Launch, case: CollectiveCase) -> None:
        """Find pins that NCCL refuses: collectives have no separate launch that reads its choices."""
        if launch.failure and _INVALID_USAGE.search(launch.failure.message):
            self._blame_pin(launch)

    def cohorts_of(self, cases: Sequence[CollectiveCase]) -> Sequence[tuple[CollectiveCase, ...]]:
        return cohorts(cases)

    @property
    def own_protocol(self) -> CollectiveProtocol:
        return self.plan.protocol.alone()

    def protocol_in(self, planned: PlannedLaunch[CollectiveCase]) -> CollectiveProtocol:
        alone = (planned.case,) in self.cohorts_of(self.plan.cases)
        return self.own_protocol if alone else self.plan.protocol

    def turns_of(self, cases: Sequence[CollectiveCase], block: int) -> CollectiveProtocol:
        return self.plan.protocol

    def _first_deadline_s(self, new: Sequence[CollectiveCase], protocol: Any) -> float:
        # One of the cases may take ten times its estimate, and each of the others its estimate.
        estimates = [self._estimated_s(case) for case in new]
        expected = max(estimates) + (sum(estimates) - max(estimates)) / DEADLINE_FACTOR
        return first_deadline_s(new[0].device, expected, sum(map(self._allowance_s, new)))

    def _estimated_s(self, case: CollectiveCase) -> float:
        """Return how long the transfers take, in seconds, if the slowest link of one rank carries the bytes of all."""
        bytes_per_s = SLOWEST[case.device].bytes_per_s / case.world_size
        return self.plan.protocol.expected_s(case, bytes_per_s) - self._allowance_s(case)

    def _allowance_s(self, case: CollectiveCase) -> float:
        """Return how long a launch measures, in seconds, if transfers take no time."""
        return self.plan.protocol.expected_s(case, math.inf)


RUNNERS: dict[str, type[Runner[Any, Any]]] = {
    "training": TrainingRunner,
    "compute": TrainingRunner,
    "collectives": CollectivesRunner,
}
