"""The one number of a launch: which quantile of its steps, or of its calls, stands for it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from parabench.machine import accelerator
from parabench.plan.case import UNKNOWN

# Other tenants of a shared CPU only ever make a step slower, so a low quantile estimates the undisturbed
# step: its A/A spread was 2.5% where the median's was 9.7%. A dedicated GPU is not disturbed, and there the
# median is robust.
QUANTILE = {accelerator.TYPE: 0.5, "cpu": 0.1, UNKNOWN: 0.5}
STATISTIC = {accelerator.TYPE: "median", "cpu": "10th percentile", UNKNOWN: "median"}


def device_of(device: str, gpus: bool) -> str:
    """The device that a case's `device` field means on a machine with or without `gpus`."""
    return device if device != "auto" else accelerator.TYPE if gpus else "cpu"


def launch_number(seconds: Iterable[float], device: str) -> float | None:
    """The number of a launch on `device` (cuda, cpu) from the seconds of its steps or calls, each as long as its
    slowest rank; one without a known end has no known length and does not count. None where none is left."""
    known = [each for each in seconds if math.isfinite(each)]
    return float(np.quantile(known, QUANTILE[device])) if known else None
