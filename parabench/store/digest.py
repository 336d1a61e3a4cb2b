"""Summarize the samples of a launch, so that answers read a hundredth of the rows.

A digest holds the time of each measured step on its slowest rank, the median over each rank's measured steps of
`step_s`, its parts and the device's lag, and every sample without a step. Unknown numbers are NaN.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from parabench.metrics import STEP_PARTS
from parabench.store.record import Phase, Sample

# The kinds of digests: `slowest` by step and `median` by rank, of measured steps; `whole` by rank, of no step.
SLOWEST, MEDIAN, WHOLE = "slowest", "median", "whole"

_TIMED = ("step_s", *STEP_PARTS, "device_lag_s")
_UNKNOWN = float("nan")


class Digest(NamedTuple):
    """One row of the table: `place` are steps or ranks as little-endian int64, `value` as many float64."""

    kind: str
    phase: str
    metric: str
    place: bytes
    value: bytes


def digests(samples: Iterable[Sample]) -> list[Digest]:
    """Return the digests of one launch."""
    whole: dict[tuple[str, str], list[tuple[int, float]]] = {}
    by_rank: dict[str, dict[int, list[float]]] = {}
    slowest: dict[int, float] = {}
    for rank, step, phase, metric, told in samples:
        value = _UNKNOWN if told is None else float(told)
        if step is None:
            whole.setdefault((phase, metric), []).append((rank, value))
            continue
        if phase == Phase.MEASURE and metric in _TIMED:
            by_rank.setdefault(metric, {}).setdefault(rank, []).append(value)
        if phase == Phase.MEASURE and metric == "step_s":
            before = slowest.get(step, value)
            # If one rank's time is unknown, the slowest rank is unknown.
            slowest[step] = value if value > before or value != value else before
    found = [_packed(SLOWEST, Phase.MEASURE, "step_s", sorted(slowest.items()))] if slowest else []
    for metric, ranks in by_rank.items():
        medians = [(rank, _median(values)) for rank, values in sorted(ranks.items())]
        found.append(_packed(MEDIAN, Phase.MEASURE, metric, medians))
    found += [_packed(WHOLE, phase, metric, numbers) for (phase, metric), numbers in whole.items()]
    return found


def _packed(kind: str, phase: str, metric: str, numbers: Sequence[tuple[int, float]]) -> Digest:
    places, values = zip(*numbers, strict=True)
    return Digest(
        kind, phase, metric, struct.pack(f"<{len(places)}q", *places), struct.pack(f"<{len(values)}d", *values)
    )


def _median(values: list[float]) -> float:
    """Return the median of the known values."""
    import statistics  # takes 10 ms to import, which commands that only read save

    return statistics.median([value for value in values if value == value] or [_UNKNOWN])
