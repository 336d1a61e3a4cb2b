"""Welch's test on the logarithms of launch numbers, and Holm's adjustment for many tests."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


def welch(base: np.ndarray, new: np.ndarray) -> tuple[float, float, float]:
    """(low, high, p) of new / base from logs: the two-sided 95 % interval and the one-sided p of "slower".

    Welch's t with Satterthwaite's degrees of freedom; launches that agree exactly leave no doubt either way.
    """
    variances = [float(side.var(ddof=1)) / len(side) for side in (base, new)]
    difference = float(new.mean() - base.mean())
    total = sum(variances)
    if total < 1e-18:  # rounding of equal numbers
        ratio = math.exp(difference)
        return ratio, ratio, 0.0 if difference > 1e-9 else 1.0
    df = total**2 / sum(v**2 / (len(side) - 1) for v, side in zip(variances, (base, new), strict=True))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, df)) * math.sqrt(total)
    p = float(stats.t.sf(difference / math.sqrt(total), df))
    return _exp(difference - half), _exp(difference + half), p


def holm(p_values: list[float]) -> list[float]:
    """Holm's step-down adjustment; keeps the family-wise error without assuming independence."""
    adjusted = [1.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def _exp(value: float) -> float:
    return math.exp(max(-50.0, min(50.0, value)))  # an interval from two wild launches must stay JSON-able
