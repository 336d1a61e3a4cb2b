"""Find the fastest algorithm of a collective at each size, and the sizes where the fastest changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.answer import Answer, Columns, tables
from parabench.analysis.collectives.bus import bus_table, good_sizes, measured
from parabench.analysis.session import SessionData
from parabench.analysis.stats import CONFIDENCE
from parabench.analysis.stats.contrasts import ROUNDING, fit
from parabench.plan.collective_case import LOGGED_OPS, size_text
from parabench.plan.collective_protocol import in_words
from parabench.store.record import Finding

_KEY = {"op": str, "world_size": int}
# The tables of the answer. docs/site/keys.toml describes every column.
TABLES: dict[str, Columns] = {
    "operations": {
        **_KEY, "repetitions": int, "algorithms": tuple[str, ...], "peak": float | None, "peak_bytes": int | None,
        "peak_algorithm": str | None, "why_not": str | None, "sizes": tuple[int, ...], "timing": str,
    },
    "ranges": {
        **_KEY, "first_bytes": int, "last_bytes": int, "algorithms": tuple[str, ...], "alone": tuple[int, ...],
    },
    "changes": {**_KEY, "above_bytes": int, "below_bytes": int},
}  # fmt: skip
Row = dict[str, Any]


def answer(seen: SessionData, warnings: Sequence[Finding] = ()) -> Answer:
    """Return the answer of `best` for a session of collectives. Raises UsageError for a session of another kind."""
    seen.session.require("collectives", seen.results.path)
    sentences, rows = fastest(measured(seen.numbers))
    if not sentences:
        why = "No launch was recorded" if seen.numbers.empty else "No launch succeeded"
        sentences = [f"{why}, so the fastest algorithm is unknown."]
    return Answer(tuple(sentences), tables(TABLES, rows), {}, tuple(warnings))


def fastest(sizes: pd.DataFrame) -> tuple[list[str], dict[str, list[Row]]]:
    """Return a sentence per operation and number of ranks, and the rows of TABLES, from `bus.measured` numbers."""
    good = good_sizes(sizes)
    rows: dict[str, list[Row]] = {name: [] for name in TABLES}
    sentences = []
    for _, group in good.groupby([good["op"].map(LOGGED_OPS.index), "world_size"]):
        operation = _operation(group)
        # All pairs are compared. The sizes share one rate of false claims (Bonferroni). With 5% for each of six sizes,
        # up to 26% of sessions would make a wrong claim.
        ranked = () if operation["why_not"] else operation["sizes"]
        best = {size: _tied(group[group["bytes"] == size], 1 - (1 - CONFIDENCE) / len(ranked)) for size in ranked}
        key = {name: operation[name] for name in _KEY}
        ranges, changes = ([key | row for row in found] for found in _in_ranges(best))
        rows["operations"].append(operation)
        rows["ranges"] += ranges
        rows["changes"] += changes
        sentences.append(_sentence(operation, ranges, changes))
    return sentences, rows


def _operation(good: pd.DataFrame) -> Row:
    """Return the row of the table `operations` for the good sizes of one operation and number of ranks."""
    top: dict[Any, Any] = bus_table(good).sort_values("busbw").iloc[-1].to_dict()
    return {
        "op": str(top["op"]),
        "world_size": int(top["world_size"]),
        "repetitions": int(good["repetition"].nunique()),
        "algorithms": tuple(good["algorithm"].unique()),
        "peak": format.number_or_none(float(top["busbw"])),
        "peak_bytes": int(top["bytes"]),
        "peak_algorithm": str(top["algorithm"]),
        "why_not": _why_not(good),
        "sizes": tuple(sorted(map(int, good["bytes"].unique()))),
        "timing": str(good["timing"].iloc[0]),
    }


def _why_not(good: pd.DataFrame) -> str | None:
    """Return a sentence about why the algorithms cannot be ranked, or None. Two logs are compared without a test."""
    algorithms, logged = good["algorithm"].unique(), bool((good["source"] != "").any())
    if len(algorithms) == 1:
        if logged:
            return f"Only {algorithms[0]} has such a test, so no comparison is possible."
        return f"Only {algorithms[0]} was measured, so no ranking is possible."
    if not logged:
        one = good["repetition"].nunique() < 2
        return "One repetition cannot be tested against noise; two or more can." if one else None
    seconds = good.pivot_table("call_s", "bytes", "algorithm", "mean", sort=False).dropna()
    if len(seconds.columns) > 2 or seconds.empty:
        return "Each log is one run, so their differences are not tested against noise."
    base, other = seconds.columns
    ratio = seconds[other] / seconds[base]
    return (
        f"{other} takes {ratio.median():.2f} times as long as {base}, the median of {format.count(len(ratio), 'size')} "
        f"({ratio.min():.2f} to {ratio.max():.2f}). Each log is one run, so this is not tested against noise."
    )


def _tied(good: pd.DataFrame, confidence: float) -> tuple[str, ...]:
    """Return the algorithms that are not distinguishable from the fastest at one size, the fastest first."""
    names = dict(zip(good["case"], good["algorithm"], strict=True))
    if len(names) == 1:
        return tuple(names.values())
    effects = fit(good, "compared_s")
    first, *_ = effects.connected()
    behind = effects.behind(first)
    # If an algorithm is not connected with the first one, it is unknown whether it is slower.
    tied = ~(behind > effects.half_widths(first, confidence) + ROUNDING)
    return tuple(names[case] for case in behind[tied].sort_values(kind="stable").index)


def _in_ranges(best: dict[int, tuple[str, ...]]) -> tuple[list[Row], list[Row]]:
    """Join neighboring sizes that share a fastest algorithm. Return the rows of `ranges` and of `changes`.

    `best` is {size: its fastest algorithms}.
    """
    joined: list[tuple[tuple[str, ...], list[int]]] = []
    for size, names in best.items():
        shared = tuple(name for name in joined[-1][0] if name in names) if joined else ()
        if shared:
            joined[-1] = shared, [*joined[-1][1], size]
        else:
            joined.append((names, [size]))
    ranges = [
        {
            "first_bytes": sizes[0],
            "last_bytes": sizes[-1],
            "algorithms": names,
            "alone": tuple(size for size in sizes if set(best[size]) == set(names)),
        }
        for names, sizes in joined
    ]
    changes = []
    for (_, sizes), (names, later) in itertools.pairwise(joined):
        # At the end of a range, algorithms of the next range may already be as good.
        if only_before := [size for size in sizes if not set(names) & set(best[size])]:
            changes.append({"above_bytes": only_before[-1], "below_bytes": later[0]})
    return ranges, changes


def _sentence(operation: Row, ranges: Sequence[Row], changes: Iterable[Row]) -> str:
    texts = [f"{operation['op']}, {format.count(operation['world_size'], 'rank')}:"]
    repetitions, everything = format.count(operation["repetitions"], "repetition"), operation["algorithms"]
    if operation["why_not"]:
        texts.append(operation["why_not"])
    elif len(ranges) == 1 and set(ranges[0]["algorithms"]) == set(everything):
        among = format.count(len(everything), "algorithm")
        texts.append(f"No difference was found between the {among} at any size with {repetitions}.")
    else:
        texts.append("; ".join(_range_text(each, operation["sizes"]) for each in ranges) + f" ({repetitions}).")
        ends = [(size_text(each["above_bytes"]), size_text(each["below_bytes"])) for each in changes]
        if ends:
            sizes = format.joined(f"between {above} and {below}" for above, below in ends)
            texts.append(f"The best changes {sizes}.")
    if operation["peak"] is not None:
        texts.append(
            f"The highest bus bandwidth is {format.digits(operation['peak'])} GB/s, {operation['peak_algorithm']} at "
            f"{size_text(operation['peak_bytes'])}."
        )
    return " ".join([*texts, f"Timed: {in_words(operation['timing'])}."])


def _range_text(row: Row, measured: Sequence[int]) -> str:
    first, last, alone = row["first_bytes"], row["last_bytes"], row["alone"]
    sizes = f"at {size_text(first)}" if first == last else f"from {size_text(first)} to {size_text(last)}"
    names = format.joined(row["algorithms"])
    if len(row["algorithms"]) > 1:
        return f"{names} are fastest and not statistically distinguishable {sizes}"
    if alone == tuple(size for size in measured if first <= size <= last):
        return f"{names} is fastest {sizes}"
    only = f", and the only one at {format.joined(map(size_text, alone))}" if alone else ""
    return f"{names} is among the fastest {sizes}{only}"
