"""Two objectives at once: the configurations that no other beats in both step time and peak memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis.numbers import levels
from parabench.analysis.stats.block_model import Effects, fit
from parabench.analysis.text import format

Truths = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class ParetoPoint:
    """One configuration of the front. `slower` and `less_memory` are against the front's fastest, as fractions;
    `launch_ids` the launches that both numbers are of."""

    case_id: str
    label: str
    strategy: str
    step_time_s: float
    peak_memory_bytes: float
    slower: float
    less_memory: float
    launch_ids: tuple[int, ...]


def front(good: pd.DataFrame, cases: Mapping[str, Mapping[str, Any]]) -> tuple[ParetoPoint, ...]:
    """The front of launches that count, of one work, with the rows of its case table by id; fastest first, empty where
    no difference is significant.

    One beats another when it is significantly better in one and not significantly worse in the other: what noise
    decides is no trade. Of those that are alike in both, the faster stands for all.
    """
    known = good[good["peak_memory_bytes"] > 0]
    if not len(known):
        return ()
    time, memory = fit(known), fit(known, "peak_memory_bytes")
    if time.df < 1:
        return ()

    # Launches of unknown memory are left out, so some configurations may not be connected any more.
    place = {case: at for at, case in enumerate(time.cases)}
    order = [place[case] for case in time.connected()]
    chosen: dict[int, _Against] = {}
    for at in order:
        # Most are beaten by one that is on the front already, so that few need a look at all others.
        if any(one.beats[at] for one in chosen.values()):
            continue
        own = _Against.of(at, time, memory)
        if not own.beaten.any() and all(one.other_memory[at] for one in chosen.values()):
            chosen[at] = own
    kept = [time.cases[at] for at in chosen]
    slower, larger = (dict(zip(each.cases, each.behind(kept[0]).tolist(), strict=True)) for each in (time, memory))
    launches, peaks = launch_ids(known), levels(known, "peak_memory_bytes")
    return tuple(
        ParetoPoint(
            case_id=case,
            label=cases[case]["label"],
            strategy=cases[case]["strategy"],
            step_time_s=cases[case]["step_time_s"],
            peak_memory_bytes=peaks[case],
            slower=math.expm1(slower[case]),
            less_memory=-math.expm1(larger[case]) + 0.0,  # the first's is no -0.0
            launch_ids=launches[case],
        )
        for case in kept
    )


def launch_ids(launches: pd.DataFrame) -> dict[str, tuple[int, ...]]:
    """{case id: the ids of its launches}."""
    found: dict[str, list[int]] = {}
    for case, at in zip(launches["case"], launches["launch_id"], strict=True):
        found.setdefault(case, []).append(int(at))
    return {case: tuple(ids) for case, ids in found.items()}


@dataclass(frozen=True)
class _Against:
    """One case against each: which it `beats`, which it is `beaten` by, and from which its memory differs."""

    beats: Truths
    beaten: Truths
    other_memory: Truths

    @classmethod
    def of(cls, at: int, time: Effects, memory: Effects) -> _Against:
        sooner, later = _distinguishable(time, at)
        smaller, larger = _distinguishable(memory, at)
        return cls((sooner | smaller) & ~later & ~larger, (later | larger) & ~sooner & ~smaller, smaller | larger)


def _distinguishable(by: Effects, at: int) -> tuple[Truths, Truths]:
    """Than which cases the one at place `at` is distinguishably better, and than which worse."""
    apart = by.behind(by.cases[at])
    widths = by.half_widths(by.cases[at]) + format.EXACT
    return apart > widths, -apart > widths
