"""A launch's samples in brief, kept beside them: reading a large store then costs a hundredth of its rows.

Nothing is decided here that an analysis could want otherwise: a digest holds each timed or settling step on its slowest
rank, each rank's median of every part of a timed step and of how far its device lagged, and all that belongs to no
step, as it was told.
Numbers that are unknown are NaN.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from parabench.store.metrics import STEP_PARTS
from parabench.store.record import Phase, Sample

# The kinds of digests: of timed and of settling steps `slowest`, by step; of timed ones `median`, by rank; `whole`, by
# rank, is of no step.
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
    """Those of one launch, from its samples in the order in which they were told."""
    whole: dict[tuple[str, str], list[tuple[int, float]]] = {}
    by_rank: dict[str, dict[int, list[float]]] = {}
    steps: dict[str, dict[int, float]] = {}
    for rank, step, phase, metric, told in samples:
        value = _UNKNOWN if told is None else float(told)
        if step is None:
            whole.setdefault((phase, metric), []).append((rank, value))
            continue
        if phase == Phase.MEASURE and metric in _TIMED:
            by_rank.setdefault(metric, {}).setdefault(rank, []).append(value)
        if metric == "step_s" and phase in (Phase.MEASURE, Phase.SETTLE):
            slowest = steps.setdefault(phase, {})
            before = slowest.get(step, value)
            # Unknown on one rank is unknown: nobody can say that another was the slowest.
            slowest[step] = value if value > before or value != value else before
    found = [_packed(SLOWEST, phase, "step_s", sorted(slowest.items())) for phase, slowest in steps.items()]
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
    """Of those that are known."""
    import statistics  # a hundredth of a second: not to read what is told already

    known = [value for value in values if value == value]
    return statistics.median(known) if known else _UNKNOWN
