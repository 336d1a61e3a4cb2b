"""The fastest algorithm at each size, and the sizes between its changes, as far as the launches show them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.answer import Answer, columns, keyed, tables
from parabench.analysis.collectives.bus import bus_table, good_sizes, measured
from parabench.analysis.numbers import numbers
from parabench.analysis.session import select_session
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.contrasts import ROUNDING, fit
from parabench.plan.collective_case import LOGGED_OPS, size_text
from parabench.plan.collective_protocol import LATENCY, in_words
from parabench.store.results import Results


@dataclass(frozen=True)
class Range:
    """A range of sizes with the same `algorithms` among the fastest.

    `alone` are the sizes without others among the fastest.
    """

    first_bytes: int
    last_bytes: int
    algorithms: tuple[str, ...]
    alone: tuple[int, ...] = ()

    def sentence(self, measured: tuple[int, ...]) -> str:
        """Return the range in words; `measured` are all sizes."""
        sizes = f"at {size_text(self.first_bytes)}"
        if self.last_bytes != self.first_bytes:
            sizes = f"from {size_text(self.first_bytes)} to {size_text(self.last_bytes)}"
        names = format.joined(self.algorithms)
        if len(self.algorithms) > 1:
            return f"{names} are fastest and not statistically distinguishable {sizes}"
        if self.alone == tuple(size for size in measured if self.first_bytes <= size <= self.last_bytes):
            return f"{names} is fastest {sizes}"
        only = f", and the only one at {format.joined(map(size_text, self.alone))}" if self.alone else ""
        return f"{names} is among the fastest {sizes}{only}"


@dataclass(frozen=True)
class Crossover:
    """Two sizes between which the best changes.

    At `above_bytes`, the fastest are not in the next range. At `below_bytes`, they are not in the previous range.
    """

    above_bytes: int
    below_bytes: int


@dataclass(frozen=True)
class BusAnswer:
    """The fastest algorithms of one operation and world size; docs/site/keys.toml describes every field."""

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
        """The question that this answers: 'all_reduce, 4 ranks'."""
        return f"{self.op}, {format.count(self.world_size, 'rank')}"

    def text(self) -> str:
        """Return the answer without its heading."""
        texts = [self.why_not or self._ranges()]
        if self.peak is not None and self.peak_bytes is not None:
            texts.append(
                f"The highest bus bandwidth is {format.digits(self.peak)} GB/s, "
                f"{self.peak_algorithm} at {size_text(self.peak_bytes)}."
            )
        return " ".join([*texts, f"Timed: {in_words(self.timing)}."])

    def sentence(self) -> str:
        """Return the answer after its heading."""
        return f"{self.heading}: {self.text()}"

    def _ranges(self) -> str:
        blocks = format.count(self.blocks, "block")
        if len(self.ranges) == 1 and set(self.ranges[0].algorithms) == set(self.algorithms):
            everything = format.count(len(self.algorithms), "algorithm")
            return f"No difference was found between the {everything} at any size with {blocks}."
        found = "; ".join(each.sentence(self.sizes) for each in self.ranges) + f" ({blocks})."
        places = [f"between {size_text(each.above_bytes)} and {size_text(each.below_bytes)}" for each in self.changes]
        return f"{found} The best changes {format.joined(places)}." if places else found


# The tables of the answer.
TABLES = {
    "operations": columns(BusAnswer),
    "ranges": columns(Range, op=str, world_size=int),
    "changes": columns(Crossover, op=str, world_size=int),
}


def answer(of: Sequence[BusAnswer]) -> Answer:
    """Return the answer of `best` for a session of collectives."""
    rows: dict[str, list[Any]] = {"operations": list(of), "ranges": [], "changes": []}
    for each in of:
        rows["ranges"] += keyed(each.ranges, op=each.op, world_size=each.world_size)
        rows["changes"] += keyed(each.changes, op=each.op, world_size=each.world_size)
    return Answer(tuple(each.sentence() for each in of), tables(TABLES, rows))


def bus_answers(results: Results, session: str | int | None = None) -> tuple[BusAnswer, ...]:
    """Return an answer for each operation and world size of a session (default: the newest).

    Raises UsageError if there is no such session, or if it is of another kind.
    """
    chosen = select_session(results, session)
    chosen.require("collectives", results.path)
    return answers(measured(numbers(results, chosen)))


def answers(sizes: pd.DataFrame) -> tuple[BusAnswer, ...]:
    """Return the answers from `bus.measured`. An operation without a successful launch has none."""
    good = good_sizes(sizes)
    order = good["op"].map(LOGGED_OPS.index)
    return tuple(_answer(group) for _, group in good.groupby([order, "world_size"]))


def _answer(good: pd.DataFrame) -> BusAnswer:
    algorithms = tuple(good["algorithm"].unique())
    blocks = int(good["repetition"].nunique())
    top: dict[Any, Any] = bus_table(good).sort_values("busbw").iloc[-1].to_dict()
    why_not, logged = None, bool((good["source"] != "").any())
    if len(algorithms) == 1:
        why_not = f"Only {algorithms[0]} was measured, so no ranking is possible."
        if logged:
            why_not = f"Only {algorithms[0]} has such a test, so no comparison is possible."
    elif logged:
        why_not = _of_logs(good)
    elif blocks < 2:
        why_not = "One block cannot be tested against noise: run at least 2 launches, better 3 or more."
    sizes = tuple(sorted(map(int, good["bytes"].unique())))
    best = {size: _best(good[good["bytes"] == size], len(sizes)) for size in sizes} if why_not is None else {}
    ranges, changes = _in_ranges(best)
    return BusAnswer(
        op=str(top["op"]),
        world_size=int(top["world_size"]),
        blocks=blocks,
        algorithms=algorithms,
        ranges=ranges,
        changes=changes,
        peak=format.number_or_none(float(top["busbw"])),
        peak_bytes=int(top["bytes"]),
        peak_algorithm=str(top["algorithm"]),
        why_not=why_not,
        sizes=sizes,
        timing=str(good["timing"].iloc[0]),
    )


def _of_logs(good: pd.DataFrame) -> str:
    """Return a sentence that compares two logs at their common sizes, without a test, because each is one run."""
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
    """Return the algorithms that are tied with the fastest at one of `sizes` sizes, fastest first.

    All pairs are compared. The sizes share one rate of false claims (Bonferroni). With 5% for each of six sizes, up to
    26% of sessions would make a wrong claim.
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


def _in_ranges(best: dict[int, tuple[str, ...]]) -> tuple[tuple[Range, ...], tuple[Crossover, ...]]:
    """Join neighboring sizes that share a fastest algorithm, and return the changes of the best.

    `best` is in the order of sizes.
    """
    joined: list[tuple[tuple[str, ...], list[int]]] = []
    for size, fastest in best.items():
        shared = tuple(name for name in joined[-1][0] if name in fastest) if joined else ()
        if shared:
            joined[-1] = shared, [*joined[-1][1], size]
        else:
            joined.append((fastest, [size]))
    ranges = [
        Range(sizes[0], sizes[-1], names, tuple(size for size in sizes if set(best[size]) == set(names)))
        for names, sizes in joined
    ]
    changes = []
    for (_, sizes), (names, later) in itertools.pairwise(joined):
        # At the end of a range, algorithms of the next range may already be as good.
        if only_before := [size for size in sizes if not set(names) & set(best[size])]:
            changes.append(Crossover(only_before[-1], later[0]))
    return tuple(ranges), tuple(changes)
