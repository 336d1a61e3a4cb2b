"""Select instrumented steps and return their spans and calls by rank, for timelines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pandas as pd

from parabench.analysis.collectives.bus import bus_factor
from parabench.analysis.environment.nodes import node_of_rank
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import collectives, instrumented_steps
from parabench.store.record import GB
from parabench.strategies import entry_of

# The most timelines that are shown.
MOST_TIMELINES = 3


@dataclass(frozen=True)
class Timeline:
    """A step of a launch, in seconds after the first rank started it.

    - `length_s`: the length of the step on its slowest rank
    - `spans`: one row per activity of a rank: rank, name, start_s and end_s
    - `calls`: the columns of `store.record.CollectiveSample`, and busbw in GB/s, from the duration on the rank
    - `node_of`: {rank: node}, empty on one node
    """

    case_id: str
    launch_id: int
    step: int
    length_s: float
    spans: pd.DataFrame
    calls: pd.DataFrame
    node_of: Mapping[int, int]

    @property
    def ranks(self) -> list[int]:
        """The ranks with spans, in order."""
        return sorted(map(int, self.spans["rank"].unique()))


def timelines(seen: SessionData) -> tuple[str, list[Timeline]]:
    """Return the timelines of the fastest case of each strategy or algorithm, fastest first, and which of the two.

    With one strategy, its algorithms are compared. Unranked cases, and cases without recorded calls, are left out.
    """
    rows = seen.cases[seen.cases["step_time_s"].notna() & (seen.cases["world_size"] > 1)]
    rows = rows[[entry_of(str(strategy)).ranked for strategy in rows["strategy"]]]
    each = "strategy" if rows["strategy"].nunique() > 1 else "algorithm"
    steps = (median_step(seen, str(case_id)) for case_id in rows.drop_duplicates(each)["case_id"])
    return each, list(islice((one for one in steps if one is not None and len(one.calls)), MOST_TIMELINES))


def median_step(seen: SessionData, case_id: str) -> Timeline | None:
    """Return the timeline of a case's instrumented step of median length (the lower of two); None if it has none."""
    lengths = seen.once(_lengths)
    lengths = lengths[lengths["case"] == case_id]
    if lengths.empty:
        return None
    chosen = lengths.iloc[(len(lengths) - 1) // 2]
    launch_id, step = int(chosen["launch_id"]), int(chosen["step"])
    calls = _of_step(seen.once(collectives), launch_id, step)
    factors = [bus_factor(str(op), int(n)) for op, n in zip(calls["op"], calls["group_size"], strict=True)]
    busbw = calls["bytes"] / calls["duration_s"].where(calls["duration_s"] > 0) / GB * np.array(factors, dtype=float)
    return timeline_of(seen, launch_id, step, float(chosen["length_s"]), calls.assign(busbw=busbw))


def timeline_of(seen: SessionData, launch_id: int, step: int, length_s: float, calls: pd.DataFrame) -> Timeline:
    """Return the timeline of a step of a launch. The times of `calls` are on the clock of the launch."""
    spans = _of_step(seen.results.span, launch_id, step)
    begin = float(spans["start_s"].min())
    spans, calls = (
        table.assign(**{name: table[name] - begin for name in names})
        for table, names in ((spans, ("start_s", "end_s")), (calls, ("made_s", "start_s", "ready_s")))
    )
    case = seen.numbers.loc[seen.numbers["launch_id"] == launch_id, "case"].iloc[0]
    return Timeline(str(case), launch_id, step, length_s, spans, calls, node_of_rank(seen.facts[launch_id]))


def _lengths(seen: SessionData) -> pd.DataFrame:
    """Return one row per instrumented step: `launch_id, step, case, length_s`, shortest first."""
    steps = seen.once(instrumented_steps).table
    lengths = (steps["end_s"] - steps["start_s"]).groupby([steps["launch_id"], steps["step"]]).max()
    table = lengths.rename("length_s").reset_index().merge(seen.counted[["launch_id", "case"]], on="launch_id")
    return table.sort_values("length_s", kind="stable")


def _of_step(rows: pd.DataFrame, launch_id: int, step: int) -> pd.DataFrame:
    return rows[(rows["launch_id"] == launch_id) & (rows["step"] == step)]


def lanes(begins: Iterable[float], ends: Iterable[float]) -> list[int]:
    """Return the lowest lane for each interval, in order of their starts, so that no two in a lane overlap."""
    busy: list[float] = []
    found = []
    for begin, end in zip(begins, ends, strict=True):
        lane = next((at for at, until in enumerate(busy) if until <= begin), len(busy))
        busy[lane : lane + 1] = [end]
        found.append(lane)
    return found
