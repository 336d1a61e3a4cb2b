"""Match the calls of several ranks' traces: how far clocks differ, and which rank comes late.

No rank finishes an operation of MUTUAL before the last one has entered it, and all finish it at about the same time. So
a rank that begins after another has finished has another clock, and equal ends show by how much. The rank with the
shortest time came last, whatever the clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.step.calls import MUTUAL
from parabench.imports.recording import Recording, distinct, word
from parabench.store.results import records

# Times on one clock may be wrong by less.
TOLERANCE_S = 1e-4
KIND = ["op", "ranks", "bytes", "dtype"]


def matched(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the timed calls of MUTUAL operations in groups whose ranks are known, one row per rank and call.

    `call` is the same number for all ranks of a call. The same call has the same number in its group; without numbers
    it is the n-th of its kind in a step, if all ranks have equally many.
    """
    table = calls[
        calls["op"].isin(MUTUAL) & calls["ranks"].notna() & calls["duration_s"].notna() & calls["start_s"].notna()
    ]
    numbered = table["number"].notna()
    nth = table.groupby([*KIND, "step", "rank"], dropna=False).cumcount()
    table = table.assign(
        end_s=table["start_s"] + table["duration_s"],
        step=table["step"].mask(numbered, -1),
        nth=nth.where(~numbered, table["number"]),
    )
    table["call"] = table.groupby([*KIND, "step", "nth"], dropna=False).ngroup()
    table = table.drop_duplicates(["call", "rank"], keep="last").reset_index(drop=True)
    own = table.groupby("call")["rank"].transform("size")
    steps = table.groupby([*KIND, "step"], dropna=False)
    even = steps["call"].transform("nunique") * steps["rank"].transform("nunique") == steps["call"].transform("size")
    return table[(own > 1) & (even | (table["step"] == -1))]


@dataclass(frozen=True)
class Clocks:
    """`ahead_s` is {rank: by how much its clock is ahead of the first rank's}, None if the ranks' clocks cannot be
    compared; `one` if all ranks are known to share a clock; `text` is a warning, or empty."""

    ahead_s: dict[int, float] | None
    one: bool
    text: str


def compare(traces: Sequence[Recording], calls: pd.DataFrame) -> Clocks:
    """Return how the clocks of ranks differ."""
    hosts = {one.rank: one.host or "" for one in traces if one.rank is not None}
    calls = calls.assign(host=calls["rank"].map(hosts))
    torn = _gaps(calls, ["call", "host"]).groupby("host").max() > TOLERANCE_S
    clock = {rank: f"{host} {rank if torn.get(host) else ''}" for rank, host in hosts.items()}
    if len(set(clock.values())) < 2:
        return Clocks(dict.fromkeys(hosts, 0.0), "" not in hosts.values(), "")
    names = len(distinct(hosts.values()))
    differ = f"The recordings are of {names} hosts." if names > 1 else "The ranks have different clocks."
    if (gap := _gaps(calls, ["call"]).max()) > TOLERANCE_S:
        differ += (
            f" Their clocks differ by at least {_length(gap)}: a rank had finished a collective so long before another "
            "rank began it."
        )
    ends = calls.assign(clock=calls["rank"].map(clock))
    by_clock = ends.pivot_table("end_s", "call", "clock", "last").reindex(columns=list(dict.fromkeys(clock.values())))
    known = by_clock.notna().astype(int)
    shared = known.T @ known
    # Each next clock is the one that shares most calls with a clock whose lead is known.
    ahead: dict[Any, float] = {clock[min(hosts)]: 0.0}
    error = 0.0
    while len(left := shared.loc[list(ahead)].drop(columns=list(ahead)).stack()) and left.max():
        pair: Any = left.idxmax()
        one, other = pair
        apart = (by_clock[other] - by_clock[one]).dropna()
        ahead[other] = ahead[one] + apart.median()
        error = max(error, (apart - apart.median()).abs().median())
    if len(ahead) < len(shared):
        return Clocks(None, False, f"{differ} No collective that all of them share shows how far their clocks agree.")
    most = max(ahead.values()) - min(ahead.values())
    return Clocks(
        {rank: ahead[clock[rank]] for rank in hosts},
        False,
        f"{differ} Times were moved by up to {_length(most)}, so that the ranks finish the same collectives together"
        f"{f', in the median within {_length(error)}' if round(error, 9) else ''}.",
    )


def _gaps(calls: pd.DataFrame, key: list[str]) -> pd.Series[float]:
    """Return by how much a rank began a call after another rank had finished it."""
    groups = calls.groupby(key)
    return groups["start_s"].max() - groups["end_s"].min()


def _length(seconds: float) -> str:
    return format.duration(seconds, 3) if seconds >= 1 else format.milliseconds(seconds)


def lateness(calls: pd.DataFrame, one_clock: bool) -> list[dict[Any, Any]]:
    """Return for each kind of call and rank of its group how late the rank is after the first one, and `shortest_s`,
    the median time of the rank that came last.

    Only calls that all ranks of the group recorded count. With several clocks, a rank is as late as its time is shorter
    than the longest one.
    """
    size = calls["ranks"].map(len)
    calls = calls[calls.groupby("call")["rank"].transform("size") == size].reset_index(drop=True)
    calls["ranks"] = calls["ranks"].map(word)
    length = calls["duration_s"]
    came = calls["start_s"] if one_clock else -length
    late = came - came.groupby(calls["call"]).transform("min")
    calls = calls.assign(
        late=late,
        last=(late > 0) & calls.index.isin(came.groupby(calls["call"]).idxmax()),
        shortest=length.groupby(calls["call"]).transform("min"),
    )
    table = calls.groupby([*KIND, "rank"], dropna=False, sort=False).agg(
        calls=("late", "size"), late_s=("late", "median"), total_s=("late", "sum"), last=("last", "sum"),
        shortest_s=("shortest", "median"),
    )  # fmt: skip
    table = table.reset_index().astype(object)
    return records(table.where(table.notna(), None))
