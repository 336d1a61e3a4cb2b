"""Figures of several sessions, which are compared with the first: a color and a symbol for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from parabench.analysis import format
from parabench.analysis.compare.comparison import SHARED_WORK, Outcome
from parabench.analysis.scaling import ALIKE, FIXED, curves
from parabench.analysis.session import SessionData
from parabench.report.figures.axes import Curve, longest, over_ranks, scaling_title, size_text, with_sizes
from parabench.report.figures.figures import ERROR_BARS, GREY, Panel, cut, in_rows, listed, marks, plain, vertical
from parabench.report.palette import side_style
from parabench.store.results import records

# Rows of a figure that are shown at once.
MOST_ROWS = 30
# Characters of a session's name in a legend.
_NAME = 32
# The axis reaches at most this many times as far as its points: an interval of two launches would flatten the rest.
_REACH = 2.5
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def ratios(first: str, sides: Sequence[tuple[str, pd.DataFrame]], tolerance: float | None = None) -> list[Panel]:
    """Return the step time of each configuration relative to the session `first`; empty without ratios.

    Args:
        first: Its name.
        sides: The name of each other session, and the table `cases` or `step_times` of its comparison.
        tolerance: The tolerance of a gate. The figure then has the upper bounds.
    """
    known = [(name, table[table["ratio"].notna()]) for name, table in sides]
    every = pd.concat([table for _, table in known])
    if every.empty:
        return []
    logs = every[["ratio", "low", "high"]].astype(float).apply(np.log)
    far = logs["ratio"].abs().groupby(every["label"], sort=False).max()
    place = {label: at for at, label in enumerate(far.index)}
    traces = []
    for at, (name, own) in enumerate(known, 1):
        style, y = side_style(at), own["label"].map(place)
        y = y + (at - (len(known) + 1) / 2) * min(0.22, 0.7 / len(known))
        judged = own["outcome"].isin((Outcome.FASTER, Outcome.SLOWER))
        symbols = [style.symbol + ("" if filled else "-open") for filled in judged]
        marker = {"color": style.color, "symbol": symbols, "size": 9, "line": {"width": 1.5, "color": style.color}}
        bars = ERROR_BARS | {"thickness": 1.5, "width": 3, "color": style.color}
        bars["array"] = listed(own["high"].fillna(own["ratio"]) - own["ratio"])
        bars["arrayminus"] = listed(own["ratio"] - own["low"].fillna(own["ratio"]))
        hovers = [_hover(name, row) for row in records(own)]
        more = {"error_x": bars, "showlegend": True}
        traces.append(marks(own["ratio"], listed(y), cut(name, _NAME), hovers, marker, **more))
    shapes, also = [vertical(1)], [-0.01, 0.01]
    if tolerance is not None:
        bounds = every[every["upper"].notna()]
        hovers = [f"slowdowns above {format.signed(upper - 1)} are ruled out (95%)" for upper in bounds["upper"]]
        tick = {"symbol": "line-ns-open", "size": 13, "color": GREY, "line": {"width": 2}}
        traces.append(marks(bounds["upper"], listed(bounds["label"].map(place)), "upper bound", hovers, tick))
        shapes.append(_band(1 / (1 + tolerance), 1 + tolerance))
        also += [-math.log1p(tolerance), math.log1p(tolerance)]
    reach = _REACH * max(far.max(), *also)
    ends = [*also, *logs.clip(-reach, reach).stack()]
    margin = 0.04 * (max(ends) - min(ends))
    look: dict[str, Any] = {
        "most": MOST_ROWS,
        "which": "most changed",
        "order": (far.rank(method="first", ascending=False).astype(int) - 1).tolist(),
        "least": math.ceil((2 + 13 * len(known)) / 16),
        "shapes": shapes,
        "xaxis": {
            "type": "log",
            "range": [(min(ends) - margin) / math.log(10), (max(ends) + margin) / math.log(10)],
            "tickformat": "~g",
        },
    }
    return [in_rows("", list(place), f"step time, {cut(first, 16)} = 1", traces, head=110, **look)]


def _band(low: float, high: float) -> dict[str, Any]:
    return {
        "type": "rect", "x0": low, "x1": high, "y0": 0, "y1": 1, "yref": "paper", "layer": "below",
        "fillcolor": "rgba(127,127,127,0.18)", "line": {"width": 0},
    }  # fmt: skip


def _hover(name: str, row: dict[Any, Any]) -> str:
    ends = "no interval: it needs two launches per variant"
    if format.known(row["low"]):
        ends = f"95%: {format.times_between(row['low'], row['high'])}"
    return f"<b>{plain(row['label'])}</b><br>{plain(name)}: {format.times(row['ratio'])} times ({ends})"


def scaling(sides: Sequence[SessionData]) -> list[Panel]:
    """Return throughput and efficiency against the world size: a color per session, a dash per strategy.

    A session's strategy has its curve with the most world sizes, then the fastest.
    """
    tables = [side.once(curves).assign(side=at) for at, side in enumerate(sides)]
    table = with_sizes(pd.concat([each for each in tables if len(each)] or tables[:1], ignore_index=True))
    alike = [name for name in ALIKE if name in SHARED_WORK]
    panels = []
    for kind, fixed in FIXED.items():
        for _, own in table[table["kind"] == kind].groupby([*alike, fixed], dropna=False, sort=False):
            if own["world_size"].nunique() > 1:
                title = scaling_title(own.iloc[0].to_dict(), table[alike])
                panels += over_ranks(title, _curves(sides, own))
    return panels


def _curves(sides: Sequence[SessionData], own: pd.DataFrame) -> list[Curve]:
    strategies, found = own["strategy"].unique().tolist(), []
    for rows in sorted(longest(own, ["side", "strategy"]), key=lambda rows: int(rows["side"].iloc[0])):
        first = rows.iloc[0]
        at, strategy = int(first["side"]), str(first["strategy"])
        which = plain(f"{strategy}, {first['algorithm']}, bucket {size_text(first['bucket_mib'])}")
        name = sides[at].role
        hovers = [f"<b>{plain(name)}</b><br>{which}<br>{format.count(n, 'rank')}" for n in rows["world_size"]]
        title = cut(name, _NAME) + (f", {plain(strategy)}" if len(strategies) > 1 else "")
        style = side_style(at)._replace(dash=_DASHES[strategies.index(strategy) % len(_DASHES)])
        found.append(Curve(title, style, rows.assign(ranking="scaling", hover=hovers)))
    return found
