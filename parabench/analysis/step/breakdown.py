"""Break instrumented steps down into data, compute, exposed and overlapped communication, and idle.

Times are lengths of unions of intervals on the shared clock, not sums of durations. The parts add up:
step = data + compute + exposed + idle.

- communication: the union of running collectives, and of messages while the rank waits for them
- exposed: communication while training is blocked
- overlapped: the rest of the communication
- compute: forward, backward and optimizer while training is not blocked
- idle: training is blocked, but no collective runs
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis.launch_number import QUANTILE
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
    """The instrumented steps of each rank, and the intervals of their parts (forward, backward, ...).

    - `table`: one row per step of a rank, with `launch_id, rank, step, start_s, end_s`, and `key`, which numbers the
      ranks of all launches
    - `begin` and `end`: {part: its first start and last end in each row of `table`}, NaN in steps without the part
    - `within`: {part: its intervals}, by `key`
    - `blocked`: the intervals when training waited for communication, by `key`
    """

    def __init__(self, spans: pd.DataFrame) -> None:
        parts = spans[spans["name"] != WAIT]
        extremes = {"start_s": ("start_s", "min"), "end_s": ("end_s", "max")}
        table = parts.groupby(_STEP).agg(**extremes)
        self.table = table.reset_index().assign(key=table.groupby(_RANK).ngroup().to_numpy())
        self.begin, self.end, self.within = {}, {}, {}
        for name in COMPUTE:
            rows = parts[parts["name"] == name]
            times = rows.groupby(_STEP).agg(**extremes).reindex(table.index)
            self.begin[name], self.end[name] = (times[each].to_numpy(float) for each in extremes)
            self.within[name] = self.intervals(rows)
        self.blocked = self.intervals(spans[spans["name"] == WAIT])

    def intervals(self, rows: pd.DataFrame) -> Intervals:
        """Return the union of the times from `start_s` to `end_s`, by the `key` of each row's rank."""
        key = _positions(rows, self.table[_RANK].drop_duplicates())
        start, end = (rows[name].to_numpy(float) for name in ("start_s", "end_s"))
        known = key >= 0
        return union(key[known], start[known], end[known])

    def seconds(self, intervals: Intervals) -> Floats:
        """Return how many seconds of each row of `table` the intervals cover."""
        return intervals.within(self.table["key"], self.table["start_s"], self.table["end_s"])

    def row_of(self, rows: pd.DataFrame) -> Keys:
        """Return the row number in `table` for the launch, rank and step of each of `rows`; -1 if there is none."""
        return _positions(rows, self.table[_STEP])


def _positions(rows: pd.DataFrame, of: pd.DataFrame) -> Keys:
    """Return the position of each of `rows` in `of`, a table of keys, which are columns of `rows`; -1 if missing."""
    wanted, known = (pd.MultiIndex.from_frame(table) for table in (rows[list(of)], of))
    return np.asarray(known.get_indexer(wanted), np.int64)


def instrumented_steps(seen: SessionData) -> Steps:
    """Return the instrumented steps of the launches that count. Call it through `SessionData.once`."""
    return Steps(seen.rows("span"))


def collectives(seen: SessionData) -> pd.DataFrame:
    """Return the collectives and messages of instrumented steps in groups of two or more ranks, with `end_s`."""
    rows = seen.rows("collective")
    rows = with_numbers(rows[(rows["phase"] == Phase.INSTRUMENT) & (rows["group_size"] > 1)])
    return rows.assign(end_s=rows["start_s"] + rows["duration_s"])


def with_numbers(calls: pd.DataFrame) -> pd.DataFrame:
    """Convert the times and buckets of calls to floats. Unknown ones become NaN."""
    names = ("made_s", "start_s", "duration_s", "ready_s", "bucket")
    return calls.assign(**{name: pd.to_numeric(calls[name]).astype(float) for name in names})


def step_table(seen: SessionData) -> pd.DataFrame:
    """Return one row per instrumented step of each rank: `launch_id, case_id, rank, step`, and the parts in seconds.

    - `exposed_{part}_s`: exposed communication within each part of the step, NaN without such a part
    - `calls`: collectives and messages of the step
    - `unknown_calls`: calls without a known end; if there are any, communication and overlapped are lower bounds
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
    columns: dict[str, Any] = {name: steps.seconds(of) for name, of in sets.items()}
    for name, within in steps.within.items():
        columns[EXPOSED_IN[name]] = np.where(np.isnan(steps.begin[name]), np.nan, steps.seconds(exposed & within))
    step_row, ended = steps.row_of(calls), calls["end_s"].notna().to_numpy()
    for name, counted in (("calls", step_row >= 0), ("unknown_calls", (step_row >= 0) & ~ended)):
        columns[name] = np.bincount(step_row[counted], minlength=len(steps.table))
    case_of = seen.counted.set_index("launch_id")["case"]
    return steps.table[_STEP].assign(case_id=steps.table["launch_id"].map(case_of), **columns)


def case_breakdown(seen: SessionData) -> pd.DataFrame:
    """Return the rows of the case table that have instrumented steps, with the parts of these steps in seconds.

    - parts: medians of `step_table`, over the steps of the rank with the longest median step, then over launches
    - `calls` and `unknown_calls`: sums over all steps and ranks
    - `unseen`: no communication was recorded although the strategy communicates; the communication is then NaN
    - `instruments_ratio`: the length of an instrumented step relative to a measured one, the median over launches
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


def bubbles(seen: SessionData) -> pd.DataFrame:
    """Return the bubble of each pipeline configuration: the share of the time when its ranks are idle.

    The columns are `case_id, label, stages, microbatches, schedule, theory, measured, n_launches`. The theory
    assumes equal stages and messages without cost. The measured bubble is 1 - the mean share of computing over ranks,
    the median over launches.
    """
    pipelines = {at: found for at in seen.counted["launch_id"] if (found := seen.facts[at].get("pipeline"))}
    good = seen.counted[seen.counted["launch_id"].isin(list(pipelines))]
    whole = seen.results.whole
    busy = whole[whole["metric"] == "stage_busy_share"].groupby("launch_id")["value"].agg(["mean", "count"])
    busy = busy.reindex(good["launch_id"]).set_index(good.index)
    names = {"stages": "stages", "microbatches": "microbatches", "schedule": "schedule", "theory": "bubble"}
    facts = {name: [pipelines[at][key] for at in good["launch_id"]] for name, key in names.items()}
    table = good.assign(**facts, measured=1 - busy["mean"].where(busy["count"] == good["world_size"]))
    groups = table.groupby("case", sort=False)
    found = groups[["label", *facts]].first()
    found = found.assign(measured=groups["measured"].median(), n_launches=groups["measured"].count())
    return found.rename_axis("case_id").reset_index()


def _instruments_ratio(seen: SessionData) -> pd.Series[float]:
    """Return the ratio of instrumented to measured steps for each launch.

    The last measured steps are used, equal in number, because a low quantile of fewer steps is larger.
    """
    instrumented = seen.results.read("sample", f"phase = '{Phase.INSTRUMENT}' AND metric = 'step_s'")
    steps = instrumented.groupby(["launch_id", "step"])["value"].max().rename("step_s").reset_index()
    timed = seen.rows("steps")
    timed = timed[timed["launch_id"].isin(steps["launch_id"])]
    count = timed["launch_id"].map(steps["launch_id"].value_counts())
    timed = timed[timed.groupby("launch_id").cumcount(ascending=False) < count]
    device = seen.counted.set_index("launch_id")["device"]
    found = pd.Series(np.nan, device.index)
    for name, launches in device.groupby(device):
        of_launch = (
            each[each["launch_id"].isin(launches.index)].groupby("launch_id")["step_s"] for each in (steps, timed)
        )
        instrumented_s, timed_s = (each.quantile(QUANTILE[str(name)]) for each in of_launch)
        found.update(instrumented_s / timed_s)
    return found
