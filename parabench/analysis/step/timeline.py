"""One instrumented step of one case, rank by rank: which one is shown, and what happened in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

import pandas as pd

from parabench.analysis.environment.nodes import node_of_rank
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import collectives
from parabench.strategies import entry_of

# More timelines than this are not compared but scrolled past.
MOST_TIMELINES = 3


@dataclass(frozen=True)
class Timeline:
    """A step of a launch. Seconds count from its beginning on the rank that began first.

    `spans`: rank, name, start_s, end_s. `calls`: rank, seq, op, algorithm, ranks, group_size, bytes, made_s, start_s,
    duration_s, bucket, ready_s; NaN where it is unknown. `node_of` has each rank's node, of a launch on several.
    """

    case_id: str
    launch_id: int
    step: int
    length_s: float
    steps: int
    spans: pd.DataFrame
    calls: pd.DataFrame
    node_of: Mapping[int, int]

    @property
    def ranks(self) -> list[int]:
        """Those that were seen, in order."""
        return sorted(int(rank) for rank in self.spans["rank"].unique())


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
    launches = seen.good.loc[seen.good["case_id"] == case_id, "launch_id"]
    spans = seen.results.span[seen.results.span["launch_id"].isin(launches)]
    if spans.empty:
        return None
    own = spans.groupby(["launch_id", "step", "rank"]).agg(begin=("start_s", "min"), end=("end_s", "max"))
    lengths = (own["end"] - own["begin"]).groupby(["launch_id", "step"]).max().sort_values(kind="stable")
    launch_id, step = lengths.index[(len(lengths) - 1) // 2]
    spans = spans[(spans["launch_id"] == launch_id) & (spans["step"] == step)]
    calls = seen.once(collectives)
    calls = calls[(calls["launch_id"] == launch_id) & (calls["step"] == step)]
    begin = float(spans["start_s"].min())
    return Timeline(
        case_id=case_id,
        launch_id=int(launch_id),
        step=int(step),
        length_s=float(lengths.loc[(launch_id, step)]),
        steps=len(lengths),
        spans=_from(begin, spans, ["start_s", "end_s"]),
        calls=_from(begin, calls, ["made_s", "start_s", "ready_s"]),
        node_of=node_of_rank(seen.facts[int(launch_id)]),
    )


def _from(begin: float, rows: pd.DataFrame, moments: list[str]) -> pd.DataFrame:
    """The rows with those columns counted from `begin`, and every number a number."""
    numbers = [name for name in (*moments, "duration_s", "bucket") if name in rows]
    rows = rows.assign(**{name: pd.to_numeric(rows[name]) for name in numbers})
    return rows.assign(**{name: rows[name] - begin for name in moments}).reset_index(drop=True)
