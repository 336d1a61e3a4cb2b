"""Summarize the samples of a launch, so that answers read a hundredth of the rows. Unknown numbers are NaN."""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from parabench.metrics import STEP_PARTS
from parabench.store.record import Phase, Sample, slowest

# The kinds of digests: `slowest` by step and `median` by rank, of measured steps; `whole` by rank, of no step.
SLOWEST, MEDIAN, WHOLE = "slowest", "median", "whole"

_TIMED = ("step_s", *STEP_PARTS, "device_lag_s")


class Digest(NamedTuple):
    """One row of the table: `place` are steps or ranks as little-endian int64, `value` the same number of float64."""

    kind: str
    phase: str
    metric: str
    place: bytes
    value: bytes


def digests(samples: Sequence[Sample]) -> list[Digest]:
    """Return the digests of one launch."""
    whole: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    by_rank: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for rank, step, phase, metric, told in samples:
        value = math.nan if told is None else float(told)
        if step is None:
            whole[phase, metric].append((rank, value))
        elif phase == Phase.MEASURE and metric in _TIMED:
            by_rank[metric][rank].append(value)
    measured = (each for each in samples if each.phase == Phase.MEASURE and each.metric == "step_s")
    steps = slowest((each.step, each.value) for each in measured if each.step is not None)
    found = [_packed(SLOWEST, Phase.MEASURE, "step_s", steps.items())] if steps else []
    for metric, ranks in by_rank.items():
        medians = [(rank, _median(values)) for rank, values in sorted(ranks.items())]
        found.append(_packed(MEDIAN, Phase.MEASURE, metric, medians))
    return found + [_packed(WHOLE, phase, metric, numbers) for (phase, metric), numbers in whole.items()]


def _packed(kind: str, phase: str, metric: str, numbers: Iterable[tuple[int, float]]) -> Digest:
    places, values = zip(*numbers, strict=True)
    count = len(places)
    return Digest(kind, phase, metric, struct.pack(f"<{count}q", *places), struct.pack(f"<{count}d", *values))


def _median(values: list[float]) -> float:
    """Return the median of the known values."""
    import statistics  # takes 10 ms to import, which commands that only read save

    return statistics.median([value for value in values if value == value] or [math.nan])
