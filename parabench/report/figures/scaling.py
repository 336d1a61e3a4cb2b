"""Figures of throughput and efficiency against the world size."""

from __future__ import annotations

from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.scaling import ALIKE, curves
from parabench.analysis.session import SessionData
from parabench.report.cases import page_cases
from parabench.report.figures.axes import by_size, ideal_line, ranks_axis, scaling_title, size_of, size_text
from parabench.report.figures.curves import NAME
from parabench.report.figures.figures import FROM_ZERO, Panel, Trace, cut, lay_out, listed, points
from parabench.report.palette import PART, SYMBOLS, Style, algorithm_style, native_first, strategy_style
from parabench.strategies import entry_of

# The ideal line is shown up to this multiple of the highest point, so that it does not compress the curves.
_ABOVE = 1.5
# The values of these need no name before them.
_SPEAKING = ("model", "data", "precision", "device")
_COLORS = [color for color, _ in PART.values()]


def scaling(seen: SessionData) -> list[Panel]:
    """Return throughput and efficiency against the world size.

    Each strategy has its curve with the most world sizes, then the fastest. For a strategy with several algorithms, or
    else bucket sizes, a further pair of figures has such a curve for each.
    """
    cases = seen.once(page_cases).set_index("case_id", drop=False).assign(ranking="scaling")
    table, panels = seen.once(curves), []
    base_rates = table["base_case_id"].map(cases["tokens_per_s"]) / table["base_world_size"]
    sizes = pd.Series([size_of(mib) for mib in table["bucket_mib"]], table.index, dtype=object)
    table = table.assign(ranking="scaling", hover=table["case_id"].map(cases["hover"]), bucket_mib=sizes)
    table["base_rate"] = base_rates.astype(float)
    works = table[list(ALIKE)].drop_duplicates()
    for _, group in table.groupby("group", sort=False):
        title = _work(group.iloc[0], works)
        strategies = _best(group, "strategy")
        if len(strategies) > 1:
            panels += _figures(
                title, cases, strategies, [strategy_style(_first(own, "strategy")) for own in strategies]
            )
        for name, own in group.groupby("strategy", sort=False):
            column = "algorithm" if own["algorithm"].nunique() > 1 else "bucket_mib"
            order = native_first if column == "algorithm" else by_size
            best = sorted(_best(own, column), key=lambda each: order(_first(each, column)))
            if len(best) == 1 and len(strategies) > 1:
                continue
            styles = [algorithm_style(str(_first(each, "algorithm"))) for each in best]
            if column == "bucket_mib" and len(best) > 1:
                styles = [
                    Style(_COLORS[i % len(_COLORS)], "solid", SYMBOLS[i % len(SYMBOLS)]) for i in range(len(best))
                ]
            panels += _figures(f"{title}, {name}" if len(strategies) > 1 else title, cases, best, styles)
    return panels


def _first(own: pd.DataFrame, column: str) -> Any:
    return own[column].iloc[0]


def _best(group: pd.DataFrame, column: str) -> list[pd.DataFrame]:
    """Return the curve with the most points, then the fastest at the most ranks, for each value of a column."""
    return [
        max((own for _, own in alike.groupby("curve")), key=lambda own: (len(own), own["tokens_per_s"].iloc[-1]))
        for _, alike in group.groupby(column, dropna=False, sort=False)
    ]


def _figures(title: str, cases: pd.DataFrame, found: list[pd.DataFrame], styles: list[Style]) -> list[Panel]:
    every, unit = pd.concat(found), format.unit_of(_first(found[0], "seq_len"))
    sizes = sorted(map(int, every["world_size"].unique()))
    # Without one device as the common base, the best ranked base is the ideal: no curve is flattered.
    ranked = every[every["ranked"].astype(bool)]
    rate = (ranked if len(ranked) else every)["base_rate"].max()
    xaxis = ranks_axis(sizes)
    wide = xaxis["type"] == "log"  # with both axes logarithmic, the ideal line stays straight
    highest = every["tokens_per_s"].max()
    top = 1.05 * max(highest, min(rate * sizes[-1], _ABOVE * highest))
    several = every["strategy"].nunique() > 1
    named = not several or bool((every["algorithm"] != "native").any())
    base = cases.loc[[_first(every, "base_case_id")]]
    panels = []
    for kind, axis, values, ideal, yaxis in (
        (
            "throughput",
            f"throughput ({unit}/s)",
            every["tokens_per_s"],
            rate,
            {"type": "log"} if wide else {"range": [0, top]},
        ),
        ("efficiency", "efficiency (%)", 100 * every["efficiency"], None, FROM_ZERO),
    ):
        traces = [ideal_line(sizes, [100 if ideal is None else ideal * size for size in sizes])]
        start = 0
        for own, style in zip(found, styles, strict=True):
            traces.append(_curve(own, values.iloc[start : start + len(own)], style, unit, named))
            start += len(own)
        if _first(base, "strategy") == "single":  # over the marks of all curves
            at = base["world_size"].to_list()
            traces.append(
                points(base, at, [100 if ideal is None else ideal * at[0]], strategy_style("single"), "single")
            )
        figure = lay_out(traces, "world size (ranks)", axis, xaxis=xaxis, yaxis=yaxis)
        # So that a legend of one or two lines leaves room for the curves.
        panels.append(Panel(f"{title}: {kind}", figure, 340 + 16 * len(found)))
    return panels


def _curve(own: pd.DataFrame, values: pd.Series, style: Style, unit: str, named: bool) -> Trace:
    strategy, size = _first(own, "strategy"), _first(own, "bucket_mib")
    also = [
        f"{format.rate(rate)} {unit}/s, efficiency {format.percent(efficiency)}"
        for rate, efficiency in zip(own["tokens_per_s"], own["efficiency"], strict=True)
    ]
    # The strategy, its algorithm if curves differ in it, and its bucket size.
    algorithm = _first(own, "algorithm") if named and "algorithm" in entry_of(strategy).axes else ""
    words = (strategy, algorithm, "" if size is None else f"{size_text(size)} MiB")
    name = cut(" ".join(filter(None, words)), NAME)
    trace = points(
        own, own["world_size"], listed(values), style, name, mode="lines+markers", line=style.line, also=also
    )
    # The point of a common base is shown with the others of the curve.
    common = (own["case_id"] == own["base_case_id"]) & (own["base"] != strategy)
    ids = "|".join(own["case_id"][~common])
    trace["customdata"] = own["case_id"].mask(common, ids).to_list()
    return trace


def _work(group: pd.Series, works: pd.DataFrame) -> str:
    """Return the fixed batch, and the other values that distinguish the workload: 'Strong scaling, global batch 8'."""
    apart = [
        str(group[name]) if name in _SPEAKING else f"{name.replace('_', ' ')} {group[name] or 'of bytes'}"
        for name in ALIKE
        if works[name].nunique() > 1
    ]
    return scaling_title(group.to_dict(), apart)
