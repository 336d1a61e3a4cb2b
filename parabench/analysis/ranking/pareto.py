"""The Pareto front: configurations that no other beats in both step time and peak memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from parabench.analysis.numbers import levels
from parabench.analysis.ranking.tables import Row
from parabench.analysis.stats.contrasts import fit


def front(good: pd.DataFrame, cases: Mapping[str, Row]) -> list[Row]:
    """Return the rows of the table `front`, fastest first, from launches of one workload that count.

    A configuration beats another if it is significantly better in one number and not significantly worse in the other.
    The front is empty if no difference is significant.
    """
    known = good[good["peak_memory_bytes"] > 0]
    if not len(known):
        return []
    time, memory = fit(known), fit(known, "peak_memory_bytes")
    if time.df < 1:
        return []
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
    return [
        {
            "case_id": case,
            **{name: cases[case][name] for name in ("label", "strategy", "step_time_s")},
            "peak_memory_bytes": peaks[case],
            "slower": float(slower[case]),
            "less_memory": 0.0 - float(larger[case]),  # not -0.0
            "launch_ids": launches[case],
        }
        for case in kept
    ]
