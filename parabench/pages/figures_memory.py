"""Memory: the peaks that were observed, and the training state against its formula."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from parabench.analysis import words
from parabench.analysis.frames import MEMORY
from parabench.analysis.memory import PARTS
from parabench.pages.figures import (
    MOST_BARS,
    Panel,
    at_every,
    lay_out,
    listed,
    marked,
    measured,
    name_bars,
    plain,
    short,
)
from parabench.pages.palette import strategy_line, symbol_of
from parabench.record import MIB

PEAK = {
    "peak_rss_bytes": ("#0072B2", "resident set"),
    "peak_allocated_bytes": ("#0072B2", "torch tensors"),
    "peak_reserved_bytes": ("#56B4E9", "torch's allocator"),
    "used_bytes": ("#E69F00", "device (NVML)"),
}
STATE = {
    "parameter_bytes": ("#0072B2", "parameters"),
    "gradient_bytes": ("#E69F00", "gradients"),
    "optimizer_bytes": ("#009E73", "optimizer state"),
}
# Seen on light and dark pages, and on the bars.
_THEORY = "#888888"


def peak_memory(cases: pd.DataFrame) -> list[Panel]:
    """A bar per case for each thing that was observed: on a GPU torch's and NVML's, else the process's."""
    on_gpu = (cases["device"] == "cuda").any()
    wanted = [name for name in MEMORY if (name != "peak_rss_bytes") == bool(on_gpu)]
    rows = measured(cases).dropna(subset=wanted, how="all").head(MOST_BARS)
    seen = [name for name in wanted if rows[name].notna().any()]
    if rows.empty or not seen:
        return []
    labels = [marked(*pair) for pair in zip(rows["label"], rows["strategy"], strict=True)]
    figure = go.Figure()
    for name in seen:
        colour, meaning = PEAK[name]
        figure.add_bar(
            y=list(range(len(rows))),
            customdata=[plain(label) for label in labels],
            x=listed(rows[name] / MIB),
            name=meaning,
            orientation="h",
            marker={"color": colour, "line": {"width": 0}},
            hovertemplate="%{customdata}: %{x:,.0f} MiB<extra>%{fullData.name}</extra>",
        )
    lay_out(figure, f"peak {PEAK[seen[0]][1]} of a rank (MiB)" if len(seen) == 1 else "peak memory (MiB)", "")
    figure.update_layout(barmode="group", bargap=0.35, legend_traceorder="normal", showlegend=len(seen) > 1)
    lines = name_bars(figure, labels)
    return [Panel("", figure, 130 + (12 + max(16 * max(lines, 2), 14 + 14 * len(seen))) * len(rows))]


def state_panels(states: pd.DataFrame) -> list[Panel]:
    """Of each model: what a rank holds against the world size, a line per strategy; and what it is made of at each
    world size, a bar per strategy with a mark where theory puts its end."""
    panels = []
    for model, own in states.groupby("model", sort=False):
        apart = f" · {model}" if states["model"].nunique() > 1 else ""
        # Buckets and algorithms change nothing of it: of what holds the same, one is drawn.
        once = own.drop_duplicates(["strategy", "world_size", *PARTS])
        if once["world_size"].nunique() > 1:
            panels.append(_against_world_size(once, f"Against the world size{apart}"))
        for world_size, rows in once.groupby("world_size"):
            panels.append(_made_of(rows, f"{words.count(int(str(world_size)), 'rank')}{apart}"))
    return panels


def _against_world_size(states: pd.DataFrame, title: str) -> Panel:
    """Of a strategy with several options, the one that holds least. Names are short, as a legend must be: what is
    headroom its dashed line and the section's words say."""
    least = states.sort_values(["world_size", "measured"]).drop_duplicates(["strategy", "world_size"])
    sizes = sorted(int(size) for size in least["world_size"].unique())
    figure = go.Figure()
    for strategy, line in least.groupby("strategy", sort=False):
        points = at_every(sizes, line)
        style: dict[str, Any] = {"x": list(points.index), "legendgroup": str(strategy)}
        name, look = plain(short(str(strategy), 34)), strategy_line(str(strategy))
        figure.add_scatter(
            y=listed(points["measured"] / MIB),
            mode="lines+markers",
            name=name,
            line=look,
            marker={"size": 8, "symbol": symbol_of(str(strategy))},
            hovertemplate="%{x} ranks: %{y:,.3~f} MiB<extra>%{fullData.name}</extra>",
            **style,
        )
        figure.add_scatter(
            y=listed(points["theory"] / MIB),
            mode="markers",
            name=f"{name}, theory",
            showlegend=False,
            marker={"size": 15, "symbol": "circle-open", "color": look["color"], "line": {"width": 1.5}},
            hovertemplate="%{x} ranks: theory %{y:,.3~f} MiB<extra>%{fullData.name}</extra>",
            **style,
        )
    figure.add_scatter(
        x=[None],
        y=[None],
        mode="markers",
        name="theory",
        marker={"size": 15, "symbol": "circle-open", "color": _THEORY, "line": {"width": 1.5}},
    )
    lay_out(figure, "world size (ranks)", "training state (MiB)")
    figure.update_xaxes(type="log", tickvals=sizes, ticktext=[str(size) for size in sizes])
    figure.update_yaxes(rangemode="tozero")
    return Panel(title, figure, 340 + 20 * (least["strategy"].nunique() + 1))


def _made_of(states: pd.DataFrame, title: str) -> Panel:
    labels = [marked(*pair) for pair in zip(states["label"], states["strategy"], strict=True)]
    figure = go.Figure()
    for part in PARTS:
        colour, meaning = STATE[part]
        figure.add_bar(
            y=list(range(len(states))),
            customdata=[plain(label) for label in labels],
            x=listed(states[part] / MIB),
            name=meaning,
            orientation="h",
            marker={"color": colour, "line": {"width": 0}},
            hovertemplate="%{customdata}: %{x:,.3~f} MiB<extra>%{fullData.name}</extra>",
        )
    figure.add_scatter(
        y=list(range(len(states))),
        customdata=[
            f"measured is {words.digits(ratio)} of it" if words.known(ratio) else "" for ratio in states["ratio"]
        ],
        x=listed(states["theory"] / MIB),
        mode="markers",
        name="theory",
        marker={"symbol": "line-ns", "size": 22, "line": {"width": 3, "color": _THEORY}},
        hovertemplate="theory %{x:,.3~f} MiB; %{customdata}<extra></extra>",
    )
    lay_out(figure, "training state (MiB)", "")
    figure.update_layout(barmode="stack", bargap=0.35, legend_traceorder="normal")
    lines = name_bars(figure, labels)
    return Panel(title, figure, 150 + (12 + 16 * max(lines, 2)) * len(states))
