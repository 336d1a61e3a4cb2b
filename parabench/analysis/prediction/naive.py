"""What everybody would guess of more ranks, so that a prediction can be held against it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from parabench.analysis.prediction.base import MEASURED_APART, Measured
from parabench.plan.case import Case
from parabench.strategies import Layout, entry_of


class Forecasts(NamedTuple):
    """Seconds of a step: with the throughput of a rank as at the most ranks that were measured, and on the straight
    line of it in log2 of the ranks through all of them; None where too little was measured."""

    constant_s: float | None
    line_s: float | None


def forecasts(case: Case, measured: Sequence[Measured]) -> Forecasts:
    """The forecasts from measured cases of the same strategy that compute the same on each rank, and one device; of one
    number of ranks those that travel most like the case."""
    points: dict[int, float] = {}
    for each in sorted(measured, key=lambda each: _likeness(case, each.case)):
        alike = each.case.strategy == case.strategy and _same(case, each.case)
        alone = each.case.world_size == 1 and _same(case, each.case)
        if (alike or alone) and each.case.world_size < case.world_size:
            points[each.case.world_size] = each.step_s
    if not points:
        return Forecasts(None, None)
    # Samples a second and rank, in steps of the case.
    rates = {ranks: _samples(case, ranks) / ranks / step_s for ranks, step_s in points.items()}
    most = max(rates)
    own = _samples(case, case.world_size) / case.world_size
    constant = own / rates[most]
    if len(rates) < 2:
        return Forecasts(constant, None)
    below = max(ranks for ranks in rates if ranks < most)
    slope = (rates[most] - rates[below]) / (math.log2(most) - math.log2(below))
    rate = rates[most] + slope * (math.log2(case.world_size) - math.log2(most))
    return Forecasts(constant, own / rate if rate > 0 else None)


def _samples(case: Case, ranks: int) -> float:
    """How many samples a step of so many ranks has that does what the case does."""
    if entry_of(case.strategy).layout is Layout.DATA:
        return case.global_batch / case.world_size * ranks
    return case.global_batch


def _same(case: Case, other: Case) -> bool:
    """Whether a rank of both has as many samples of the same model."""
    if case.data_ranks == 1:
        samples = other.global_batch == case.global_batch
    else:
        samples = case.global_batch // case.data_ranks == other.global_batch // other.data_ranks
    return samples and all(
        getattr(case, name) == getattr(other, name) for name in (*MEASURED_APART, "activation_checkpointing")
    )


def _likeness(case: Case, other: Case) -> tuple[bool, bool, bool]:
    """The most alike come last."""
    return (
        (other.nodes > 1) == (case.nodes > 1),
        other.algorithm == case.algorithm,
        other.bucket_mib == case.bucket_mib,
    )
