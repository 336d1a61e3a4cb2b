"""The deadlines of launches that were never measured, from the arithmetic or the transfers that they need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from parabench.machine import accelerator
from parabench.plan.case import Case
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.collective_protocol import CollectiveProtocol
from parabench.plan.protocol import DEADLINE_FACTOR, LEAST_DEADLINE_S
from parabench.plan.schedule import TrainingSchedule
from parabench.plan.validate import entry_of_model

# The longest launch that only reads NCCL's choices, in seconds, on an accelerator. It takes three steps.
MOST_EXPLAINING_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowest:
    """The slowest devices and links that a first deadline allows for.

    `compile_s` is the longest compilation of a model by torch.compile. On the CPU, a C++ compiler runs for each kernel.
    `start_s` is the longest setup of contexts, communicators and kernels. `most_s` bounds the time that the rates
    predict. Accelerators differ so much that a rate for all of them would hide a hang for days.
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
        expected_s: the time of arithmetic or transfers at the rates in `SLOWEST`.
        allowance_s: an upper bound of additional time, such as the time to compile.
        most_s: a bound on the estimated part that is lower than the device's.
    """
    slowest = SLOWEST[device]
    estimated_s = min(DEADLINE_FACTOR * expected_s, slowest.most_s, most_s)
    return max(LEAST_DEADLINE_S, estimated_s) + slowest.start_s + allowance_s


def training_operations(parameters: int, case: Case, steps: int) -> int:
    """Return the floating-point operations of these steps on all ranks: 6 per parameter and token.

    Source: Kaplan et al., "Scaling laws for neural language models", 2020.
    """
    return 6 * parameters * case.global_batch * case.seq_len * steps


def training_deadline_s(
    cases: Sequence[Case], schedule: TrainingSchedule, longer: float = 1.0, reference_s: float | None = None
) -> float:
    """Return the first deadline of a launch of these training cases, in seconds.

    Args:
        longer: the ratio of a case's steps to the steps of `schedule`.
        reference_s: the measured time of the single-device reference, if it is known.
    """
    slowest, explains = SLOWEST[cases[0].device], schedule.explain
    # Steps by time exceed it by up to one step.
    allowance_s = sum((slowest.compile_s if case.compile else 0.0) + 2 * schedule.seconds for case in cases)
    if reference_s is not None:
        return max(LEAST_DEADLINE_S, DEADLINE_FACTOR * reference_s + slowest.start_s + allowance_s)
    steps = schedule.by_steps().all_steps
    operations = sum(training_operations(entry_of_model(case).parameters or 0, case, steps) for case in cases)
    expected_s = longer * operations / slowest.flops_per_s
    return first_deadline_s(cases[0].device, expected_s, allowance_s, MOST_EXPLAINING_S if explains else math.inf)


def collectives_deadline_s(cases: Sequence[CollectiveCase], protocol: CollectiveProtocol) -> float:
    """Return the first deadline of a launch of these collective cases, in seconds.

    One of the cases may take ten times its estimate, the others may take their estimates. The estimate assumes that
    the slowest link of one rank carries the bytes of all.
    """
    without_transfers = [protocol.expected_s(case, math.inf) for case in cases]
    rates = [SLOWEST[case.device].bytes_per_s / case.world_size for case in cases]
    all_s = [protocol.expected_s(case, rate) for case, rate in zip(cases, rates, strict=True)]
    transfers_s = [seconds - least for seconds, least in zip(all_s, without_transfers, strict=True)]
    expected_s = max(transfers_s) + (sum(transfers_s) - max(transfers_s)) / DEADLINE_FACTOR
    return first_deadline_s(cases[0].device, expected_s, sum(without_transfers))
