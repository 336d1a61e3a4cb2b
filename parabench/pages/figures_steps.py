"""Where a step's time goes."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from parabench.pages.figures import MOST_BARS, Panel, lay_out, listed, marked, measured, name_bars, plain
from parabench.record import STEP_PARTS

PART = {
    "data_s": ("#56B4E9", "data"),
    "forward_s": ("#0072B2", "forward"),
    "backward_s": ("#D55E00", "backward"),
    "forward_backward_s": ("#CC79A7", "forward and backward in turns"),
    "optimizer_s": ("#009E73", "optimizer"),
}


def step_parts(cases: pd.DataFrame) -> list[Panel]:
    """Where a step's time goes, stacked, the fastest cases on top. A part that a case does not have is left out."""
    rows = measured(cases).dropna(subset=list(STEP_PARTS), how="all").head(MOST_BARS)
    if rows.empty:
        return []
    labels = [marked(*pair) for pair in zip(rows["label"], rows["strategy"], strict=True)]
    figure = go.Figure()
    for part in STEP_PARTS:
        if rows[part].isna().all():
            continue
        colour, meaning = PART[part]
        figure.add_bar(
            y=list(range(len(rows))),
            customdata=[plain(label) for label in labels],
            x=listed(rows[part] * 1e3),
            name=meaning,
            orientation="h",
            marker={"color": colour, "line": {"width": 0}},
            hovertemplate="%{customdata}: %{x:.3~f} ms<extra>%{fullData.name}</extra>",
        )
    lay_out(figure, "median time of a step (ms)", "")
    figure.update_layout(barmode="stack", bargap=0.35, legend_traceorder="normal")
    lines = name_bars(figure, labels)
    return [Panel("", figure, 150 + (12 + 16 * max(lines, 2)) * len(rows))]
