"""Throughput and efficiency against the world size; strong and weak scaling each have their own panels."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from parabench.analysis import words
from parabench.analysis.scaling import FIXED, STRONG
from parabench.family import entry_of
from parabench.pages.figures import Panel, at_every, lay_out, listed, plain, short
from parabench.pages.palette import ALGORITHM, SYMBOLS, colour_of, in_native_order, strategy_line, symbol_of

_ALIKE = ("model", "data", "vocabulary", "seq_len", "dtype", "device")
# How far above the highest measured point the ideal line is shown, so that it does not press the curves down.
_ABOVE = 1.5


def scaling_panels(curves: pd.DataFrame) -> list[Panel]:
    """Two panels for each kind of scaling and each work: a curve per strategy, its best one; a curve per algorithm
    where there is one strategy."""
    panels: list[Panel] = []
    works = curves[list(_ALIKE)].drop_duplicates()
    for kind, fixed in FIXED.items():
        own = curves[curves["kind"] == kind]
        for key, group in own.groupby([*_ALIKE, fixed], sort=False, dropna=False):
            panels += _two_panels(group, _title(kind, dict(zip((*_ALIKE, fixed), key, strict=True)), works))
    return panels


def _title(kind: str, work: dict[str, Any], works: pd.DataFrame) -> str:
    """'Strong scaling, global batch 8', and what else sets this work apart."""
    said = f"global batch {work['global_batch']}" if kind == STRONG else f"{work['batch_per_rank']:g} samples a rank"
    apart = [str(work[name]) for name in _ALIKE if works[name].nunique() > 1]
    return ", ".join([f"{kind.capitalize()} scaling", said, *apart])


def _two_panels(curves: pd.DataFrame, title: str) -> list[Panel]:
    throughput, efficiency = go.Figure(), go.Figure()
    sizes = sorted(int(size) for size in curves["world_size"].unique())
    several = curves["strategy"].nunique() > 1
    drawn = [_best_curve(group) for _, group in curves.groupby("strategy" if several else "algorithm", sort=False)]
    # Without one device as the common base, the best base is the ideal: no curve is flattered.
    bases = [curve for curve in drawn if curve["ranked"].iloc[0]] or drawn
    rate = max(float((curve["base_tokens_per_s"] / curve["base_world_size"]).iloc[0]) for curve in bases)
    ideal: dict[str, Any] = {"mode": "lines", "name": "ideal", "legendgroup": "ideal"}
    ideal["line"] = {"color": "#999999", "dash": "dot", "width": 1.5}
    throughput.add_scatter(x=sizes, y=[rate * size for size in sizes], hoverinfo="skip", **ideal)
    efficiency.add_scatter(x=sizes, y=[100.0 for _ in sizes], hoverinfo="skip", **ideal)
    algorithms = in_native_order(curves["algorithm"].unique())
    unit = words.unit_of(int(curves["seq_len"].iloc[0]))
    # Where all are native nobody asks which algorithm it was.
    named = any(str(curve["algorithm"].iloc[0]) != "native" for curve in drawn)
    for curve in drawn:
        strategy, algorithm = str(curve["strategy"].iloc[0]), str(curve["algorithm"].iloc[0])
        style: dict[str, Any] = {
            "mode": "lines+markers",
            "name": plain(_name(curve, named or not several)),
            "line": strategy_line(strategy) if several else {"color": colour_of(ALGORITHM, algorithm)},
            "marker": {
                "size": 8,
                "symbol": symbol_of(strategy) if several else SYMBOLS[algorithms.index(algorithm) % len(SYMBOLS)],
            },
            # Groups of their own take the room of their names; otherwise the longest name sets a column's width.
            "legendgroup": f"{strategy} {algorithm}",
        }
        points = at_every(sizes, curve)
        style["x"] = list(points.index)
        throughput.add_scatter(
            y=listed(points["tokens_per_s"]),
            hovertemplate=f"%{{x}} ranks: %{{y:,.3s}} {unit}/s<extra>%{{fullData.name}}</extra>",
            **style,
        )
        efficiency.add_scatter(
            y=listed(100 * points["efficiency"]),
            hovertemplate="%{x} ranks: %{y:.0f} %<extra>%{fullData.name}</extra>",
            **style,
        )
    base = drawn[0].iloc[0]
    if base["base"] == "single":
        # Where all curves begin; once, over their own marks.
        one: dict[str, Any] = {"mode": "markers", "name": "single", "legendgroup": "single"}
        one |= {"x": [int(base["base_world_size"])], "marker": {"size": 12, "color": strategy_line("single")["color"]}}
        hover = f"one device: %{{y:,.3s}} {unit}/s<extra>single</extra>"
        throughput.add_scatter(y=[float(base["base_tokens_per_s"])], hovertemplate=hover, **one)
        efficiency.add_scatter(y=[100.0], hovertemplate="one device<extra>single</extra>", **one)
    lay_out(throughput, "world size (ranks)", f"throughput ({unit}/s)")
    lay_out(efficiency, "world size (ranks)", "efficiency (%)")
    wide = sizes[-1] > 16 * sizes[0]  # a straight axis would crowd the small sizes; in log-log "ideal" stays straight
    for figure in (throughput, efficiency):
        figure.update_xaxes(type="log" if wide else "linear", tickvals=sizes, ticktext=[str(size) for size in sizes])
        figure.update_yaxes(rangemode="tozero")
    if wide:
        throughput.update_yaxes(type="log")
    else:
        highest = max(float(curve["tokens_per_s"].max()) for curve in drawn)
        shown = max(highest, min(rate * sizes[-1], _ABOVE * highest))
        throughput.update_yaxes(range=[0, 1.05 * shown])
    height = 340 + 16 * len(drawn)  # so that a legend of a line for two leaves room for the curves
    return [Panel(f"{title}: throughput", throughput, height), Panel(f"{title}: efficiency", efficiency, height)]


def _name(curve: pd.DataFrame, named: bool) -> str:
    """The strategy, with its algorithm where curves differ in it. What is headroom its dashed line and the section's
    words say: a long name would leave the legend one name a line."""
    strategy, algorithm, bucket = (curve[name].iloc[0] for name in ("strategy", "algorithm", "bucket_mib"))
    words_of = [str(strategy)]
    if named and "algorithm" in entry_of(str(strategy)).axes:
        words_of.append(str(algorithm))
    if not pd.isna(bucket):
        words_of.append(f"{bucket:g} MiB")
    return short(" ".join(words_of), 34)


def _best_curve(group: pd.DataFrame) -> pd.DataFrame:
    """The algorithm and bucket size with most world sizes; among equals, the fastest at the largest."""
    keys = ["algorithm", "bucket_mib"]
    curves = [curve.sort_values("world_size") for _, curve in group.groupby(keys, dropna=False, sort=False)]
    return max(curves, key=lambda curve: (len(curve), float(curve["tokens_per_s"].iloc[-1])))
