"""Plotly figures from analysed tables. Nothing is computed here but positions on the page.

Colours of text, grid and background are left out: the page sets them for light, dark and print.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from parabench.analysis import words
from parabench.analysis.tables import NO_ANSWER
from parabench.family import entry_of

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
# The family has more members than that palette has colours; most of the others are Tol's muted ones. Kin are near,
# but for those that would not be told apart.
STRATEGY = {
    "single": "#999999",
    "dp": "#777777",
    "ddp": "#0072B2",
    "zero1": "#56B4E9",
    "zero2": "#E69F00",
    "fsdp": "#D55E00",
    "hsdp": "#9467FF",
    "tp": "#009E73",
    "tp_ddp": "#44AA99",
    "tp_fsdp": "#66A61E",
    "pp": "#AA4499",
    "layer_split": "#CC79A7",
    "parameter_server": "#8C6D31",
    "parameter_server_async": "#CC6677",
    "local_only": "#5F6CAF",
    "deepspeed1": "#88CCEE",
    "deepspeed2": "#DDCC77",
    "deepspeed3": "#EE7733",
}
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "pentagon", "cross")
# More bars than this are a wall, not a figure; the table below holds every case.
MOST_BARS = 16
# Characters in a line of a bar's name.
LINE = 24


@dataclass(frozen=True)
class Panel:
    """One figure, its heading within the section, and the height it needs in pixels. `wide`: over all of the page."""

    title: str
    figure: go.Figure
    height: int = 380
    wide: bool = False


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
                "color": colour_of(ALGORITHM, algorithm),
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


def measured(cases: pd.DataFrame) -> pd.DataFrame:
    """The cases with a latency, fastest first as they come."""
    return cases[cases["latency_s"].notna()]


def _by_world(cases: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The measured cases of each strategy and world size, with what a person would call them."""
    own = measured(cases)
    keys = own[["strategy", "world_size"]].drop_duplicates().sort_values(["strategy", "world_size"])
    return [
        (
            f"{strategy}, {words.count(world_size, 'rank')}",
            own[(own["strategy"] == strategy) & (own["world_size"] == world_size)],
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


def colour_of(colours: dict[str, str], name: str) -> str:
    """A name's colour; a user's own gets one of a few, always the same."""
    return colours.get(name) or _PALETTE[sum(name.encode()) % len(_PALETTE)]


def strategy_line(strategy: str) -> dict[str, str]:
    """The colour that a strategy has on every page, and a dash where it is no answer."""
    return {"color": colour_of(STRATEGY, strategy), "dash": "solid" if entry_of(strategy).ranked else "dash"}


def symbol_of(strategy: str) -> str:
    """The marker that a strategy has on every page."""
    known = list(STRATEGY)
    return SYMBOLS[(known.index(strategy) if strategy in known else sum(strategy.encode())) % len(SYMBOLS)]


def marked(label: str, strategy: str) -> str:
    """`label`, and that it is no answer where it is none."""
    return label if entry_of(strategy).ranked else f"{label} ({NO_ANSWER})"


def algorithm_line(algorithm: str) -> dict[str, str]:
    """The colour and dash that an algorithm has on every page."""
    return {"color": colour_of(ALGORITHM, algorithm), "dash": _DASH.get(algorithm, "solid")}


def in_native_order(algorithms: Iterable[str]) -> list[str]:
    """The backend's own first, then ours, then others by name: what a reader compares with stands first."""
    return sorted(algorithms, key=_native_first)


def _native_first(algorithm: str) -> tuple[int, str]:
    known = list(ALGORITHM)
    return (known.index(algorithm) if algorithm in known else len(known), algorithm)


def at_every(sizes: Iterable[int], curve: pd.DataFrame) -> pd.DataFrame:
    """A curve's points by world size, with an empty one at each of `sizes` between its ends where it has none: a line
    through them has a gap there, and so crosses nothing that was measured of others but not of it."""
    own = curve.set_index("world_size")
    return own.reindex([size for size in sizes if own.index.min() <= size <= own.index.max()])


def name_bars(figure: go.Figure, names: Iterable[str]) -> int:
    """Names on the y axis, the first on top, in short lines so that a phone keeps room for the bars; hovering has the
    whole. Returns how many lines the longest takes."""
    shown = [_in_lines(name) for name in names]
    ticks = list(range(len(shown)))
    texts = ["<br>".join(plain(line) for line in lines) for lines in shown]
    figure.update_yaxes(tickvals=ticks, ticktext=texts, showgrid=False, zeroline=False)
    figure.update_yaxes(range=[len(shown) - 0.5, -0.5])
    return max(map(len, shown))


def _in_lines(label: str) -> list[str]:
    """A label's strategy and options in up to three lines, its ranks and marks in up to two more."""
    head, _, ranks = label.partition(", ")
    return [
        line
        for part, most in ((head, 3), (ranks, 2))
        for line in textwrap.wrap(part, LINE, max_lines=most, placeholder="…", break_on_hyphens=False)
    ]


def short(text: str, most: int) -> str:
    """`text`, cut to `most` characters."""
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
