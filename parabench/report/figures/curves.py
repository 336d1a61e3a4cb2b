"""Figures of one session along the axes bucket size, algorithm and world size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.numbers import WORK
from parabench.analysis.scaling import ALIKE
from parabench.analysis.scaling import curves as scaling_table
from parabench.analysis.session import SessionData
from parabench.plan.case import DEFAULTS, ranks_in_words
from parabench.report.cases import page_cases
from parabench.report.figures.axes import (
    Curve,
    Size,
    bucket_axis,
    by_size,
    longest,
    over_buckets,
    over_ranks,
    scaling_title,
    size_text,
    sizes_of,
    with_sizes,
)
from parabench.report.figures.figures import (
    BAND,
    Panel,
    cut,
    in_rows,
    launch_bars,
    measured,
    points,
    titled,
    vertical,
)
from parabench.report.palette import (
    PART,
    SYMBOLS,
    Style,
    algorithm_style,
    in_native_order,
    native_first,
    strategy_style,
)
from parabench.store.results import records
from parabench.strategies import entry_of

# Characters of a name in a legend.
_NAME = 34
# Rows in a figure of algorithms; with more, each world size has its own.
_MOST_LINES = 24
# All axes but the two that the figures show, and those among them that a title does not have.
_OTHERS = [name for name in DEFAULTS if name not in ("algorithm", "bucket_mib")]
_OPTIONS = [name for name in _OTHERS if name not in ("strategy", "world_size", "nodes", *WORK)]
_COLORS = [color for color, _ in PART.values()]


# -- bucket size and algorithm ----------------------------------------------------------------------------------------


def _worlds(seen: SessionData) -> list[pd.DataFrame]:
    """Return the measured configurations in groups that differ only in algorithm and bucket size.

    The text `world` has the ranks, and the other options that differ between the strategy's configurations.
    """
    cases = with_sizes(measured(seen.once(page_cases)))
    found = []
    for _, alike in cases.groupby(["work", "strategy"], sort=False):
        differ = [name for name in _OPTIONS if alike[name].nunique(dropna=False) > 1]
        for _, own in alike.groupby(["world_size", "nodes", *differ], dropna=False, sort=False):
            first = own.iloc[0]
            options = [f"{name} {_option(first[name])}" for name in differ]
            found.append(own.assign(world=", ".join([ranks_in_words(first["world_size"], first["nodes"]), *options])))
    return found


def _option(value: Any) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else "auto" if pd.isna(value) else str(value)


def _title(own: pd.DataFrame) -> str:
    return titled(own, f"{own['strategy'].iloc[0]}, {own['world'].iloc[0]}")


def buckets(seen: SessionData) -> list[Panel]:
    """Return step time against bucket size, with a curve for each algorithm."""
    worlds = [(own, sizes) for own in seen.once(_worlds) if len(sizes := sizes_of(own)) > 1]
    return [_buckets(*world) for world in sorted(worlds, key=lambda world: -len(world[1]))]


def _buckets(own: pd.DataFrame, sizes: list[Size]) -> Panel:
    curves = [
        Curve(cut(algorithm, _NAME), algorithm_style(algorithm), own[own["algorithm"] == algorithm])
        for algorithm in in_native_order(own["algorithm"].unique())
    ]
    places, _ = bucket_axis(sizes)
    fastest = set(own["bucket_mib"][own["ranking"] != ""])
    runs = (list(run) for inside, run in itertools.groupby(sizes, fastest.__contains__) if inside)
    bands = [
        BAND | {"yref": "paper", "y0": 0, "y1": 1, "x0": places[run[0]] - 0.3, "x1": places[run[-1]] + 0.3}
        for run in runs
    ]
    return over_buckets(_title(own), sizes, curves, shapes=bands)


def algorithms(seen: SessionData) -> list[Panel]:
    """Return the step time of algorithms relative to native, in common launches and repetitions."""
    lines: list[pd.DataFrame] = []
    for world in seen.once(_worlds):
        # `slower` is unknown if no launch or repetition connects a configuration with the best.
        for _, line in world[world["slower"].notna()].groupby("bucket_mib", dropna=False, sort=False):
            native = line["slower"][line["algorithm"] == "native"]
            if len(native) and len(line) > 1:
                ratio = (1 + line["slower"]) / (1 + native.iloc[0])
                lines.append(line.assign(ratio=ratio, line=len(lines), title=_title(line)))
    if not lines:
        return []
    found: list[tuple[Any, pd.DataFrame]] = []
    works: Any = pd.concat(lines).groupby(["work", "strategy"], sort=False)
    for (_, strategy), own in works:
        few = own["line"].nunique() <= _MOST_LINES
        found += [(titled(own, str(strategy)), own)] if few else list(own.groupby("title", sort=False))
    return [_algorithms(str(title), own) for title, own in sorted(found, key=lambda each: -each[1]["line"].nunique())]


def _algorithms(title: str, own: pd.DataFrame) -> Panel:
    firsts = records(own.drop_duplicates("line"))
    firsts.sort(key=lambda row: (row["world_size"], row["world"], by_size(row["bucket_mib"])))
    place = {row["line"]: at for at, row in enumerate(firsts)}
    own = own.assign(row=own["line"].map(place)).sort_values("row", kind="stable")
    several, names, traces = len(sizes_of(own)) > 1, in_native_order(own["algorithm"].unique()), []
    for i, name in enumerate(names):
        style = algorithm_style(name)
        # All are filled: the figure is about ratios.
        group = own[own["algorithm"] == name].assign(ranking="ratio")
        also = ["" if name == "native" else f"{format.digits(ratio)} times native's step" for ratio in group["ratio"]]
        y = group["row"] + (i - (len(names) - 1) / 2) * min(0.14, 0.7 / len(names))
        bars = launch_bars(group, (group["ratio"] / group["step_time_s"]).to_numpy()) | {"color": style.color}
        text = cut(name, _NAME)
        traces.append(points(group, group["ratio"], y, style, text, legendgroup=name, also=also, error_x=bars))
    one = vertical(1, color=algorithm_style("native").color, dash="dot")
    texts = [row["world"] + (f", {_with_unit(row['bucket_mib'])}" if several else "") for row in firsts]
    least = max(1, math.ceil((9 * len(names) - 12) / 16))
    look: dict[str, Any] = {"wide": False, "which": "first", "most": len(firsts), "shapes": [one]}
    return in_rows(title, texts, "over native (ratio)", traces, head=120, least=least, **look)


def _with_unit(mib: Size) -> str:
    return size_text(mib) + " MiB" * (mib is not None)


# -- world size -------------------------------------------------------------------------------------------------------


def scaling(seen: SessionData) -> list[Panel]:
    """Return throughput against the world size, with a curve for each strategy.

    Each has its curve with the most world sizes, then the fastest. A single strategy has a curve for each algorithm, or
    else for each bucket size.
    """
    cases = seen.once(page_cases).set_index("case_id", drop=False)
    table = with_sizes(seen.once(scaling_table))
    table = table.assign(ranking="scaling", hover=table["case_id"].map(cases["hover"]))
    works, panels = table[list(ALIKE)].drop_duplicates(), list[Panel]()
    for _, group in table.groupby("group", sort=False):
        several = (name for name in ("strategy", "algorithm") if group[name].nunique() > 1)
        by = next(several, "bucket_mib")
        found = sorted(longest(group, by), key=lambda own: _ORDER[by](own[by].iloc[0]))
        curves = [_scaling_curve(own, by, at) for at, own in enumerate(found)]
        base = cases.loc[[group["base_case_id"].iloc[0]]]
        if base["strategy"].iloc[0] == "single":  # over the marks of all curves
            curves.append(Curve("single", strategy_style("single"), base.assign(ranking="scaling", efficiency=1.0)))
        # Without one device as the common base, the best ranked base is the ideal: no curve is flattered.
        own = pd.concat(found)
        ranked = own[own["ranked"].astype(bool)]
        bases = (ranked if len(ranked) else own).drop_duplicates("base_case_id")
        rates = bases["base_case_id"].map(cases["tokens_per_s"]) / bases["base_world_size"]
        panels += over_ranks(scaling_title(group.iloc[0].to_dict(), works), curves, rates.max())
    return panels


_ORDER: dict[str, Callable[[Any], Any]] = {"strategy": lambda name: 0, "algorithm": native_first, "bucket_mib": by_size}


def _scaling_curve(own: pd.DataFrame, by: str, at: int) -> Curve:
    """Return a curve that differs from the others in the field `by`; it is number `at`."""
    first = own.iloc[0]
    # The point of a common base is shown with the others of the curve.
    common = (own["case_id"] == own["base_case_id"]) & (own["base"] != first["strategy"])
    rows = own.assign(case_id=own["case_id"].mask(common, "|".join(own["case_id"][~common])))
    style = Style(_COLORS[at % len(_COLORS)], "solid", SYMBOLS[at % len(SYMBOLS)])
    if by != "bucket_mib":
        style = strategy_style(first["strategy"]) if by == "strategy" else algorithm_style(first["algorithm"])
    algorithm = first["algorithm"] if "algorithm" in entry_of(first["strategy"]).axes else ""
    size = "" if first["bucket_mib"] is None else _with_unit(first["bucket_mib"])
    return Curve(cut(" ".join(filter(None, (first["strategy"], algorithm, size))), _NAME), style, rows)
