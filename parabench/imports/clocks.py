"""Match the collectives in the traces of several ranks, to compare clocks and to find late ranks.

All ranks finish an operation of MUTUAL at about the same time. The rank with the shortest time started last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.step.calls import MUTUAL
from parabench.imports.recording import Recording, distinct, word
from parabench.store.results import known_records

# Clocks that differ by less count as one clock, in seconds.
TOLERANCE_S = 1e-4
# The columns that calls of one kind have in common.
KIND = ["op", "ranks", "bytes", "dtype"]


def matched(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the calls of MUTUAL operations that several ranks timed, one row per rank and call, numbered by `call`.

    Calls without a sequence number are matched by their order in a step, if all ranks have equally many.
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
    """Compare the clocks of the ranks of `traces`, from the calls that `matched` returns.

    Returns:
        - {rank: seconds that its clock is ahead of the first rank's clock}, `None` if unknown
        - whether all ranks certainly have the same clock
        - a warning, or an empty text
    """
    hosts = {one.rank: one.host or "" for one in traces if one.rank is not None}
    calls = calls.assign(host=calls["rank"].map(hosts))
    several = _gaps(calls, ["call", "host"]).groupby("host").max() > TOLERANCE_S
    clock = {rank: f"{host} {rank if several.get(host) else ''}" for rank, host in hosts.items()}
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
    """Return the seconds from the first end to the last start of each call. They are positive only if clocks differ."""
    groups = calls.groupby(key)
    return groups["start_s"].max() - groups["end_s"].min()


def _length(seconds: float) -> str:
    return format.duration(seconds, 3) if seconds >= 1 else format.milliseconds(seconds)


def lateness(calls: pd.DataFrame, one_clock: bool) -> list[dict[Any, Any]]:
    """Return one row per kind of call and rank, with the delays of the rank after the first rank.

    With several clocks, a delay is the longest time of the call minus the rank's time.

    - `calls`, `last`: the number of calls, and of calls that this rank started last
    - `late_s`, `total_s`: median and sum of the delays in seconds
    - `shortest_s`: the median of the time of the rank that started last
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
