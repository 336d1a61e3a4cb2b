"""The parts of an instrumented step: data, compute, exposed and overlapped communication, idle.

All times are unions of intervals on the shared clock, never sums of durations. step = data + compute + exposed + idle.

- communication: the union of running collectives, and of messages while the rank waits for them
- exposed: communication while training is blocked
- overlapped: the rest of the communication
- compute: forward, backward and optimizer while training is not blocked
- idle: training is blocked, but no collective runs
"""

from __future__ import annotations

import operator
from functools import reduce

import numpy as np
import pandas as pd

from parabench.analysis.numbers import step_numbers
from parabench.analysis.session import SessionData
from parabench.analysis.stats.intervals import Floats, Intervals, Keys, union
from parabench.metrics import STEP_PARTS
from parabench.store.record import MESSAGES, WAIT, Phase
from parabench.strategies import Rule, entry_of

COMPUTE = tuple(part.removesuffix("_s") for part in STEP_PARTS if part != "data_s")
EXPOSED_IN = {part: f"exposed_{part}_s" for part in COMPUTE}
_COMMUNICATION = ["communication_s", "overlapped_s", "exposed_s", *EXPOSED_IN.values()]
_SECONDS = ["step_s", "data_s", "compute_s", "idle_s", *_COMMUNICATION]
_RANK = ["launch_id", "rank"]
_STEP = [*_RANK, "step"]


class Steps:
    """The instrumented steps of each rank, and sets of intervals with one key for each rank of a launch.

    - `table`: one row per step of a rank, with `launch_id, rank, step, start_s, end_s, key`
    - `begin` and `end`: the same rows, with a column per part of the step
    - `blocked`: the times when training waited for communication
    """

    def __init__(self, spans: pd.DataFrame) -> None:
        parts = spans[spans["name"] != WAIT]
        self.table = parts.groupby(_STEP, as_index=False).agg(start_s=("start_s", "min"), end_s=("end_s", "max"))
        self._steps = pd.MultiIndex.from_frame(self.table[_STEP])
        self._ranks = pd.MultiIndex.from_frame(self.table[_RANK].drop_duplicates())
        self.table["key"] = self._ranks.get_indexer(pd.MultiIndex.from_frame(self.table[_RANK]))
        times = parts.groupby([*_STEP, "name"]).agg(begin=("start_s", "min"), end=("end_s", "max"))
        self.begin, self.end = (
            times[name].unstack("name").reindex(index=self._steps, columns=list(COMPUTE)).reset_index(drop=True)
            for name in ("begin", "end")
        )
        self.blocked = self.intervals(spans[spans["name"] == WAIT])
        self.within = {name: self.intervals(parts[parts["name"] == name]) for name in COMPUTE}

    def intervals(self, rows: pd.DataFrame) -> Intervals:
        """Return the union of rows from `start_s` to `end_s`, by rank of a launch."""
        key = self._ranks.get_indexer(pd.MultiIndex.from_frame(rows[_RANK]))
        known = rows[key >= 0]
        return union(key[key >= 0], known["start_s"], known["end_s"])

    def seconds(self, of: Intervals) -> Floats:
        """Return the length of a set within each step."""
        return of.within(self.table["key"], self.table["start_s"], self.table["end_s"])

    def place(self, rows: pd.DataFrame) -> Keys:
        """Return the row of `table` with the launch, rank and step of each of `rows`; -1 if there is none."""
        return self._steps.get_indexer(pd.MultiIndex.from_frame(rows[_STEP]))


def instrumented_steps(seen: SessionData) -> Steps:
    """Return the instrumented steps of the launches that count; for `SessionData.once`."""
    return Steps(seen.rows("span"))


def collectives(seen: SessionData) -> pd.DataFrame:
    """Return the collectives and messages of instrumented steps among several ranks, with `end_s`."""
    rows = seen.rows("collective")
    rows = with_numbers(rows[(rows["phase"] == Phase.INSTRUMENT) & (rows["group_size"] > 1)])
    return rows.assign(end_s=rows["start_s"] + rows["duration_s"])


def with_numbers(calls: pd.DataFrame) -> pd.DataFrame:
    """Return calls with times and buckets as numbers; unknown is NaN."""
    names = ("made_s", "start_s", "duration_s", "ready_s", "bucket")
    return calls.assign(**{name: pd.to_numeric(calls[name]).astype(float) for name in names})


def step_table(seen: SessionData) -> pd.DataFrame:
    """Return one row per instrumented step of each rank: `launch_id, case_id, rank, step`, seconds, and calls.

    - `exposed_{part}_s`: exposed communication within each part of the step, NaN without such a part
    - `calls`: collectives and messages of the step
    - `unknown_calls`: those without an end; then communication and overlapped are lower bounds
    """
    steps, calls = seen.once(instrumented_steps), seen.once(collectives)
    message = calls["op"].isin(MESSAGES)
    communication = steps.intervals(calls[~message]) | (steps.intervals(calls[message]) & steps.blocked)
    exposed = communication & steps.blocked
    computing = reduce(operator.or_, steps.within.values())
    whole = steps.intervals(steps.table)
    sets = {
        "step_s": whole,
        "data_s": whole - computing - steps.blocked,
        "compute_s": computing - steps.blocked,
        "communication_s": communication,
        "overlapped_s": communication - steps.blocked,
        "exposed_s": exposed,
        "idle_s": steps.blocked - communication,
    }
    table = steps.table[_STEP].assign(
        case_id=steps.table["launch_id"].map(seen.counted.set_index("launch_id")["case"]),
        **{name: steps.seconds(of) for name, of in sets.items()},
    )
    for name, within in steps.within.items():
        table[EXPOSED_IN[name]] = steps.seconds(exposed & within)
        table[EXPOSED_IN[name]] = table[EXPOSED_IN[name]].where(steps.begin[name].notna())
    place = steps.place(calls)
    for name, counted in (("calls", place >= 0), ("unknown_calls", (place >= 0) & calls["end_s"].isna().to_numpy())):
        table[name] = np.bincount(place[counted], minlength=len(table))
    return table


def taken_apart(seen: SessionData) -> pd.DataFrame:
    """Return the rows of the case table that have instrumented steps, with the parts of these steps.

    - seconds: medians of `step_table`, over the steps of the rank with the longest median step, then over launches
    - `calls` and `unknown_calls`: sums over all steps and ranks
    - `unseen`: no communication was recorded although the strategy must communicate, so it is unknown
    - `instruments_ratio`: an instrumented to a measured step, the median over launches
    """
    steps = seen.once(step_table)
    by_rank = steps.groupby(_RANK)[_SECONDS].median()
    slowest = by_rank.loc[by_rank["step_s"].groupby("launch_id").idxmax().tolist()].droplevel("rank")
    slowest["instruments_ratio"] = _instruments_ratio(seen)
    case_of = seen.counted.set_index("launch_id")["case"].reindex(slowest.index)
    table = (
        slowest.groupby(case_of.to_numpy()).median().join(steps.groupby("case_id")[["calls", "unknown_calls"]].sum())
    )
    cases = seen.cases.drop(columns=list(STEP_PARTS)).merge(table, left_on="case_id", right_index=True)
    apart = pd.Series([entry_of(name).rule is Rule.FIRST_LOSS for name in cases["strategy"]], cases.index, dtype=bool)
    cases["unseen"] = (cases["calls"] == 0) & (cases["world_size"] > 1) & ~apart
    cases[_COMMUNICATION] = cases[_COMMUNICATION].mask(cases["unseen"])
    return cases.assign(exposed_share=cases["exposed_s"] / cases["step_s"]).reset_index(drop=True)


def _instruments_ratio(seen: SessionData) -> pd.Series[float]:
    """Return for each launch the ratio of its instrumented steps to the same number of measured steps before them.

    A low quantile of few steps is larger, so the numbers of steps are equal.
    """
    rows = seen.rows("instrumented").loc[lambda rows: rows["metric"] == "step_s"]
    seconds = pd.to_numeric(rows["value"]).groupby([rows["launch_id"], rows["step"]]).max()
    instrumented = seconds.rename("step_s").reset_index()
    timed = seen.rows("steps").loc[lambda steps: steps["launch_id"].isin(instrumented["launch_id"])]
    count = timed["launch_id"].map(instrumented["launch_id"].value_counts())
    timed = timed[timed.groupby("launch_id").cumcount(ascending=False) < count]
    device = seen.counted.set_index("launch_id")["device"]
    instrumented_s, timed_s = (step_numbers(own, device)["step_s"] for own in (instrumented, timed))
    return instrumented_s / timed_s
