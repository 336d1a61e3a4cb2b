"""The noise floor (`--self-check`): how much two copies of one configuration differ in the launches that they share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from parabench.analysis.session import SessionData
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.quantiles import t_quantile
from parabench.analysis.text import format
from parabench.analysis.turns import compared, shared_launches_of
from parabench.store.record import TWIN_BLOCK


@dataclass(frozen=True)
class NoiseFloor:
    """How much longer a step of the second copy takes, as a fraction, in the mean of `launches`: `half_width` is that
    of its 95 % interval, `sd` the standard deviation of one launch's, both None of one launch. `case_id` is None where
    launches had copies of different cases."""

    case_id: str | None
    launches: int
    difference: float
    half_width: float | None
    sd: float | None


def noise_floor(seen: SessionData) -> NoiseFloor | None:
    """Of the shared launches of a session that count; None where no case was measured twice in one."""
    if not (seen.numbers["repetition"] == TWIN_BLOCK).any():
        return None
    found: dict[str, list[float]] = {}
    for launch in seen.once(shared_launches_of):
        cases = launch.cases
        copies = [row for row, case in enumerate(cases) if cases.count(case) > 1]
        if len(copies) == 2:
            numbers = compared(launch.turns)
            found.setdefault(cases[copies[0]], []).append(float(numbers[copies[1]] - numbers[copies[0]]))
    differences = np.array([each for own in found.values() for each in own])
    n = len(differences)
    if n == 0:
        return None
    sd = float(differences.std(ddof=1)) if n > 1 else None
    width = None if sd is None else t_quantile((1 + CONFIDENCE) / 2, n - 1) * sd / math.sqrt(n)
    return NoiseFloor(
        case_id=next(iter(found)) if len(found) == 1 else None,
        launches=n,
        difference=math.expm1(differences.mean()),
        half_width=None if width is None else math.expm1(width),
        sd=None if sd is None else math.expm1(sd),
    )


def sentence(of: NoiseFloor, labels: Mapping[str, str]) -> str:
    """Return 'Two copies of X differed by 0.4 % (95 %: ±0.9 %) in 5 shared launches.'"""
    what = labels.get(of.case_id or "", "the same configuration")
    within = "" if of.half_width is None else f" (95 %: {format.within(of.half_width)})"
    launches = format.count(of.launches, "shared launch")
    return f"Two copies of {what} differed by {format.percent(abs(of.difference))}{within} in {launches}."
