"""Plotly figures from analysed tables. Nothing is computed here but positions on the page.

Colours of text, grid and background are left out: the page sets them for light, dark and print.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from parabench.analysis import words
from parabench.analysis.frames import MEMORY
from parabench.record import MIB, STEP_PARTS

# Okabe and Ito's palette, told apart with any colour vision; a name keeps its colour on every page.
_PALETTE = ("#8C6D31", "#7F7F7F", "#B8860B", "#5F6CAF")
ALGORITHM = {
    "native": "#0072B2",
    "ring": "#D55E00",
    "tree": "#009E73",
    "halving_doubling": "#E69F00",
    "parameter_server": "#56B4E9",
    "two_level": "#CC79A7",
}
# NCCL's own have the colour of ours that works alike, and dashes.
_NCCL = {
    "ring": "#D55E00", "tree": "#009E73", "collnetdirect": "#8C6D31", "collnetchain": "#7F7F7F", "nvls": "#0072B2",
    "nvlstree": "#E69F00", "pat": "#56B4E9",
}  # fmt: skip
ALGORITHM |= {f"nccl:{name}": colour for name, colour in _NCCL.items()}
# two_level(inner,outer): a purple by the inner level, a dash by the outer.
_INNER = {"ring": "#CC79A7", "tree": "#7B3294", "halving_doubling": "#E7298A", "parameter_server": "#54278F"}
_OUTER = {"ring": "solid", "tree": "dash", "halving_doubling": "dot", "parameter_server": "dashdot"}
_DASH = {f"nccl:{name}": "dash" for name in _NCCL}
for (_inner, _of_inner), (_outer, _of_outer) in itertools.product(_INNER.items(), _OUTER.items()):
    ALGORITHM[f"two_level({_inner},{_outer})"], _DASH[f"two_level({_inner},{_outer})"] = _of_inner, _of_outer
STRATEGY = {"single": "#999999", "ddp": "#0072B2", "fsdp": "#D55E00", "tp": "#009E73", "hsdp": "#CC79A7"}
PART = {"data_s": "#56B4E9", "forward_s": "#0072B2", "backward_s": "#D55E00", "optimizer_s": "#009E73"}
PEAK = {
    "peak_rss_bytes": ("#0072B2", "resident set"),
    "peak_allocated_bytes": ("#0072B2", "torch tensors"),
    "peak_reserved_bytes": ("#56B4E9", "torch's allocator"),
    "used_bytes": ("#E69F00", "device (NVML)"),
}
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "pentagon", "cross")
# More bars than this are a wall, not a figure; the table below holds every case.
MOST_BARS = 16


@dataclass(frozen=True)
class Panel:
    """One figure, its heading within the section, and the height it needs in pixels."""

    title: str
    figure: go.Figure
    height: int = 380


def latency_by_bucket(cases: pd.DataFrame) -> list[Panel]:
    """A line per algorithm, a panel for each strategy and world size that has two buckets or more."""
    panels = []
    for title, group in _by_world(cases):
        buckets = sorted(group["bucket_mib"].dropna().unique())
        if group["bucket_mib"].nunique(dropna=False) < 2 or not buckets:
            continue
        place = {bucket: math.log2(bucket) for bucket in buckets}
        default = max(place.values()) + max(1.0, (max(place.values()) - min(place.values())) / 5)
        figure = go.Figure()
        algorithms = sorted(group["algorithm"].unique(), key=_native_first)
        for i, algorithm in enumerate(algorithms):
            own = group[group["algorithm"] == algorithm].sort_values("latency_s").drop_duplicates("bucket_mib")
            own = own.sort_values("bucket_mib")
            aside = (i - (len(algorithms) - 1) / 2) * 0.06  # so that error bars do not hide each other
            numbered, unset = own[own["bucket_mib"].notna()], own[own["bucket_mib"].isna()]
            style: dict[str, Any] = {"name": algorithm, "legendgroup": algorithm}
            style["marker"] = {
                "color": _colour(ALGORITHM, algorithm),
                "size": 8,
                "symbol": SYMBOLS[i % len(SYMBOLS)],
            }
            for part, x in (
                (numbered, [place[b] + aside for b in numbered["bucket_mib"]]),
                (unset, [default + aside] * len(unset)),
            ):
                if len(part):
                    shown = part is numbered or numbered.empty
                    mode = "lines+markers" if part is numbered else "markers"
                    figure.add_scatter(x=x, **_with_spread(part), mode=mode, showlegend=shown, **style)
        ticks = [*place.values(), *([default] if group["bucket_mib"].isna().any() else [])]
        texts = [*(f"{bucket:g}" for bucket in place), *(["default"] if len(ticks) > len(place) else [])]
        lay_out(figure, "bucket size (MiB)", "step latency (ms)")
        figure.update_xaxes(tickvals=ticks, ticktext=texts, zeroline=False)
        panels.append(Panel(title, figure))
    return panels


def heat_map(cases: pd.DataFrame) -> list[Panel]:
    """Algorithm against bucket, where most points are; nothing without two of each."""
    best: tuple[int, str, pd.DataFrame] | None = None
    for title, group in _by_world(cases):
        grid = group.assign(bucket=group["bucket_mib"].fillna(math.inf)).pivot_table(
            index="algorithm", columns="bucket", values="latency_s", aggfunc="min"
        )
        points = int(grid.notna().sum().sum())
        if min(grid.shape) >= 2 and (best is None or points >= best[0]):
            best = points, title, grid
    if best is None:
        return []
    _, title, grid = best
    grid = grid.loc[sorted(grid.index, key=_native_first, reverse=True)] * 1e3
    text = [["" if math.isnan(v) else words.digits(v) for v in row] for row in grid.to_numpy(dtype=float)]
    figure = go.Figure(
        go.Heatmap(
            z=listed(grid),
            x=["default" if math.isinf(bucket) else f"{bucket:g}" for bucket in map(float, grid.columns)],
            y=list(grid.index),
            text=text,
            texttemplate="%{text}",
            hovertemplate="%{y}, %{x} MiB: %{z:.3~f} ms<extra></extra>",
            # Light enough throughout for black text, in light and dark pages alike.
            colorscale=[[0, "#4FA8DD"], [1, "#F4F8FB"]],
            textfont={"color": "#111111"},
            xgap=2,
            ygap=2,
            colorbar={"title": {"text": "ms", "font": {"size": 13}}, "thickness": 12, "outlinewidth": 0},
        )
    )
    lay_out(figure, "bucket size (MiB)", "")
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(type="category", showgrid=False)
    return [Panel(title, figure, 130 + 56 * len(grid))]


def scaling_panels(curves: pd.DataFrame) -> list[Panel]:
    """Against the world size: a curve per strategy, its best one; a curve per algorithm when there is one strategy."""
    if curves.empty:
        return []
    throughput, efficiency = go.Figure(), go.Figure()
    sizes = sorted(int(size) for size in curves["world_size"].unique())
    kind = "strategy" if curves["strategy"].nunique() > 1 else "algorithm"
    drawn = [_best_curve(group) for _, group in curves.groupby(kind, sort=False)]
    # Without one device as the common base, the best base is the ideal: no curve is flattered.
    rate = max(float((curve["base_tokens_per_s"] / curve["base_world_size"]).iloc[0]) for curve in drawn)
    ideal = {"mode": "lines", "name": "ideal", "line": {"color": "#999999", "dash": "dot", "width": 1.5}}
    throughput.add_scatter(x=sizes, y=[rate * size for size in sizes], hoverinfo="skip", **ideal)
    efficiency.add_scatter(x=sizes, y=[100.0 for _ in sizes], hoverinfo="skip", **ideal)
    strategies = list(curves["strategy"].unique())
    algorithms = sorted(curves["algorithm"].unique(), key=_native_first)
    several = len(strategies) > 1
    for curve in drawn:
        strategy, algorithm, bucket = (curve[name].iloc[0] for name in ("strategy", "algorithm", "bucket_mib"))
        i, j = strategies.index(strategy), algorithms.index(algorithm)
        colour = _colour(STRATEGY, str(strategy)) if several else _colour(ALGORITHM, str(algorithm))
        name = f"{strategy} {algorithm}" + ("" if pd.isna(bucket) else f" {bucket:g} MiB")
        style: dict[str, Any] = {
            "mode": "lines+markers",
            "name": plain(_short(name, 34)),
            "line": {"color": colour},
            "marker": {"size": 8, "symbol": SYMBOLS[(i if several else j) % len(SYMBOLS)]},
            "x": list(curve["world_size"]),
        }
        throughput.add_scatter(
            y=list(curve["tokens_per_s"]),
            hovertemplate="%{x} ranks: %{y:,.3s} tokens/s<extra>%{fullData.name}</extra>",
            **style,
        )
        efficiency.add_scatter(
            y=[100 * value for value in curve["efficiency"]],
            hovertemplate="%{x} ranks: %{y:.0f} %<extra>%{fullData.name}</extra>",
            **style,
        )
    lay_out(throughput, "world size (ranks)", "throughput (tokens/s)")
    lay_out(efficiency, "world size (ranks)", "efficiency (%)")
    wide = sizes[-1] > 16 * sizes[0]  # a straight axis would crowd the small sizes; in log-log "ideal" stays straight
    for figure in (throughput, efficiency):
        figure.update_xaxes(type="log" if wide else "linear", tickvals=sizes, ticktext=[str(size) for size in sizes])
        figure.update_yaxes(rangemode="tozero")
    if wide:
        throughput.update_yaxes(type="log")
    return [Panel("Throughput", throughput), Panel("Efficiency", efficiency)]


def step_parts(cases: pd.DataFrame) -> list[Panel]:
    """Where a step's time goes, stacked, the fastest cases on top."""
    rows = _measured(cases).dropna(subset=list(STEP_PARTS), how="all").head(MOST_BARS)
    if rows.empty:
        return []
    figure = go.Figure()
    for part in STEP_PARTS:
        figure.add_bar(
            y=list(range(len(rows))),
            customdata=[plain(label) for label in rows["label"]],
            x=listed(rows[part] * 1e3),
            name=part.removesuffix("_s"),
            orientation="h",
            marker={"color": PART[part], "line": {"width": 0}},
            hovertemplate="%{customdata}: %{x:.3~f} ms<extra>%{fullData.name}</extra>",
        )
    lay_out(figure, "median time of a step (ms)", "")
    figure.update_layout(barmode="stack", bargap=0.35, legend_traceorder="normal")
    _name_bars(figure, rows)
    return [Panel("", figure, 130 + 40 * len(rows))]


def peak_memory(cases: pd.DataFrame) -> list[Panel]:
    """A bar per case for each thing that was observed: on a GPU torch's and NVML's, else the process's."""
    on_gpu = (cases["device"] == "cuda").any()
    wanted = [name for name in MEMORY if (name != "peak_rss_bytes") == bool(on_gpu)]
    rows = _measured(cases).dropna(subset=wanted, how="all").head(MOST_BARS)
    seen = [name for name in wanted if rows[name].notna().any()]
    if rows.empty or not seen:
        return []
    figure = go.Figure()
    for name in seen:
        colour, meaning = PEAK[name]
        figure.add_bar(
            y=list(range(len(rows))),
            customdata=[plain(label) for label in rows["label"]],
            x=listed(rows[name] / MIB),
            name=meaning,
            orientation="h",
            marker={"color": colour, "line": {"width": 0}},
            hovertemplate="%{customdata}: %{x:,.0f} MiB<extra>%{fullData.name}</extra>",
        )
    lay_out(figure, f"peak {PEAK[seen[0]][1]} of a rank (MiB)" if len(seen) == 1 else "peak memory (MiB)", "")
    figure.update_layout(barmode="group", bargap=0.35, legend_traceorder="normal", showlegend=len(seen) > 1)
    _name_bars(figure, rows)
    return [Panel("", figure, 130 + (26 + 14 * len(seen)) * len(rows))]


def _measured(cases: pd.DataFrame) -> pd.DataFrame:
    return cases[cases["latency_s"].notna()]


def _by_world(cases: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The measured cases of each strategy and world size, with what a person would call them."""
    measured = _measured(cases)
    keys = measured[["strategy", "world_size"]].drop_duplicates().sort_values(["strategy", "world_size"])
    return [
        (
            f"{strategy}, {words.count(world_size, 'rank')}",
            measured[(measured["strategy"] == strategy) & (measured["world_size"] == world_size)],
        )
        for strategy, world_size in zip(keys["strategy"], keys["world_size"], strict=True)
    ]


def _with_spread(rows: pd.DataFrame) -> dict[str, Any]:
    """y in ms, with the slowest and fastest launch as error bars."""
    return {
        "y": listed(rows["latency_s"] * 1e3),
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": listed((rows["high_s"] - rows["latency_s"]) * 1e3),
            "arrayminus": listed((rows["latency_s"] - rows["low_s"]) * 1e3),
            "thickness": 1.2,
            "width": 4,
        },
        "customdata": [plain(label) for label in rows["label"]],
        "hovertemplate": "%{customdata}: %{y:.3~f} ms<extra></extra>",
    }


def _best_curve(group: pd.DataFrame) -> pd.DataFrame:
    """The algorithm and bucket size with most world sizes; among equals, the fastest at the largest."""
    keys = ["algorithm", "bucket_mib"]
    curves = [curve.sort_values("world_size") for _, curve in group.groupby(keys, dropna=False, sort=False)]
    return max(curves, key=lambda curve: (len(curve), float(curve["tokens_per_s"].iloc[-1])))


def lay_out(figure: go.Figure, x: str, y: str) -> None:
    """The look of every figure, and its axes' titles."""
    figure.update_layout(
        template=None,
        margin={"l": 8, "r": 12, "t": 8, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hovermode="closest",
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1.02,
            "yanchor": "bottom",
        },
        font={"size": 13},
    )
    figure.update_xaxes(title={"text": x, "standoff": 10, "font": {"size": 13}}, automargin=True)
    figure.update_yaxes(title={"text": y, "standoff": 10, "font": {"size": 13}} if y else None, automargin=True)


def _colour(colours: dict[str, str], name: str) -> str:
    return colours.get(name) or _PALETTE[sum(name.encode()) % len(_PALETTE)]


def algorithm_line(algorithm: str) -> dict[str, str]:
    """The colour and dash that an algorithm has on every page."""
    return {"color": _colour(ALGORITHM, algorithm), "dash": _DASH.get(algorithm, "solid")}


def in_native_order(algorithms: Iterable[str]) -> list[str]:
    """The backend's own first, then ours, then others by name: what a reader compares with stands first."""
    return sorted(algorithms, key=_native_first)


def _native_first(algorithm: str) -> tuple[int, str]:
    known = list(ALGORITHM)
    return (known.index(algorithm) if algorithm in known else len(known), algorithm)


def _name_bars(figure: go.Figure, rows: pd.DataFrame) -> None:
    """Labels on the y axis, in two short lines so that a phone keeps room for the bars; hovering has the whole."""
    names = ["<br>".join(plain(_short(line)) for line in label.split(", ", 1)) for label in rows["label"]]
    ticks = list(range(len(rows)))
    figure.update_yaxes(tickvals=ticks, ticktext=names, showgrid=False, zeroline=False)
    figure.update_yaxes(range=[len(rows) - 0.5, -0.5])  # the first on top


def _short(text: str, most: int = 24) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def plain(text: str) -> str:
    """Plotly reads a few HTML tags in text; these must not be any."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def listed(values: Any) -> Any:
    """Nested lists with None for NaN, which JSON can hold."""
    items = values.to_numpy(dtype=float).tolist()
    if items and isinstance(items[0], list):
        return [[words.number_or_none(v) for v in row] for row in items]
    return [words.number_or_none(v) for v in items]
