"""How long a launch may take before it counts as hung, as long as nothing like it was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from parabench.machine import accelerator
from parabench.plan.protocol import DEADLINE_FACTOR, LEAST_DEADLINE_S

# The longest explaining launch on an accelerator, in seconds: it takes three steps.
MOST_EXPLAINING_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowest:
    """The slowest devices and links that a first deadline allows for.

    `compile_s` is the longest compilation of a model by torch.compile; on the CPU a C++ compiler runs for each kernel.
    `start_s` is what contexts, communicators and the loading of kernels may take. `most_s` bounds what the rates
    predict: accelerators differ so much that a rate that fits all of them would hide a hang for days.
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
