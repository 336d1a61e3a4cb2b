"""The figure of a gate: the change of each configuration, with upper bounds and the tolerance."""

from __future__ import annotations

from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.compare.cases import Outcome
from parabench.report.figures.figures import GREY, Panel, in_rows, marks, plain, vertical
from parabench.report.figures.sides import REACH, interval_bars, span

# With more rows, a figure is only scrolled past; the table has every configuration.
MOST_DOTS = 40
# The color and the symbol of each outcome, in their order in the legend.
_MARKERS = {
    Outcome.SLOWER: ("#D55E00", "diamond"),
    Outcome.FASTER: ("#009E73", "triangle-left"),
    Outcome.UNCLEAR: ("#E69F00", "x"),
    Outcome.SAME: ("#0072B2", "circle"),
    Outcome.NOT_JUDGED: ("#7F7F7F", "circle-open"),
}


def changes(rows: pd.DataFrame, tolerance: float) -> list[Panel]:
    """Return the figure of all changes in percent, from `views.gate.gate_rows`; empty without numbers."""
    rows = rows[rows["ratio"].notna() & rows["outcome"].isin(list(_MARKERS))].reset_index(drop=True)
    if rows.empty:
        return []
    numbers = 100 * (rows[["ratio", "low", "high", "upper"]].astype(float) - 1)
    traces = []
    for outcome, (color, symbol) in _MARKERS.items():
        own, texts = numbers[rows["outcome"] == outcome], rows[rows["outcome"] == outcome]
        hovers = [
            f"{plain(label)}: {change} (95%: {interval or format.UNKNOWN})"
            for label, change, interval in zip(texts["label"], texts["change"], texts["interval"], strict=True)
        ]
        marker = {"color": color, "symbol": symbol, "size": 9}
        if len(own):
            bars = interval_bars(own)
            traces.append(marks(own["ratio"], own.index.tolist(), str(outcome), hovers, marker, error_x=bars))
    bounds = numbers["upper"].dropna()
    tick = {"symbol": "line-ns-open", "size": 13, "color": GREY, "line": {"width": 2}}
    ruled_out = [f"slowdowns above {above} are ruled out (95%)" for above in rows["above"][bounds.index]]
    traces.append(marks(bounds, bounds.index.tolist(), "upper bound", ruled_out, tick))
    share = 100 * tolerance
    tolerated = {
        "type": "rect", "x0": -share, "x1": share, "y0": 0, "y1": 1, "yref": "paper", "layer": "below",
        "fillcolor": "rgba(127,127,127,0.18)", "line": {"width": 0},
    }  # fmt: skip
    far = REACH * max(share, numbers["ratio"].abs().max(), numbers["upper"].abs().fillna(0.0).median())
    xaxis = {"range": span(numbers, far, share, -share), "ticksuffix": ""}
    look: dict[str, Any] = {
        "which": "that come first",
        "most": MOST_DOTS,
        "shapes": [tolerated, vertical(0)],
        "xaxis": xaxis,
    }
    return [in_rows("", rows["label"], "change of the step time (%)", traces, head=110, **look)]
