"""The noise floor (`--self-check`): how much two copies of one configuration differ in the launches that they share."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import stdtrit

from parabench.analysis.session import SessionData
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.text import format
from parabench.analysis.turns import compared, shared_launches_of
from parabench.store.record import TWIN_BLOCK


def noise_floor(seen: SessionData) -> list[str]:
    """Return 'Two copies of X differed by 0.4 % (95 %: ±0.9 %) in 5 shared launches.', or nothing without copies."""
    if not (seen.numbers["repetition"] == TWIN_BLOCK).any():
        return []
    found: list[tuple[str, float]] = []
    for launch in seen.once(shared_launches_of):
        cases = launch.cases
        copies = [row for row, case in enumerate(cases) if cases.count(case) > 1]
        if len(copies) == 2:
            first, second = compared(launch.turns)[copies]
            found.append((cases[copies[0]], float(second - first)))
    if not found:
        return []
    copied, differences, n = {case for case, _ in found}, np.array([each for _, each in found]), len(found)
    what = seen.labels[next(iter(copied))] if len(copied) == 1 else "the same configuration"
    within = ""
    if n > 1:
        width = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * float(differences.std(ddof=1)) / math.sqrt(n)
        within = f" (95 %: {format.within(math.expm1(width))})"
    difference = format.percent(abs(math.expm1(differences.mean())))
    return [f"Two copies of {what} differed by {difference}{within} in {format.count(n, 'shared launch')}."]
