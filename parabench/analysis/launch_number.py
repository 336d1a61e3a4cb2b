"""The per-launch statistic: a quantile of the steps or calls of a launch. `numbers.step_numbers` computes it for
tables."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from parabench.machine import accelerator
from parabench.plan.case import UNKNOWN

# Other tenants of a shared CPU only make a step slower, so a low quantile estimates the undisturbed step. Its A/A
# spread was 2.5%, and the spread of the median was 9.7%. On a dedicated GPU, which is not disturbed, the median is
# robust.
QUANTILE = {accelerator.TYPE: 0.5, "cpu": 0.1, UNKNOWN: 0.5}
STATISTIC = {accelerator.TYPE: "median", "cpu": "10th percentile", UNKNOWN: "median"}


def launch_number(seconds: Iterable[float], device: str) -> float | None:
    """Return the statistic of one launch on `device` (cuda, cpu), during a run, or None if no length is known.
    `seconds` are the lengths of its steps or calls on their slowest ranks; unknown ones are not finite and do not
    count."""
    known = [each for each in seconds if math.isfinite(each)]
    return float(np.quantile(known, QUANTILE[device])) if known else None
