"""Compute the deadlines of launches without earlier measurements, from their arithmetic or transfers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from parabench.machine import accelerator
from parabench.plan.case import Case
from parabench.plan.collective_case import CollectiveCase
from parabench.plan.collective_protocol import CollectiveProtocol
from parabench.plan.protocol import DEADLINE_FACTOR, LEAST_DEADLINE_S
from parabench.plan.schedule import TrainingSchedule
from parabench.plan.validate import entry_of_model

# The longest launch that only reads NCCL's choices, in seconds, on an accelerator. It takes three steps.
MOST_EXPLAINING_S = 180.0


# The slowest devices and links that a first deadline allows for.
FLOPS_PER_S = {"cpu": 5e9, accelerator.TYPE: 1e12}
BYTES_PER_S = {"cpu": 100e6, accelerator.TYPE: 1e9}
# The longest time that these rates predict. Accelerators differ so much that a rate for all would hide a hang for days.
MOST_S = {"cpu": math.inf, accelerator.TYPE: 600.0}
# The longest setup of contexts, communicators and kernels.
START_S = {"cpu": 0.0, accelerator.TYPE: 60.0}
# The longest compilation of a model by torch.compile. On the CPU, a C++ compiler runs for each kernel.
COMPILE_S = {"cpu": 600.0, accelerator.TYPE: 180.0}


def training_operations(case: Case, steps: int) -> int:
    """Return the floating-point operations of `steps` steps on all ranks together: 6 per parameter and token.

    The result is 0 if the size of the model is unknown. Source: Kaplan et al., "Scaling laws for neural language
    models", 2020.
    """
    return 6 * (entry_of_model(case).parameters or 0) * case.global_batch * case.seq_len * steps


def first_deadline_s(
    cases: Sequence[Case | CollectiveCase],
    protocol: TrainingSchedule | CollectiveProtocol,
    reference_s: float | None = None,
    longer: float = 1.0,
) -> float:
    """Return the deadline in seconds of a launch of cases that were not measured yet.

    Each training case may take ten times its estimate. For collectives, this holds for the longest case only, and the
    other cases may take their estimates.

    Args:
        reference_s: the measured time of the single-device reference, for a launch of one case. It replaces the
            estimate.
        longer: the steps of the launch, divided by the steps of `protocol`.
    """
    device = cases[0].device
    estimates = [_estimate(case, protocol) for case in cases]
    expected_s, longest_s = sum(each for each, _ in estimates), max(each for each, _ in estimates)
    explains = isinstance(protocol, TrainingSchedule) and protocol.explain
    most_s = MOST_EXPLAINING_S if explains else MOST_S[device]
    if isinstance(protocol, CollectiveProtocol):
        allowed_s = DEADLINE_FACTOR * longest_s + expected_s - longest_s
    else:
        allowed_s = DEADLINE_FACTOR * longer * expected_s
    allowed_s = min(allowed_s, most_s)
    if reference_s is not None:
        allowed_s = DEADLINE_FACTOR * reference_s
    return max(LEAST_DEADLINE_S, allowed_s) + START_S[device] + sum(other_s for _, other_s in estimates)


def _estimate(case: Case | CollectiveCase, protocol: TrainingSchedule | CollectiveProtocol) -> tuple[float, float]:
    """Return the seconds of a case's arithmetic or transfers, and the seconds that do not depend on their rates.

    The estimate assumes that one device computes, or one link carries, the work of all ranks.
    """
    if isinstance(protocol, CollectiveProtocol):
        assert isinstance(case, CollectiveCase)
        without_s = protocol.expected_s(case, math.inf)
        return protocol.expected_s(case, BYTES_PER_S[case.device] / case.world_size) - without_s, without_s
    assert isinstance(case, Case)
    # The last step by time ends after this time, so twice the time is allowed.
    other_s = (COMPILE_S[case.device] if case.compile else 0.0) + 2 * protocol.seconds
    return training_operations(case, protocol.by_steps().all_steps) / FLOPS_PER_S[case.device], other_s
