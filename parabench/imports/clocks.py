"""Match the calls of several ranks' traces: how far clocks differ, and which rank comes late.

No rank finishes an operation of MUTUAL before the last one has entered it, and all finish it at about the same time. So
a rank that begins after another has finished has another clock, and equal ends show by how much. The rank with the
shortest time came last, whatever the clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis.step.calls import MUTUAL
from parabench.analysis.text import format
from parabench.imports.recording import Recording, distinct, word

# Times on one clock may be wrong by less.
TOLERANCE_NS = 100_000
# Ends of one call are together within this share of its time, or so many nanoseconds.
_TOGETHER, _TOGETHER_NS = 0.05, 20_000

_KIND = ["op", "ranks", "bytes", "dtype"]


def matched(traces: Iterable[Recording]) -> pd.DataFrame:
    """Return the timed calls of MUTUAL operations in groups whose ranks are known, one row per rank and call.

    `call` is the same number for all ranks of a call, `n` the size of its group. The same call has the same number in
    its group; without numbers it is the n-th of its kind in a step, if all ranks have equally many.
    """
    rows = [
        (one.rank, call.op, word(call.ranks), call.bytes, call.dtype, len(call.ranks), call.step, call.number,
         call.start_ns, call.start_ns + call.duration_ns)
        for one in traces
        for call in one.calls
        if call.op in MUTUAL and call.ranks and call.start_ns is not None and call.duration_ns is not None
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["rank", *_KIND, "n", "step", "number", "start_ns", "end_ns"])
    numbered = table["number"].notna()
    nth = table.groupby([*_KIND, "step", "rank"], dropna=False).cumcount()
    table["step"], table["nth"] = table["step"].mask(numbered, -1), nth.where(~numbered, table["number"])
    table["call"] = table.groupby([*_KIND, "step", "nth"], dropna=False).ngroup()
    table = table.drop_duplicates(["call", "rank"], keep="last").reset_index(drop=True)
    own = table.groupby("call")["rank"].transform("size")
    steps = table.groupby([*_KIND, "step"], dropna=False)
    even = steps["call"].transform("nunique") * steps["rank"].transform("nunique") == steps["call"].transform("size")
    return table[(own > 1) & (even | (table["step"] == -1))]


def name_groups(traces: Sequence[Recording]) -> bool:
    """Give the calls of traces that name no groups the group of all ranks, if their ends show that it is theirs.

    Returns whether it did.
    """
    ranks = tuple(sorted({one.rank for one in traces if one.rank is not None}))
    unknown = all(call.group_size is None for one in traces for call in one.calls)
    if not unknown or len(ranks) < 2 or {one.world_size for one in traces} != {len(ranks)}:
        return False
    named = [
        [call._replace(ranks=ranks, group_size=len(ranks)) if call.op in MUTUAL else call for call in one.calls]
        for one in traces
    ]
    calls = matched(replace(one, calls=own) for one, own in zip(traces, named, strict=True))
    groups = calls[calls.groupby("call")["rank"].transform("size") == len(ranks)].groupby("call")
    ends, longest = groups["end_ns"], groups["end_ns"].max() - groups["start_ns"].min()
    together = (ends.max() - ends.min()) <= np.maximum(_TOGETHER_NS, _TOGETHER * longest)
    sure = len(together) > 0 and bool(together.mean() >= 0.9)
    for one, own in zip(traces, named if sure else [], strict=sure):
        one.calls = own
    return sure


@dataclass(frozen=True)
class Clocks:
    """`ahead_ns` is {rank: by how much its clock is ahead of the first rank's}, None if the ranks' clocks cannot be
    compared; `one` if all ranks are known to share a clock; `text` is a warning, or empty."""

    ahead_ns: dict[int, int] | None
    one: bool
    text: str


def compare(traces: Sequence[Recording], calls: pd.DataFrame) -> Clocks:
    """Return how the clocks of ranks differ."""
    hosts = {one.rank: one.host or "" for one in traces if one.rank is not None}
    calls = calls.assign(host=calls["rank"].map(hosts))
    torn = _gaps(calls, ["call", "host"]).groupby("host").max() > TOLERANCE_NS
    clock = {rank: f"{host} {rank if torn.get(host) else ''}" for rank, host in hosts.items()}
    if len(set(clock.values())) < 2:
        return Clocks(dict.fromkeys(hosts, 0), "" not in hosts.values(), "")
    names = len(distinct(hosts.values()))
    differ = f"The recordings are of {names} hosts." if names > 1 else "The ranks have different clocks."
    if (gap := _gaps(calls, ["call"]).max()) > TOLERANCE_NS:
        differ += (
            f" Their clocks differ by at least {_length(gap)}: a rank had finished a collective so long before another "
            "rank began it."
        )
    # A float holds nanoseconds of a trace, not since 1970.
    ends = calls.assign(clock=calls["rank"].map(clock), end=calls["end_ns"] - calls["end_ns"].min())
    by_clock = ends.pivot_table("end", "call", "clock", "last").reindex(columns=list(dict.fromkeys(clock.values())))
    known = by_clock.notna().astype(int)
    shared = known.T @ known
    # Each next clock is the one that shares most calls with a clock whose lead is known.
    ahead: dict[Any, int] = {clock[min(hosts)]: 0}
    error = 0
    while len(left := shared.loc[list(ahead)].drop(columns=list(ahead)).stack()) and left.max():
        pair: Any = left.idxmax()
        one, other = pair
        apart = (by_clock[other] - by_clock[one]).dropna()
        ahead[other] = ahead[one] + round(apart.median())
        error = max(error, round((apart - apart.median()).abs().median()))
    if len(ahead) < len(shared):
        return Clocks(None, False, f"{differ} No collective that all of them share shows how far their clocks agree.")
    most = max(ahead.values()) - min(ahead.values())
    return Clocks(
        {rank: ahead[clock[rank]] for rank in hosts},
        False,
        f"{differ} Times were moved by up to {_length(most)}, so that the ranks finish the same collectives together"
        f"{f', in the median within {_length(error)}' if error else ''}.",
    )


def _gaps(calls: pd.DataFrame, key: list[str]) -> pd.Series[int]:
    """Return by how much a rank began a call after another rank had finished it."""
    groups = calls.groupby(key)
    return groups["start_ns"].max() - groups["end_ns"].min()


def _length(ns: int) -> str:
    return format.duration(ns / 1e9, 3) if ns >= 10**9 else format.milliseconds(ns / 1e9)


def lateness(calls: pd.DataFrame, one_clock: bool) -> list[Any]:
    """Return for each kind of call and rank of its group how late the rank is after the first one, and `shortest_s`,
    the median time of the rank that came last.

    Only calls that all ranks of the group recorded count. With several clocks, a rank is as late as its time is shorter
    than the longest one.
    """
    calls = calls[calls.groupby("call")["rank"].transform("size") == calls["n"]].reset_index(drop=True)
    length = calls["end_ns"] - calls["start_ns"]
    came = (calls["start_ns"] if one_clock else -length).groupby(calls["call"])
    late = (calls["start_ns"] if one_clock else -length) - came.transform("min")
    calls = calls.assign(
        late=late / 1e9,
        last=(late > 0) & calls.index.isin(came.idxmax()),
        shortest=length.groupby(calls["call"]).transform("min") / 1e9,
    )
    table = calls.groupby([*_KIND, "rank"], dropna=False, sort=False).agg(
        calls=("late", "size"), late_s=("late", "median"), total_s=("late", "sum"), last=("last", "sum"),
        shortest_s=("shortest", "median"),
    )  # fmt: skip
    table = table.reset_index().astype(object)
    return table.where(table.notna(), None).to_dict("records")
