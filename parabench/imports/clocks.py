"""Match the calls of several ranks' traces: how far clocks differ, and which rank comes late.

No rank finishes an operation of MUTUAL before the last one has entered it, and all finish it at about the same time. So
a rank that begins after another has finished has another clock, and equal ends show by how much. The rank with the
shortest time came last, whatever the clocks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from parabench.analysis.step.calls import MUTUAL
from parabench.analysis.text import format
from parabench.imports.recording import Call, Recording, distinct, word

# Times on one clock may be wrong by less.
TOLERANCE_NS = 100_000
# Ends of one call are together within this share of its time, or so many nanoseconds.
_TOGETHER, _TOGETHER_NS = 0.05, 20_000

# {rank: its part of one call}
Matched = dict[int, Call]


def matched(traces: Iterable[Recording]) -> list[Matched]:
    """Return the timed calls of MUTUAL operations in groups whose ranks are known.

    The same call has the same number in its group; without numbers it is the n-th of its kind in a step, if all ranks
    have equally many.
    """
    found: dict[tuple[Any, ...], Matched] = {}
    counts: dict[tuple[Any, ...], Counter[int]] = defaultdict(Counter)
    for one in traces:
        for call in one.calls:
            if call.op not in MUTUAL or call.ranks is None or call.start_ns is None or call.duration_ns is None:
                continue
            assert one.rank is not None
            kind = (call.op, call.ranks, call.bytes, call.step if call.number is None else None)
            counts[kind][one.rank] += 1
            nth = counts[kind][one.rank] if call.number is None else call.number
            found.setdefault((kind, nth), {})[one.rank] = call
    return [
        calls
        for (kind, _), calls in found.items()
        if len(calls) > 1 and (kind[-1] is None or len(set(counts[kind].values())) == 1)
    ]


def name_groups(traces: Sequence[Recording]) -> bool:
    """Give the calls of traces that name no groups the group of all ranks, if their ends show that it is theirs.

    Returns whether it did.
    """
    ranks = tuple(sorted({one.rank for one in traces if one.rank is not None}))
    unknown = all(call.group_size is None for one in traces for call in one.calls)
    if not unknown or len(ranks) < 2 or {one.world_size for one in traces} != {len(ranks)}:
        return False
    trial = []
    for one in traces:
        named = [call._replace(ranks=ranks, group_size=len(ranks)) if call.op in MUTUAL else call for call in one.calls]
        trial.append(replace(one, calls=named))
    together = []
    for calls in matched(trial):
        ends = [_end(call) for call in calls.values()]
        longest = max(call.duration_ns or 0 for call in calls.values())
        if len(calls) == len(ranks):
            together.append(max(ends) - min(ends) <= max(_TOGETHER_NS, _TOGETHER * longest))
    sure = bool(together) and sum(together) >= 0.9 * len(together)
    for one, other in zip(traces, trial, strict=True):
        one.calls = other.calls if sure else one.calls
    return sure


def _start(call: Call) -> int:
    return call.start_ns or 0


def _end(call: Call) -> int:
    return (call.start_ns or 0) + (call.duration_ns or 0)


@dataclass(frozen=True)
class Clocks:
    """`ahead_ns` is {rank: by how much its clock is ahead of the first rank's}, None if the ranks' clocks cannot be
    compared; `one` if all ranks are known to share a clock; `text` is a warning, or empty."""

    ahead_ns: dict[int, int] | None
    one: bool
    text: str


def compare(traces: Sequence[Recording], calls: Sequence[Matched]) -> Clocks:
    """Return how the clocks of ranks differ."""
    hosts = {one.rank: one.host for one in traces if one.rank is not None}
    gap, torn = 0, set()
    for each in calls:
        own: dict[str | None, list[Call]] = defaultdict(list)
        for rank, call in each.items():
            own[hosts[rank]].append(call)
        gap = max(gap, _gap(each.values()))
        torn |= {host for host, some in own.items() if _gap(some) > TOLERANCE_NS}
    clock = {rank: (host, rank if host in torn else -1) for rank, host in hosts.items()}
    if len(set(clock.values())) < 2:
        return Clocks(dict.fromkeys(hosts, 0), None not in hosts.values(), "")
    names = len(distinct(hosts.values()))
    differ = f"The recordings are of {names} hosts." if names > 1 else "The ranks have different clocks."
    if gap > TOLERANCE_NS:
        differ += (
            f" Their clocks differ by at least {_length(gap)}: a rank had finished a collective so long before another "
            "rank began it."
        )
    # By how much each clock is ahead, from the ends of the calls that it shares with a clock whose lead is known.
    apart: dict[tuple[Any, Any], list[int]] = defaultdict(list)
    for each in calls:
        ends = {clock[rank]: _end(call) for rank, call in each.items()}
        for one, end in ends.items():
            for other in ends.keys() - {one}:
                apart[one, other].append(ends[other] - end)
    ahead = {clock[min(hosts)]: 0}
    errors = [0]
    while reached := [(a, b) for a, b in apart if a in ahead and b not in ahead]:
        one, other = max(reached, key=lambda pair: len(apart[pair]))
        middle = round(median(apart[one, other]))
        ahead[other] = ahead[one] + middle
        errors.append(round(median(abs(each - middle) for each in apart[one, other])))
    if ahead.keys() != set(clock.values()):
        return Clocks(None, False, f"{differ} No collective that all of them share shows how far their clocks agree.")
    most = max(ahead.values()) - min(ahead.values())
    return Clocks(
        {rank: ahead[clock[rank]] for rank in hosts},
        False,
        f"{differ} Times were moved by up to {_length(most)}, so that the ranks finish the same collectives together"
        f"{f', in the median within {_length(max(errors))}' if max(errors) else ''}.",
    )


def _gap(calls: Iterable[Call]) -> int:
    """Return by how much a rank began a call after another rank had finished it."""
    some = list(calls)
    return max(map(_start, some)) - min(map(_end, some))


def _length(ns: int) -> str:
    return format.duration(ns / 1e9, 3) if ns >= 10**9 else format.milliseconds(ns / 1e9)


def lateness(calls: Iterable[Matched], one_clock: bool) -> list[dict[str, Any]]:
    """Return for each kind of call and rank of its group how late the rank is after the first one.

    Only calls that all ranks of the group recorded count. With several clocks, a rank is as late as its time is shorter
    than the longest one.
    """
    late: dict[tuple[Any, ...], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    last: Counter[tuple[Any, ...]] = Counter()
    for each in calls:
        call = next(iter(each.values()))
        if call.ranks is None or len(each) < len(call.ranks):
            continue
        came = {rank: _start(one) if one_clock else -(one.duration_ns or 0) for rank, one in each.items()}
        first, kind = min(came.values()), (call.op, call.ranks, call.bytes)
        latest = max(came, key=came.__getitem__)
        last[kind, latest] += came[latest] > first
        for rank, at in came.items():
            late[kind][rank].append(at - first)
    return [
        {
            "op": op, "ranks": word(ranks), "bytes": size, "rank": rank, "calls": len(times),
            "late_s": median(times) / 1e9, "total_s": sum(times) / 1e9, "last": last[(op, ranks, size), rank],
        }
        for (op, ranks, size), own in late.items()
        for rank, times in sorted(own.items())
    ]  # fmt: skip
