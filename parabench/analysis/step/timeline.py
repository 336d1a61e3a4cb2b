"""One instrumented step of one case, rank by rank: which one is shown, and what happened in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis.collectives.bus import bus_factor
from parabench.analysis.environment.nodes import node_of_rank
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import collectives
from parabench.store.record import GB
from parabench.strategies import entry_of

# A span or a call, by the names of their columns.
Row = dict[Any, Any]

# More timelines than this are not compared but scrolled past.
MOST_TIMELINES = 3


@dataclass(frozen=True)
class Timeline:
    """A step of a launch. Seconds count from its beginning on the rank that began first.

    `spans`: rank, name, start_s, end_s. `calls`: rank, seq, op, algorithm, ranks, group_size, bytes, made_s, start_s,
    duration_s, bucket, ready_s and busbw, GB/s over the rank's own duration; NaN where it is unknown. `node_of` has
    each rank's node, of a launch on several.
    """

    case_id: str
    launch_id: int
    step: int
    length_s: float
    steps: int
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
    """The instrumented step of median length (the lower of two) of a case's launches; a step is as long as its slowest
    rank's. None where no step was instrumented."""
    lengths = seen.once(_lengths).get(case_id)
    if lengths is None:
        return None
    launch_id, step, length_s = lengths[(len(lengths) - 1) // 2]
    spans, calls = (_of_step(rows, launch_id, step) for rows in (seen.results.span, seen.once(collectives)))
    begin = min(span["start_s"] for span in spans)
    return Timeline(
        case_id=case_id,
        launch_id=launch_id,
        step=step,
        length_s=length_s,
        steps=len(lengths),
        spans=_from(begin, spans, ("start_s", "end_s")),
        calls=[call | {"busbw": _busbw(call)} for call in _from(begin, calls, ("made_s", "start_s", "ready_s"))],
        node_of=node_of_rank(seen.facts[launch_id]),
    )


def _lengths(seen: SessionData) -> dict[str, list[tuple[int, int, float]]]:
    """(launch, step, seconds) of the instrumented steps of each case that has some, the shortest first; for
    `SessionData.once`."""
    own = seen.rows("span").groupby(["launch_id", "step", "rank"]).agg(begin=("start_s", "min"), end=("end_s", "max"))
    lengths = (own["end"] - own["begin"]).groupby(["launch_id", "step"]).max().sort_values(kind="stable")
    case_of = dict(zip(seen.counted["launch_id"], seen.counted["case"], strict=True))
    found: dict[str, list[tuple[int, int, float]]] = {}
    for (launch_id, step), length_s in zip(lengths.index, lengths.tolist(), strict=True):
        found.setdefault(str(case_of[launch_id]), []).append((int(launch_id), int(step), length_s))
    return found


def _of_step(rows: pd.DataFrame, launch_id: int, step: int) -> list[Row]:
    own = np.flatnonzero((rows["launch_id"].to_numpy() == launch_id) & (rows["step"].to_numpy() == step))
    columns = (rows[name].to_numpy()[own].tolist() for name in rows)
    return [dict(zip(rows, values, strict=True)) for values in zip(*columns, strict=True)]


def _busbw(call: Row) -> float:
    """In GB/s; NaN where it is unknown how long the call took."""
    seconds = call["duration_s"] or math.nan
    return float(call["bytes"] / seconds / GB * bus_factor(str(call["op"]), int(call["group_size"])))


def _from(begin: float, rows: list[Row], moments: tuple[str, ...]) -> list[Row]:
    """The rows with those moments counted from `begin`."""
    return [row | {name: row[name] - begin for name in moments} for row in rows]
