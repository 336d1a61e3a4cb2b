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
    """The instrumented steps of each rank, and sets of intervals with one key for each rank of a launch.

    - `table`: one row per step of a rank, in order, with `launch_id, rank, step, start_s, end_s, key`
    - `begin` and `end`: the times of each part, in the order of `table`; NaN in steps without the part
    - `blocked`: the times when training waited for communication
    - `within`: the times of each part
    """

    def __init__(self, spans: pd.DataFrame) -> None:
        self._ranks, self._steps = (1 + int(spans[name].max()) if len(spans) else 1 for name in ("rank", "step"))
        parts = spans[spans["name"] != WAIT]
        ids, step_ids = self._ids(parts)
        self._ids_of_ranks = np.unique(ids)
        self._ids_of_steps, first, place = np.unique(step_ids, return_index=True, return_inverse=True)
        start, end = self._extremes(place, parts)
        table = parts[_STEP].iloc[first].reset_index(drop=True)
        self.table = table.assign(start_s=start, end_s=end, key=_found(self._ids_of_ranks, ids[first]))
        self.begin, self.end, self.within = {}, {}, {}
        for name in COMPUTE:
            rows = (parts["name"] == name).to_numpy()
            self.begin[name], self.end[name] = self._extremes(place[rows], parts[rows])
            self.within[name] = self.intervals(parts[rows])
        self.blocked = self.intervals(spans[spans["name"] == WAIT])

    def _ids(self, rows: pd.DataFrame) -> tuple[Keys, Keys]:
        """Return a number for the rank of a launch, and one for its step, of each row; -1 if the spans have none."""
        launch, rank, step = (rows[name].to_numpy(np.int64) for name in _STEP)
        of_rank = np.where(rank < self._ranks, launch * self._ranks + rank, -1)
        return of_rank, np.where((of_rank >= 0) & (step < self._steps), of_rank * self._steps + step, -1)

    def _extremes(self, place: Keys, rows: pd.DataFrame) -> tuple[Floats, Floats]:
        """Return the first start and the last end of the rows of each step."""
        start, end = (np.full(len(self._ids_of_steps), np.nan) for _ in range(2))
        np.fmin.at(start, place, rows["start_s"].to_numpy(float))
        np.fmax.at(end, place, rows["end_s"].to_numpy(float))
        return start, end

    def intervals(self, rows: pd.DataFrame) -> Intervals:
        """Return the union of rows from `start_s` to `end_s`, by rank of a launch."""
        key = _found(self._ids_of_ranks, self._ids(rows)[0])
        start, end = (rows[name].to_numpy(float) for name in ("start_s", "end_s"))
        known = key >= 0
        return union(key[known], start[known], end[known])

    def seconds(self, of: Intervals) -> Floats:
        """Return the length of a set within each step."""
        return of.within(self.table["key"], self.table["start_s"], self.table["end_s"])

    def place(self, rows: pd.DataFrame) -> Keys:
        """Return the row of `table` with the launch, rank and step of each of `rows`; -1 if there is none."""
        return _found(self._ids_of_steps, self._ids(rows)[1])


def _found(ids: Keys, wanted: Keys) -> Keys:
    """Return the places of the `wanted` in the sorted `ids`; -1 if it is not there."""
    if not len(ids):
        return np.full(len(wanted), -1)
    place = np.searchsorted(ids, wanted).clip(max=len(ids) - 1)
    return np.where(ids[place] == wanted, place, -1)


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
    - `unknown_calls`: calls without an end; then communication and overlapped are lower bounds
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
    place = steps.place(calls)
    for name, counted in (("calls", place >= 0), ("unknown_calls", (place >= 0) & calls["end_s"].isna().to_numpy())):
        columns[name] = np.bincount(place[counted], minlength=len(steps.table))
    case_of = seen.counted.set_index("launch_id")["case"]
    return steps.table[_STEP].assign(case_id=steps.table["launch_id"].map(case_of), **columns)


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


def bubbles(seen: SessionData) -> pd.DataFrame:
    """Return one row per configuration that ran as a pipeline, in order of launch.

    The columns are `case_id, label, stages, microbatches, schedule, theory, measured, n_launches`. `theory` is the
    bubble for equal stages and free messages. `measured` is 1 - the mean share of computing over ranks, the median over
    launches.
    """
    told = {at: found for at in seen.counted["launch_id"] if (found := seen.facts[at].get("pipeline"))}
    good = seen.counted[seen.counted["launch_id"].isin(list(told))]
    whole = seen.results.whole
    busy = whole[whole["metric"] == "stage_busy_share"].groupby("launch_id")["value"].agg(["mean", "count"])
    busy = busy.reindex(good["launch_id"]).set_index(good.index)
    names = {"stages": "stages", "microbatches": "microbatches", "schedule": "schedule", "theory": "bubble"}
    facts = {name: [told[at][key] for at in good["launch_id"]] for name, key in names.items()}
    table = good.assign(**facts, measured=1 - busy["mean"].where(busy["count"] == good["world_size"]))
    groups = table.groupby("case", sort=False)
    found = groups[["label", *facts]].first()
    found = found.assign(measured=groups["measured"].median(), n_launches=groups["measured"].count())
    return found.rename_axis("case_id").reset_index()


def _instruments_ratio(seen: SessionData) -> pd.Series[float]:
    """Return for each launch the ratio of its instrumented steps to the same number of measured steps before them.

    A low quantile of few steps is larger, so the numbers of steps are equal.
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
