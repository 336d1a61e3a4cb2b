"""Where the time of an instrumented step goes: data, compute, exposed and overlapped communication, idle.

Per rank and step, with unions of intervals on the shared clock, never sums of durations: communication is the union of
its collectives, from when each began to run to its end, and of its sends and receives only what was waited for: a
posted receive is no traffic. Exposed is where training was blocked meanwhile; overlapped is the rest of it; compute
is forward, backward and optimizer while not blocked; idle is being blocked while no collective ran. So
step = data + compute + exposed + idle.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.numbers import step_numbers
from parabench.analysis.session import SessionData
from parabench.analysis.stats.intervals import Floats, Intervals, Keys, union
from parabench.metrics import STEP_PARTS
from parabench.store.record import MESSAGES, WAIT, Finding, Phase
from parabench.strategies import Rule, entry_of

COMPUTE = tuple(part.removesuffix("_s") for part in STEP_PARTS if part != "data_s")
EXPOSED_IN = {part: f"exposed_{part}_s" for part in COMPUTE}
SECONDS = (
    "step_s", "data_s", "compute_s", "communication_s", "overlapped_s", "exposed_s", "idle_s", *EXPOSED_IN.values(),
)  # fmt: skip
COUNTS = ("calls", "unknown_calls")

# Instruments that make a step this much slower explain another step than the one that was timed.
SLOW_INSTRUMENTS = 1.10


class Steps:
    """The instrumented steps of the launches that count, each on each rank: row i of `table` is key i of every set.

    `table`: launch_id, rank, step, start_s, end_s, in that order. `whole`, `stood` (still for communication) and
    `within` (by part of the step) are sets of intervals.
    """

    def __init__(self, spans: pd.DataFrame) -> None:
        parts, waits = spans[spans["name"] != WAIT], spans[spans["name"] == WAIT]
        keys = ["launch_id", "rank", "step"]
        self.table = parts.groupby(keys, as_index=False).agg(start_s=("start_s", "min"), end_s=("end_s", "max"))
        self._keys = pd.MultiIndex.from_frame(self.table[keys])
        self.whole = union(np.arange(len(self.table)), self.table["start_s"], self.table["end_s"])
        self.stood = union(*self.placed(waits, waits["start_s"], waits["end_s"])) & self.whole
        self.within: dict[str, Intervals] = {}
        for name in COMPUTE:
            rows = parts[parts["name"] == name]
            self.within[name] = union(*self.placed(rows, rows["start_s"], rows["end_s"]))

    def __len__(self) -> int:
        return len(self.table)

    def placed(self, rows: pd.DataFrame, start: Any, end: Any) -> tuple[Keys, Floats, Floats]:
        """`start` and `end` of the rows that belong to one of the steps, with its key first. One that reaches into the
        rank's next steps belongs to them too."""
        key = self.key(rows)
        known = key >= 0
        key, start, end = key[known], np.asarray(start, np.float64)[known], np.asarray(end, np.float64)[known]
        pieces = [(key, start, end)]
        ends = self.table["end_s"].to_numpy(np.float64)
        place = self.table[["launch_id", "rank"]].to_numpy()
        follows = np.append((place[1:] == place[:-1]).all(axis=1), False)
        while (goes_on := (end > ends[key]) & follows[key]).any():
            key, start, end = key[goes_on] + 1, start[goes_on], end[goes_on]
            pieces.append((key, start, end))
        return tuple(np.concatenate(column) for column in zip(*pieces, strict=True))  # type: ignore[return-value]

    def key(self, rows: pd.DataFrame) -> Keys:
        """Return the key of each row's launch, rank and step; -1 if it is none of the steps."""
        return self._keys.get_indexer(pd.MultiIndex.from_frame(rows[["launch_id", "rank", "step"]]))

    def slowest_ranks(self) -> pd.Series[int]:
        """Of each launch, the rank whose median step is longest."""
        lengths = self.table["end_s"] - self.table["start_s"]
        medians = lengths.groupby([self.table["launch_id"], self.table["rank"]]).median()
        slowest = pd.DataFrame(medians.groupby("launch_id").idxmax().tolist(), columns=["launch_id", "rank"])
        return slowest.set_index("launch_id")["rank"]


def instrumented_steps(seen: SessionData) -> Steps:
    """Those of the launches that count."""
    return Steps(seen.rows("span"))


def collectives(seen: SessionData) -> pd.DataFrame:
    """The rows of the instrumented collectives among several ranks, with `end_s`; moments, lengths and buckets are
    numbers, NaN where they are unknown."""
    rows = seen.rows("collective")
    rows = rows[(rows["phase"] == Phase.INSTRUMENT) & (rows["group_size"] > 1)]
    rows = with_numbers(rows)
    return rows.assign(end_s=rows["start_s"] + rows["duration_s"])


def with_numbers(calls: pd.DataFrame) -> pd.DataFrame:
    """Calls with moments, lengths and buckets as numbers, NaN where they are unknown."""
    known = ("made_s", "start_s", "duration_s", "ready_s", "bucket")
    return calls.assign(**{name: pd.to_numeric(calls[name]).astype(float) for name in known})


def step_table(seen: SessionData) -> pd.DataFrame:
    """One row per instrumented step of each rank of the launches that count.

    `launch_id, case_id, rank, step`, then seconds: `step_s, data_s, compute_s, communication_s, overlapped_s,
    exposed_s, idle_s` as above, and `exposed_forward_s, exposed_backward_s, exposed_forward_backward_s,
    exposed_optimizer_s`: the exposed part within each part of the step, NaN where the step has no such part.
    `calls` are the collectives and messages among several ranks that were called in the step. The end of
    `unknown_calls` of them is not known, so that communication and overlapped are lower bounds. What of a message
    travels while nobody waits for it is in none of them.
    """
    steps, calls = seen.once(instrumented_steps), seen.once(collectives)
    n = len(steps)
    # When a message's bytes travel its own rank can't tell: only how long it had to wait for it.
    message = calls["op"].isin(MESSAGES)
    together, messages = (
        union(*steps.placed(rows, rows["start_s"], rows["end_s"])) for rows in (calls[~message], calls[message])
    )
    communication = (together & steps.whole) | (messages & steps.stood)
    parts = steps.table
    computing = reduce(operator.or_, steps.within.values()) & steps.whole
    exposed = communication & steps.stood
    table = parts[["launch_id"]].assign(
        case_id=parts["launch_id"].map(seen.counted.set_index("launch_id")["case"]),
        rank=parts["rank"],
        step=parts["step"],
        step_s=steps.whole.length(n),
        data_s=(steps.whole - computing - steps.stood).length(n),
        compute_s=(computing - steps.stood).length(n),
        communication_s=communication.length(n),
        overlapped_s=(communication - steps.stood).length(n),
        exposed_s=exposed.length(n),
        idle_s=(steps.stood - communication).length(n),
    )
    for name, within in steps.within.items():
        has = np.isin(np.arange(n), within.key)
        table[EXPOSED_IN[name]] = np.where(has, (exposed & within).length(n), np.nan)
    made = steps.key(calls)
    known = calls["end_s"].notna().to_numpy()
    table["calls"] = np.bincount(made[made >= 0], minlength=n)
    table["unknown_calls"] = np.bincount(made[(made >= 0) & ~known], minlength=n)
    return table


def case_anatomy(seen: SessionData) -> pd.DataFrame:
    """One row per case with instrumented steps, in the order of `seen.cases`.

    `case_id`, `label`, `launches`, then the seconds of `step_table`: medians over the steps of the rank whose median
    step is longest, then over launches (as the parts of timed steps, so they need not add up to the last digit).
    `calls` and `unknown_calls` count all of its steps and ranks. `instruments_ratio` is how long an instrumented step
    takes by a timed one: the same quantile of both in each launch, of as many timed steps
    as there are instrumented ones, the last: a low quantile of few steps is larger than that of many. The median over
    launches.
    """
    steps = seen.once(step_table)
    columns = ["case_id", "label", "launches", *SECONDS, *COUNTS, "instruments_ratio"]
    if steps.empty:
        return pd.DataFrame(columns=columns)
    by_rank = steps.groupby(["launch_id", "rank"])[list(SECONDS)].median()
    slowest = by_rank["step_s"].groupby("launch_id").idxmax()
    by_launch = by_rank.loc[slowest.tolist()].droplevel("rank")
    good = seen.counted.set_index("launch_id")
    by_launch["instruments_ratio"] = _instruments_ratio(seen)
    case_of = good["case"].reindex(by_launch.index)
    table = by_launch.groupby(case_of.to_numpy()).median()
    table["launches"] = case_of.value_counts()
    table = table.join(steps.groupby("case_id")[list(COUNTS)].sum())
    cases = seen.cases[["case_id", "label"]]
    return cases.merge(table, left_on="case_id", right_index=True)[columns].reset_index(drop=True)


def taken_apart(seen: SessionData) -> pd.DataFrame:
    """The case table with each case's anatomy (`case_anatomy`'s columns in place of the timed parts), and
    `exposed_share` of its step; unknown where ranks that must have communicated were not seen to."""
    table = seen.once(case_anatomy).drop(columns="label")
    cases = seen.cases.drop(columns=list(STEP_PARTS)).merge(table, on="case_id")
    unseen = [
        row["calls"] == 0 and row["world_size"] > 1 and entry_of(str(row["strategy"])).rule is not Rule.FIRST_LOSS
        for row in cases.to_dict("records")
    ]
    columns = ["communication_s", "overlapped_s", "exposed_s", *EXPOSED_IN.values()]
    cases[columns] = cases[columns].mask(pd.Series(unseen, index=cases.index, dtype=bool))
    return cases.assign(exposed_share=cases["exposed_s"] / cases["step_s"])


def _instruments_ratio(seen: SessionData) -> pd.Series[float]:
    """Of each launch: its instrumented steps by as many timed ones before them."""
    rows = seen.rows("instrumented").loc[lambda rows: rows["metric"] == "step_s"]
    groups = pd.to_numeric(rows["value"]).groupby([rows["launch_id"], rows["step"]])
    instrumented = groups.max().rename("step_s").reset_index()
    timed = seen.rows("steps").loc[lambda steps: steps["launch_id"].isin(instrumented["launch_id"])]
    count = timed["launch_id"].map(instrumented["launch_id"].value_counts())
    timed = timed[timed.groupby("launch_id").cumcount(ascending=False) < count]
    device = seen.counted.set_index("launch_id")["device"]
    numbers = (step_numbers(steps, device)["step_s"] for steps in (instrumented, timed))
    return (next(numbers) / next(numbers)).reindex(device.index)


def findings(seen: SessionData) -> Iterator[Finding]:
    """Where the explanation is doubtful: instruments that slowed the steps, and ranks that seem not to communicate."""
    table = seen.once(case_anatomy)
    for case in table[table["instruments_ratio"] > SLOW_INSTRUMENTS].to_dict("records"):
        yield Finding(
            code="instruments_slow",
            message=f"{case['label']}: the instrumented steps took {format.percent(case['instruments_ratio'] - 1)} "
            "longer than the timed ones, so the breakdown of its step is approximate.",
            advice="Read shares rather than times from it; step time and ranking are of the timed steps alone.",
            case_id=case["case_id"],
        )
    cases = seen.cases.set_index("case_id")
    for case in table[table["calls"] == 0].to_dict("records"):
        of = cases.loc[case["case_id"]]
        entry = entry_of(of["strategy"])
        # Ranks that train apart on purpose, or one process, have nothing to say to each other through c10d.
        if of["world_size"] > 1 and entry.rule is not Rule.FIRST_LOSS and not entry.one_process:
            yield Finding(
                code="no_communication",
                message=f"{case['label']}: no collective of its {of['world_size']} ranks was recorded, so its "
                "communication bypasses the instruments.",
                advice="Take its communication as unknown: the instruments record torch.distributed alone.",
                case_id=case["case_id"],
            )
