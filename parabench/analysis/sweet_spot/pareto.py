"""Two objectives at once: the configurations that no other beats in both step time and peak memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis import words
from parabench.analysis.sweet_spot.effects import Effects, fit


@dataclass(frozen=True)
class Point:
    """One configuration of the front. `slower` and `less_memory` are against the front's fastest, as fractions;
    `launch_ids` the launches that both numbers are of."""

    case_id: str
    label: str
    strategy: str
    latency_s: float
    peak_memory_bytes: float
    slower: float
    less_memory: float
    launch_ids: tuple[int, ...]


def front(good: pd.DataFrame, labels: Mapping[str, str], confidence: float) -> tuple[Point, ...]:
    """The front of launches that count, of one work, fastest first; empty where nothing can
    be told apart.

    One beats another when it can be told apart as better in one and cannot be told apart as worse in the other: what
    noise decides is no trade. Of those that are alike in both, the faster stands for all.
    """
    known = good[good["peak_memory_bytes"] > 0]
    if known.empty:
        return ()
    time, memory = fit(known), fit(known, "peak_memory_bytes")
    if time.df < 1:
        return ()

    sooner, smaller = _better(time, confidence), _better(memory, confidence)
    beats = (sooner | smaller) & ~sooner.T & ~smaller.T
    order = sorted(range(len(time.cases)), key=lambda at: time.means[time.cases[at]])
    chosen: list[int] = []
    for at in order:
        if not beats[:, at].any() and (smaller[at, chosen] | smaller[chosen, at]).all():
            chosen.append(at)
    kept = [time.cases[at] for at in chosen]
    first = kept[0]
    rows = known.groupby("case_id")
    return tuple(
        Point(
            case_id=case,
            label=labels[case],
            strategy=str(rows.get_group(case)["strategy"].iloc[0]),
            latency_s=math.exp(time.means[case]),
            peak_memory_bytes=math.exp(memory.means[case]),
            slower=math.expm1(time.means[case] - time.means[first]),
            less_memory=-math.expm1(memory.means[case] - memory.means[first]) + 0.0,  # the first's is no -0.0
            launch_ids=tuple(int(at) for at in rows.get_group(case)["launch_id"]),
        )
        for case in kept
    )


def _better(by: Effects, confidence: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which case (a row) can be told apart as better than which other (a column)."""
    means = np.array(list(by.means.values()))
    widths = np.array([by.half_widths(case, confidence) for case in by.cases])
    better: np.ndarray[Any, np.dtype[np.bool_]] = means - means[:, None] > widths + words.EXACT
    return better
