"""Runners of training, compute-only and collective plans: their judgement, shared launches and deadlines."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from parabench.analysis.launch_number import launch_number
from parabench.launch.spec import LaunchSpec
from parabench.machine import accelerator
from parabench.plan.case import Case
from parabench.plan.cohorts import cohorts, twin_of, why_alone
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.collective_protocol import CollectiveProtocol
from parabench.plan.plan import PlannedLaunch
from parabench.plan.protocol import DEADLINE_FACTOR, LEAST_DEADLINE_S, Protocol
from parabench.plan.turns import TurnsProtocol, turns_protocol
from parabench.plan.validate import entry_of_model
from parabench.session.base_runner import Runner
from parabench.session.deadlines import MOST_EXPLAINING_S, SLOWEST, first_deadline_s
from parabench.store.record import (
    EXPLAIN_BLOCK,
    FIRST_BLOCK,
    REFERENCE_BLOCK,
    UNVERIFIED,
    Finding,
    Launch,
    Phase,
    Status,
)
from parabench.workloads import kind_of
from parabench.workloads.collective_turns import most_rounds
from parabench.workloads.verify import reference_of, verify

REFERENCE_TRIES = 2

# The steps of a launch for NCCL's debug log: DDP has its final buckets after the first.
EXPLAINING = Protocol(warmup=2, steps=1, launches=1, instrumented=0, explain=True)


def peak_metric(device: str) -> str:
    """Return the metric of a rank's peak memory, of its accelerator or its process."""
    return "peak_reserved_bytes" if device == accelerator.TYPE else "peak_rss_bytes"


def peaks_of(launch: Launch) -> list[float]:
    """Return the known peaks of the ranks' memory."""
    metric = peak_metric(launch.case.device)
    return [each.value for each in launch.samples if each.metric == metric and each.value]


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
    """Verify each training run against one device."""

    _failed_references: dict[str, int] = field(default_factory=dict)

    def _judge(self, launch: Launch, case: Case) -> None:
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

    def is_shared(self, block: int) -> bool:
        """Return whether a block is interleaved: all but the first."""
        return self.plan.takes_turns and block != FIRST_BLOCK

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
            if peaks := peaks_of(launch):
                self.peaks[launch.case.id] = peaks
        super()._finish(launch)

    def with_twin(self, cases: tuple[Case, ...]) -> tuple[Case, ...]:
        """Return the cases of a shared launch. With an A/A test, one of them is there twice."""
        if not self.plan.protocol.self_check:
            return cases
        return (*cases, twin_of([case for case in self.plan.cases if case in cases]))

    def turns_spec(self, cases: tuple[Case, ...], block: int) -> LaunchSpec:
        """Return the launch that interleaves these cases, and a copy of one for an A/A test."""
        plan, cases = self.plan, self.with_twin(cases)
        protocol = self._turns_of(cases, block)
        if plan.protocol.deadline_s is not None:
            deadline_s = plan.protocol.deadline_s * len(cases)
        else:
            # Each case is built as in its own launch, and takes its interleaved steps as well.
            walls = [self._wall_s.get((case.id, False)) for case in cases]
            step_s = [self.step_times.get(case.id) or 0.0 for case in cases]
            known = sum(each or 0.0 for each in walls)
            known += sum(protocol.steps_of(place) * each for place, each in enumerate(step_s))
            deadline_s = max(LEAST_DEADLINE_S, DEADLINE_FACTOR * known)
            if new := [case for case, wall_s in zip(cases, walls, strict=True) if wall_s is None]:
                longer = max(1.0, protocol.all_steps / plan.protocol.all_steps)
                estimated = longer * sum(self._estimated_s(case, plan.protocol) for case in new)
                allowance = sum(self._allowance_s(case) for case in new)
                deadline_s += first_deadline_s(cases[0].device, estimated, allowance)
        return LaunchSpec(kind=kind_of(protocol), cases=cases, protocol=protocol, deadline_s=deadline_s)

    def rounds_of(self, cases: tuple[Case, ...], protocol: TurnsProtocol) -> int:
        return protocol.rounds

    def _turns_of(self, cases: Sequence[Case], block: int) -> TurnsProtocol:
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
        return on_nccl and (case.id, EXPLAIN_BLOCK) not in self.done

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
        """Launch the single-device run of the same training, once per session."""
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

    def _first_deadline_s(self, case: Case, protocol: Protocol) -> float:
        allowance = self._allowance_s(case)
        known = self._wall_s.get((case.reference().id, True))
        if known is not None:
            return max(LEAST_DEADLINE_S, DEADLINE_FACTOR * known + SLOWEST[case.device].start_s + allowance)
        most_s = MOST_EXPLAINING_S if protocol.explain else math.inf
        return first_deadline_s(case.device, self._estimated_s(case, protocol), allowance, most_s)

    def _estimated_s(self, case: Case, protocol: Protocol) -> float:
        """Return how long the arithmetic of a launch takes on the slowest device, in seconds."""
        parameters = entry_of_model(case).parameters or 0
        steps = reference_protocol(protocol).all_steps
        return training_operations(parameters, case, steps) / SLOWEST[case.device].flops_per_s

    def _allowance_s(self, case: Case) -> float:
        # Steps by time exceed it by up to one step.
        return (SLOWEST[case.device].compile_s if case.compile else 0.0) + 2 * self.plan.protocol.seconds


@dataclass(kw_only=True)
class ComputeRunner(TrainingRunner):
    """Run compute-only launches, which are not verified: a rank alone is no training run."""

    def _judge(self, launch: Launch, case: Case) -> None:
        pass

    def run_reference(self, case: Case) -> None:
        pass

    def run_nccl_probe(self, case: Case) -> None:
        pass

    def expected(self) -> Iterator[tuple[Case, int, Any]]:
        return Runner.expected(self)


# NCCL's message if a pin leaves no algorithm (src/enqueue.cc), and torch's name of that error.
_INVALID_USAGE = re.compile("invalid usage|ncclInvalidUsage|no algorithm/protocol available", re.IGNORECASE)


@dataclass(kw_only=True)
class CollectivesRunner(Runner[CollectiveCase, CollectiveProtocol]):
    """Run collective operations. Each launch checks its own results against exact values."""

    # A case's part of the time of a shared launch, by case id.
    _shared_s: dict[str, float] = field(default_factory=dict)

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

    def turns_spec(self, cases: tuple[CollectiveCase, ...], block: int) -> LaunchSpec:
        """Build the launch. Its deadline is ten times what earlier launches of the cases took. Before the first, one of
        the cases may take ten times its estimate, and each of the others its estimate."""
        protocol = self.plan.protocol
        known = sum(self._shared_s.get(case.id, 0.0) for case in cases)
        deadline_s = max(LEAST_DEADLINE_S, DEADLINE_FACTOR * known)
        if new := [case for case in cases if case.id not in self._shared_s]:
            estimates = [self._estimated_s(case) for case in new]
            expected = max(estimates) + (sum(estimates) - max(estimates)) / DEADLINE_FACTOR
            deadline_s += first_deadline_s(cases[0].device, expected, sum(map(self._allowance_s, new)))
        if protocol.deadline_s is not None:
            deadline_s = protocol.deadline_s * len(cases)
        return LaunchSpec(kind=kind_of(protocol), cases=cases, protocol=protocol, deadline_s=deadline_s)

    def rounds_of(self, cases: tuple[CollectiveCase, ...], protocol: CollectiveProtocol) -> int:
        return most_rounds(protocol, cases)

    def _finish(self, launch: Launch) -> None:
        if launch.status in (Status.OK, Status.WRONG) and "turns" in launch.facts:
            self._shared_s[launch.case.id] = launch.wall_s
        super()._finish(launch)

    def _first_deadline_s(self, case: CollectiveCase, protocol: CollectiveProtocol) -> float:
        return first_deadline_s(case.device, self._estimated_s(case), self._allowance_s(case))

    def _estimated_s(self, case: CollectiveCase) -> float:
        """Return how long the transfers take, in seconds, if the slowest link of one rank carries the bytes of all."""
        bytes_per_s = SLOWEST[case.device].bytes_per_s / case.world_size
        return self.plan.protocol.expected_s(case, bytes_per_s) - self._allowance_s(case)

    def _allowance_s(self, case: CollectiveCase) -> float:
        """Return how long a launch measures, in seconds, if transfers take no time."""
        return self.plan.protocol.expected_s(case, math.inf)


RUNNERS: dict[str, type[Runner[Any, Any]]] = {
    "training": TrainingRunner,
    "compute": ComputeRunner,
    "collectives": CollectivesRunner,
}
