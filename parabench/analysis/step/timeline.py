"""One instrumented step of one case, rank by rank: which one is shown, and what happened in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pandas as pd

from parabench.analysis.collectives.bus import bus_factor
from parabench.analysis.environment.nodes import node_of_rank
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import collectives, instrumented_steps
from parabench.store.record import GB
from parabench.strategies import entry_of

# A span or a call, by the names of their columns.
Row = dict[Any, Any]

# More timelines than this are not compared but scrolled past.
MOST_TIMELINES = 3


@dataclass(frozen=True)
class Timeline:
    """A step of a launch, in seconds after the first rank began it.

    `spans` have rank, name, start_s and end_s. `calls` have the columns of `store.record.CollectiveSample`, and busbw,
    GB/s over the rank's own duration; unknown is NaN. `node_of` has each rank's node in a launch on several nodes.
    """

    case_id: str
    launch_id: int
    step: int
    length_s: float
    spans: list[Row]
    calls: list[Row]
    node_of: Mapping[int, int]

    @property
    def ranks(self) -> list[int]:
        """Those that were seen, in order."""
        return sorted({int(span["rank"]) for span in self.spans})


def timelines(seen: SessionData) -> tuple[str, list[Timeline]]:
    """What is compared, "strategy" or "algorithm", and the fastest case of each, fastest first, at most MOST_TIMELINES.

    Only what may be an answer and was seen to communicate. Where a single strategy was measured, its algorithms are
    what differs.
    """
    rows = seen.cases[seen.cases["step_time_s"].notna() & (seen.cases["world_size"] > 1)]
    rows = rows[[entry_of(str(strategy)).ranked for strategy in rows["strategy"]]]
    each = "strategy" if rows["strategy"].nunique() > 1 else "algorithm"
    steps = (median_step(seen, str(case_id)) for case_id in rows.drop_duplicates(each)["case_id"])
    return each, list(islice((one for one in steps if one is not None and len(one.calls)), MOST_TIMELINES))


def median_step(seen: SessionData, case_id: str) -> Timeline | None:
    """Return a configuration's instrumented step of median length (the lower of two); None if it has none.

    A step is as long as on its slowest rank.
    """
    lengths = seen.once(_lengths)
    lengths = lengths[lengths["case"] == case_id]
    if lengths.empty:
        return None
    chosen = lengths.iloc[(len(lengths) - 1) // 2]
    launch_id, step = int(chosen["launch_id"]), int(chosen["step"])
    calls = _of_step(seen.once(collectives), launch_id, step).to_dict("records")
    calls = [call | {"busbw": _busbw(call)} for call in calls]
    return timeline_of(seen, launch_id, step, float(chosen["length_s"]), calls)


def timeline_of(seen: SessionData, launch_id: int, step: int, length_s: float, calls: list[Row]) -> Timeline:
    """Return a step of a launch with its `calls`, whose times are on the clock of the launch."""
    rows = _of_step(seen.results.span, launch_id, step)
    begin = float(rows["start_s"].min())
    case = seen.numbers.loc[seen.numbers["launch_id"] == launch_id, "case"].iloc[0]
    spans, calls = (
        [row | {name: row[name] - begin for name in moments} for row in found]
        for found, moments in (
            (rows.to_dict("records"), ("start_s", "end_s")),
            (calls, ("made_s", "start_s", "ready_s")),
        )
    )
    return Timeline(str(case), launch_id, step, length_s, spans, calls, node_of_rank(seen.facts[launch_id]))


def _lengths(seen: SessionData) -> pd.DataFrame:
    """Return `launch_id, step, case, length_s` of the instrumented steps, the shortest first."""
    steps = seen.once(instrumented_steps).table
    lengths = (steps["end_s"] - steps["start_s"]).groupby([steps["launch_id"], steps["step"]]).max()
    table = lengths.rename("length_s").reset_index().merge(seen.counted[["launch_id", "case"]], on="launch_id")
    return table.sort_values("length_s", kind="stable")


def _of_step(rows: pd.DataFrame, launch_id: int, step: int) -> pd.DataFrame:
    return rows[(rows["launch_id"] == launch_id) & (rows["step"] == step)]


def _busbw(call: Row) -> float:
    """Return GB/s; NaN if the call's duration is unknown."""
    seconds = call["duration_s"] or math.nan
    return float(call["bytes"] / seconds / GB * bus_factor(str(call["op"]), int(call["group_size"])))
