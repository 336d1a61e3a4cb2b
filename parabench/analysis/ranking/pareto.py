"""The Pareto front: configurations that no other beats in both step time and peak memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.numbers import levels
from parabench.analysis.stats.contrasts import fit


@dataclass(frozen=True)
class ParetoPoint:
    """A configuration of the front. `slower` and `less_memory` are fractions relative to the front's fastest."""

    case_id: str
    label: str
    strategy: str
    step_time_s: float
    peak_memory_bytes: float
    slower: float
    less_memory: float
    launch_ids: tuple[int, ...]


def front(good: pd.DataFrame, cases: Mapping[str, Mapping[str, Any]]) -> tuple[ParetoPoint, ...]:
    """Return the front, fastest first, from launches of one workload that count; empty without significant differences.

    A configuration beats another if it is significantly better in one number and not significantly worse in the other.
    """
    known = good[good["peak_memory_bytes"] > 0]
    if not len(known):
        return ()
    time, memory = fit(known), fit(known, "peak_memory_bytes")
    if time.df < 1:
        return ()
    smaller = memory.less()
    better = time.less() | smaller
    beats, unlike = better & ~better.T, smaller | smaller.T
    chosen: list[int] = []
    for at in time.cases.get_indexer(pd.Index(time.connected())).tolist():
        if not beats[:, at].any() and unlike[chosen, at].all():
            chosen.append(at)  # if two are alike in both numbers, the faster represents both
    kept = time.cases[chosen].tolist()
    slower, larger = (np.expm1(each.behind(kept[0])) for each in (time, memory))
    launches, peaks = known.groupby("case")["launch_id"].agg(tuple), levels(known, "peak_memory_bytes")
    return tuple(
        ParetoPoint(
            **{name: cases[case][name] for name in ("label", "strategy", "step_time_s")},
            case_id=case,
            peak_memory_bytes=peaks[case],
            slower=float(slower[case]),
            less_memory=0.0 - float(larger[case]),  # not -0.0
            launch_ids=launches[case],
        )
        for case in kept
    )


def front_table(points: Sequence[Any]) -> list[str]:
    """Return the front as lines of text."""
    rows = [["configuration", "step", "peak memory", "slower", "less memory"]]
    for point in points:
        apart = [format.percent(each) if point is not points[0] else "–" for each in (point.slower, point.less_memory)]
        rows.append(
            [point.label, format.milliseconds(point.step_time_s), format.mebibytes(point.peak_memory_bytes), *apart]
        )
    return format.aligned(rows)
