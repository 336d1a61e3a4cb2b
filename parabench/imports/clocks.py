"""Match the calls of several ranks' traces, to find differences of their clocks and ranks that come late.

All ranks finish an operation of MUTUAL at about the same time, so different ends show different clocks. The rank with
the shortest time came last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.step.calls import MUTUAL
from parabench.imports.recording import Recording, distinct, word
from parabench.store.results import known_records

# Smaller differences occur on one clock.
TOLERANCE_S = 1e-4
KIND = ["op", "ranks", "bytes", "dtype"]


def matched(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the timed calls of MUTUAL operations in groups with known ranks, one row per rank and call.

    `call` is the same number for all ranks of a call. Calls without a number are matched by their order in a step, if
    the counts of the ranks agree.
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
    recorded = table.groupby("call")["rank"].transform("size")
    steps = table.groupby([*KIND, "step"], dropna=False)
    even = steps["call"].transform("nunique") * steps["rank"].transform("nunique") == steps["call"].transform("size")
    return table[(recorded > 1) & (even | (table["step"] == -1))]


def compare(traces: Sequence[Recording], calls: pd.DataFrame) -> tuple[dict[int, float] | None, bool, str]:
    """Compare the clocks of ranks.

    Returns:
        {rank: lead of its clock over the first rank's clock}, None if it is unknown; whether all ranks are known to
        share a clock; and a warning, or an empty text.
    """
    hosts = {one.rank: one.host or "" for one in traces if one.rank is not None}
    calls = calls.assign(host=calls["rank"].map(hosts))
    torn = _gaps(calls, ["call", "host"]).groupby("host").max() > TOLERANCE_S
    clock = {rank: f"{host} {rank if torn.get(host) else ''}" for rank, host in hosts.items()}
    if len(set(clock.values())) < 2:
        return dict.fromkeys(hosts, 0.0), "" not in hosts.values(), ""
    names = len(distinct(hosts.values()))
    differ = f"The traces and dumps are from {names} hosts." if names > 1 else "The ranks have different clocks."
    gap = _gaps(calls, ["call"]).max()
    if gap > TOLERANCE_S:
        differ += (
            f" Their clocks differ by at least {_length(gap)}: a rank finished a collective that long before another "
            "rank began it."
        )
    calls["clock"] = calls["rank"].map(clock)
    by_clock = calls.pivot_table("end_s", "call", "clock", "last").reindex(columns=list(dict.fromkeys(clock.values())))
    apart = by_clock.sub(by_clock[clock[min(hosts)]], axis="index")
    ahead = apart.median()
    if ahead.isna().any():
        return None, False, f"{differ} No collective that all of them share shows how far their clocks agree."
    error = float((apart - ahead).abs().median().max())
    within = f", in the median within {_length(error)}" if round(error, 9) else ""
    most = _length(float(ahead.max() - ahead.min()))
    text = f"{differ} Times were moved by up to {most}, so that the ranks finish the same collectives together{within}."
    return {rank: float(ahead[clock[rank]]) for rank in hosts}, False, text


def _gaps(calls: pd.DataFrame, key: list[str]) -> pd.Series[float]:
    """Return the time from the first end of a call to the last start of it; positive if the clocks differ."""
    groups = calls.groupby(key)
    return groups["start_s"].max() - groups["end_s"].min()


def _length(seconds: float) -> str:
    return format.duration(seconds, 3) if seconds >= 1 else format.milliseconds(seconds)


def lateness(calls: pd.DataFrame, one_clock: bool) -> list[dict[Any, Any]]:
    """Return one row per kind of call and rank, with the rank's delay after the first rank.

    `shortest_s` is the median time of the rank that came last. With several clocks, the delay is the longest time of
    the call minus the rank's time.
    """
    # Only calls that all ranks of the group recorded count.
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
    return known_records(table.reset_index())
