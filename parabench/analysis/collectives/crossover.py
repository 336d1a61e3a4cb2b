"""Which algorithm is fastest at which size, and where that changes; only what the launches support is claimed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any, cast

import pandas as pd

from parabench.analysis.collectives.bus import bus_table, good_sizes, measured
from parabench.analysis.numbers import numbers
from parabench.analysis.session import select_session
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.block_model import ROUNDING, fit
from parabench.analysis.text import format
from parabench.plan.collective_case import LOGGED_OPS
from parabench.plan.collective_protocol import LATENCY
from parabench.store.results import Results


@dataclass(frozen=True)
class Range:
    """Sizes, first to last, throughout which all of `algorithms` are tied with the fastest.

    `alone` are the sizes at which nothing else is among the fastest.
    """

    first_bytes: int
    last_bytes: int
    algorithms: tuple[str, ...]
    alone: tuple[int, ...] = ()


@dataclass(frozen=True)
class Crossover:
    """The best changes between these two sizes: at `above_bytes` none of the next range's algorithms is among the
    fastest, at `below_bytes` none of the range's before."""

    above_bytes: int
    below_bytes: int


@dataclass(frozen=True)
class BusAnswer:
    """What is fastest for one operation and world size.

    `ranges` cover the measured sizes in their order; between two of them lies one of `changes`. `peak` is the highest
    bus bandwidth, GB/s, `peak_bytes` its size and `peak_algorithm` whose it is. `why_not` says why nothing is
    distinguishable; `ranges` then is empty. `sizes` are all that were measured, `timing` says how
    (`collective_protocol.in_words`).
    """

    op: str
    world_size: int
    blocks: int
    algorithms: tuple[str, ...]
    ranges: tuple[Range, ...]
    changes: tuple[Crossover, ...]
    peak: float | None
    peak_bytes: int | None
    peak_algorithm: str | None
    why_not: str | None
    sizes: tuple[int, ...] = ()
    timing: str = LATENCY

    @property
    def heading(self) -> str:
        """Which question this answers: 'all_reduce, 4 ranks'."""
        return f"{self.op}, {format.count(self.world_size, 'rank')}"


def bus_answers(results: Results, session: str | int | None = None) -> tuple[BusAnswer, ...]:
    """An answer for each operation and world size of a session (default: the newest).

    Raises UsageError for no such session, or one of another kind.
    """
    chosen = select_session(results, session)
    chosen.require("collectives", results.path)
    return answers(measured(numbers(results, chosen)))


def answers(sizes: pd.DataFrame) -> tuple[BusAnswer, ...]:
    """The same from the table of `bus.measured`; nothing for an operation without a launch that succeeded."""
    good = good_sizes(sizes)
    groups = {cast(tuple[str, int], key): group for key, group in good.groupby(["op", "world_size"])}
    order = {op: i for i, op in enumerate(LOGGED_OPS)}
    return tuple(_answer(op, n, groups[op, n]) for op, n in sorted(groups, key=lambda key: (order[key[0]], key[1])))


def _answer(op: str, world_size: int, good: pd.DataFrame) -> BusAnswer:
    algorithms = tuple(good["algorithm"].unique())
    blocks = int(good["repetition"].nunique())
    top: dict[Any, Any] = bus_table(good).sort_values("busbw").iloc[-1].to_dict()
    why_not, logged = None, bool((good["source"] != "").any())
    if len(algorithms) == 1:
        why_not = f"Only {algorithms[0]} was measured, so there is nothing to rank."
        if logged:
            why_not = f"Only {algorithms[0]} has such a test, so there is nothing to compare."
    elif logged:
        why_not = _of_logs(good)
    elif blocks < 2:
        why_not = "One block cannot be tested against noise: run at least 2 launches, better 3 or more."
    by_size = {int(str(size)): group for size, group in good.groupby("bytes")}
    best = {size: _best(group, len(by_size)) for size, group in by_size.items()} if why_not is None else {}
    ranges = _in_ranges(best)
    return BusAnswer(
        op=op,
        world_size=world_size,
        blocks=blocks,
        algorithms=algorithms,
        ranges=ranges,
        changes=_changes(ranges, best),
        peak=format.number_or_none(float(top["busbw"])),
        peak_bytes=int(top["bytes"]),
        peak_algorithm=str(top["algorithm"]),
        why_not=why_not,
        sizes=tuple(sorted({int(size) for size in good["bytes"]})),
        timing=str(good["timing"].iloc[0]),
    )


def _of_logs(good: pd.DataFrame) -> str:
    """Return how two logs compare at the sizes that both have. They are one run each, so nothing is tested."""
    seconds = good.pivot_table("call_s", "bytes", "algorithm", "mean", sort=False).dropna()
    if len(seconds.columns) > 2 or seconds.empty:
        return "Each log is one run, so their differences are not tested against noise."
    base, other = seconds.columns
    ratio = seconds[other] / seconds[base]
    return (
        f"{other} takes {ratio.median():.2f} times as long as {base}, the median of {format.count(len(ratio), 'size')} "
        f"({ratio.min():.2f} to {ratio.max():.2f}). Each log is one run, so this is not tested against noise."
    )


def _best(good: pd.DataFrame, sizes: int) -> tuple[str, ...]:
    """The algorithms that are tied with the fastest at one of `sizes` sizes, fastest first.

    That they differ at all is what is claimed, so all pairs are compared and not each with the best alone. The sizes of
    a ladder share one rate of false claims (Bonferroni): with 5 % for each, six would make a wrong one in up to 26 % of
    sessions.
    """
    names = dict(zip(good["case"], good["algorithm"], strict=True))
    if len(names) == 1:
        return tuple(names.values())
    effects = fit(good, "compared_s")
    first, *_ = effects.connected()
    behind = effects.behind(first)
    # An algorithm that is not connected with the first is not known to be slower.
    tied = ~(behind > effects.half_widths(first, 1 - (1 - CONFIDENCE) / sizes) + ROUNDING)
    return tuple(names[case] for case in behind[tied].sort_values(kind="stable").index)


def _in_ranges(best: dict[int, tuple[str, ...]]) -> tuple[Range, ...]:
    """Neighbouring sizes that share an algorithm among their fastest, as far as it goes."""
    ranges: list[Range] = []
    for size in sorted(best):
        shared = tuple(name for name in ranges[-1].algorithms if name in best[size]) if ranges else ()
        if shared:
            ranges[-1] = Range(ranges[-1].first_bytes, size, shared)
        else:
            ranges.append(Range(size, size, best[size]))
    return tuple(
        replace(
            each,
            alone=tuple(
                size
                for size in sorted(best)
                if each.first_bytes <= size <= each.last_bytes and set(best[size]) == set(each.algorithms)
            ),
        )
        for each in ranges
    )


def _changes(ranges: tuple[Range, ...], best: dict[int, tuple[str, ...]]) -> tuple[Crossover, ...]:
    changes = []
    for before, after in itertools.pairwise(ranges):
        # At the end of a range the next one's may already be as good: the change lies after the last size at which
        # none of them is. Every range begins where none of the one before is left.
        only_before = [
            size
            for size in best
            if before.first_bytes <= size <= before.last_bytes and not set(after.algorithms) & set(best[size])
        ]
        if only_before:
            changes.append(Crossover(max(only_before), after.first_bytes))
    return tuple(changes)
