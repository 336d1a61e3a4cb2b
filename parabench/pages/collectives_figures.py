"""Figures of single collectives: bus bandwidth against size, and measured times over the fitted formula."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, cast

import pandas as pd
import plotly.graph_objects as go

from parabench.analysis import words
from parabench.analysis.collectives.cost_model import Fit
from parabench.collective_case import OPS, size_text
from parabench.pages.figures import Panel, lay_out, listed, plain
from parabench.pages.palette import SYMBOLS, algorithm_line, in_native_order

HEIGHT = 420


def bus_bandwidth(table: pd.DataFrame) -> list[Panel]:
    """A line per algorithm, a panel for each operation and world size; `table` holds one form."""
    panels = []
    for op, world_size, group in _by_question(table):
        figure = go.Figure()
        for i, algorithm in enumerate(in_native_order(group["algorithm"].unique())):
            rows = group[group["algorithm"] == algorithm].sort_values("bytes")
            factor = rows["busbw"] * rows["time_s"]  # GB on the bus: over a time, a bandwidth
            figure.add_scatter(
                x=[math.log2(size) for size in rows["bytes"]],
                y=listed(rows["busbw"]),
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "array": listed(factor / rows["low_s"] - rows["busbw"]),
                    "arrayminus": listed(rows["busbw"] - factor / rows["high_s"]),
                    "thickness": 1.2,
                    "width": 4,
                },
                customdata=[size_text(int(size)) for size in rows["bytes"]],
                hovertemplate="%{customdata}: %{y:.3~g} GB/s<extra>%{fullData.name}</extra>",
                mode="lines+markers",
                name=plain(algorithm),
                line=algorithm_line(algorithm),
                marker={"size": 8, "symbol": SYMBOLS[i % len(SYMBOLS)]},
            )
        lay_out(figure, "size of the whole buffer", "bus bandwidth (GB/s)")
        figure.update_yaxes(rangemode="tozero")
        _size_axis(figure, group["bytes"])
        panels.append(Panel(_title(op, world_size), figure, HEIGHT))
    return panels


def fitted_times(fits: Iterable[Fit]) -> list[Panel]:
    """Every measured point, and the fitted formula through them, a panel for each operation and world size."""
    rows = [
        {
            "op": point.op,
            "world_size": point.world_size,
            "algorithm": fit.algorithm,
            "bytes": point.bytes,
            "measured_s": point.seconds,
            "fitted_s": point.seconds * (1 + residual),
        }
        for fit in fits
        for point, residual in zip(fit.points, fit.residuals, strict=True)
    ]
    if not rows:
        return []
    panels = []
    for op, world_size, group in _by_question(pd.DataFrame(rows)):
        figure = go.Figure()
        for i, algorithm in enumerate(in_native_order(group["algorithm"].unique())):
            own = group[group["algorithm"] == algorithm].sort_values("bytes")
            line = own.drop_duplicates("bytes")
            style: dict[str, Any] = {"name": plain(algorithm), "legendgroup": algorithm}
            figure.add_scatter(
                x=[math.log2(size) for size in line["bytes"]],
                y=listed(line["fitted_s"] * 1e3),
                mode="lines",
                line=algorithm_line(algorithm) | {"width": 1.5},
                showlegend=False,
                hoverinfo="skip",
                **style,
            )
            figure.add_scatter(
                x=[math.log2(size) for size in own["bytes"]],
                y=listed(own["measured_s"] * 1e3),
                customdata=[
                    f"{size_text(int(size))}: {words.milliseconds(measured)}, fitted {words.milliseconds(fitted)}"
                    for size, measured, fitted in zip(own["bytes"], own["measured_s"], own["fitted_s"], strict=True)
                ],
                hovertemplate="%{customdata}<extra>%{fullData.name}</extra>",
                mode="markers",
                marker={
                    "size": 7,
                    "symbol": SYMBOLS[i % len(SYMBOLS)],
                    "color": algorithm_line(algorithm)["color"],
                    "opacity": 0.75,
                },
                **style,
            )
        lay_out(figure, "size of the whole buffer", "time (ms)")
        _time_axis(figure, pd.concat([group["measured_s"], group["fitted_s"]]) * 1e3)
        _size_axis(figure, group["bytes"])
        panels.append(Panel(_title(op, world_size), figure, HEIGHT))
    return panels


def _by_question(table: pd.DataFrame) -> Iterator[tuple[str, int, pd.DataFrame]]:
    groups = {cast(tuple[str, int], key): group for key, group in table.groupby(["op", "world_size"])}
    for op, world_size in sorted(groups, key=lambda key: (OPS.index(key[0]), key[1])):
        yield op, world_size, groups[op, world_size]


def _title(op: str, world_size: int) -> str:
    return f"{op}, {words.count(int(world_size), 'rank')}"


def _time_axis(figure: go.Figure, values: pd.Series[float]) -> None:
    """Logarithmic, with ticks at 1, 2 and 5 times the powers of ten that are within reach."""
    low, high = math.floor(math.log10(values.min())), math.ceil(math.log10(values.max()))
    ticks = [round(digit * 10.0**power, -power) for power in range(low - 1, high + 1) for digit in (1, 2, 5)]
    figure.update_yaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])


def _size_axis(figure: go.Figure, sizes: pd.Series[Any]) -> None:
    """A tick a size, at its logarithm; with many sizes, every so many."""
    every = sorted({int(size) for size in sizes})
    shown = every[:: max(1, math.ceil(len(every) / 8))]
    figure.update_xaxes(
        tickvals=[math.log2(size) for size in shown], ticktext=[size_text(size) for size in shown], zeroline=False
    )
