"""A launch's samples in brief, kept beside them: reading a large store then costs a hundredth of its rows.

Nothing is decided here that an analysis could want otherwise: a digest holds each step on its slowest rank, each rank's
median of every part of a step and of how far its device lagged, and all that belongs to no step, as it was told.
Numbers that are unknown are NaN.
"""

from __future__ import annotations

import statistics
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from parabench.store.metrics import STEP_PARTS
from parabench.store.record import Phase, Sample

# The kinds of digests: of timed steps `slowest`, by step, and `median`, by rank; `whole`, by rank, is of no step.
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


@dataclass(slots=True)
class _Gathered:
    """Of one launch, in the order in which it was told."""

    whole: dict[tuple[str, str], tuple[list[int], list[float]]] = field(default_factory=dict)
    by_rank: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    steps: dict[int, float] = field(default_factory=dict)

    def add(self, rank: int, step: int | None, phase: str, metric: str, told: float | None) -> None:
        value = _UNKNOWN if told is None else float(told)
        if step is None:
            ranks, values = self.whole.setdefault((phase, metric), ([], []))
            ranks.append(rank)
            values.append(value)
        elif phase == Phase.MEASURE and metric in _TIMED:
            self.by_rank.setdefault(metric, {}).setdefault(rank, []).append(value)
            if metric == "step_s":
                before = self.steps.get(step, value)
                # Unknown on one rank is unknown: nobody can say that another was the slowest.
                self.steps[step] = value if value > before or value != value else before

    def digests(self) -> Iterator[Digest]:
        if self.steps:
            yield _packed(SLOWEST, Phase.MEASURE, "step_s", dict(sorted(self.steps.items())))
        for metric, ranks in self.by_rank.items():
            medians = {rank: _median(values) for rank, values in sorted(ranks.items())}
            yield _packed(MEDIAN, Phase.MEASURE, metric, medians)
        for (phase, metric), (owners, values) in self.whole.items():
            yield Digest(WHOLE, phase, metric, _integers(owners), _floats(values))


def digests(samples: Iterable[Sample]) -> list[Digest]:
    """Those of one launch, from its samples."""
    gathered = _Gathered()
    for sample in samples:
        gathered.add(*sample)
    return list(gathered.digests())


def _packed(kind: str, phase: str, metric: str, numbers: Mapping[int, float]) -> Digest:
    return Digest(kind, phase, metric, _integers(list(numbers)), _floats(list(numbers.values())))


def _integers(values: list[int]) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def _floats(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


def _median(values: list[float]) -> float:
    """Of those that are known."""
    known = [value for value in values if value == value]
    return statistics.median(known) if known else _UNKNOWN
