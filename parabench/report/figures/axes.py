"""Figures along the axes bucket size and world size, for pages of one session and of several sessions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from parabench.analysis import format
from parabench.analysis.scaling import FIXED, STRONG
from parabench.plan.collective_case import size_text as bytes_text
from parabench.plan.fields import number
from parabench.report.figures.figures import ALL, FROM_ZERO, GREY, Panel, Trace, launch_bars, lay_out, listed, points
from parabench.report.palette import Style

# A bucket size in MiB, a list of caps ("1+4"), or PyTorch's default.
Size = float | str | None
# The ideal line is shown up to this multiple of the highest point, so that it does not compress the curves.
_ABOVE = 1.5
# Fields whose values need no name before them.
_WITHOUT_NAME = ("model", "data", "precision", "device")


class Curve(NamedTuple):
    """A curve through `rows`, which have the columns of `points` and the numbers of the figure."""

    name: str
    style: Style
    rows: pd.DataFrame


def with_sizes(cases: pd.DataFrame) -> pd.DataFrame:
    """Return configurations whose `bucket_mib` is a `Size`."""
    sizes = [mib if isinstance(mib, str) else format.number_or_none(mib) for mib in cases["bucket_mib"]]
    return cases.assign(bucket_mib=pd.Series(sizes, cases.index, dtype=object))


def by_size(mib: Size) -> tuple[int, list[float]]:
    """Return a key that sorts sizes first, then lists of caps, then the default."""
    if mib is None:
        return 2, []
    if isinstance(mib, str):
        return 1, [float(cap) for cap in re.split(r"(?<!e)\+", mib) if cap]
    return 0, [mib]


def sizes_of(cases: pd.DataFrame) -> list[Size]:
    """Return the bucket sizes of configurations from `with_sizes`, in order."""
    return sorted(set(cases["bucket_mib"]), key=by_size)


def size_text(mib: Size) -> str:
    """Return the name of a bucket size."""
    return "default" if mib is None else mib if isinstance(mib, str) else number(mib)


def bucket_axis(sizes: Iterable[Size]) -> tuple[dict[Size, float], dict[str, Any]]:
    """Return the places of sizes in order, and the ticks of their axis.

    Sizes are on a logarithmic axis. Lists of caps and the default are apart, on the right.
    """
    sizes = list(sizes)
    places: dict[Size, float] = {mib: math.log2(mib) for mib in sizes if isinstance(mib, float)}
    low, high = min(places.values(), default=0.0), max(places.values(), default=0.0)
    step = max(1.0, (high - low) / 5)
    apart = (mib for mib in sizes if not isinstance(mib, float))
    places |= {mib: high + (i + 1) * step for i, mib in enumerate(apart)}
    return places, {"tickvals": [places[mib] for mib in sizes], "ticktext": [*map(size_text, sizes)]}


def bytes_axis(sizes: Iterable[float]) -> dict[str, Any]:
    """Return a logarithmic axis of sizes in bytes, with eight ticks or fewer at powers of two."""
    powers = [math.log2(size) for size in sizes]
    low, high = math.floor(min(powers)), math.ceil(max(powers))
    ticks = [2**power for power in range(low, high + 1, max(1, math.ceil((high - low) / 7)))]
    return {"type": "log", "tickvals": ticks, "ticktext": [*map(bytes_text, ticks)]}


def over_buckets(title: str, sizes: list[Size], curves: Sequence[Curve], **layout: Any) -> Panel:
    """Return step time against bucket size, with bars from the fastest to the slowest launch."""
    (places, ticks), traces = bucket_axis(sizes), list[Trace]()
    for i, curve in enumerate(curves):
        aside = (i - (len(curves) - 1) / 2) * 0.06  # so that bars do not hide each other
        rows = curve.rows.assign(place=[places[mib] + aside for mib in curve.rows["bucket_mib"]])
        rows = rows.sort_values("place", kind="stable")
        # No line joins lists of caps and the default, which are not sizes.
        single = rows["bucket_mib"].map(lambda mib: isinstance(mib, float)).astype(bool)
        parts = [(rows[single], "lines+markers"), (rows[~single], "markers")]
        for at, (part, mode) in enumerate(each for each in parts if len(each[0])):
            look = {"mode": mode, "line": curve.style.line, "legendgroup": curve.name, "showlegend": at == 0}
            y = listed(part["step_time_s"], 1e3)
            traces.append(points(part, part["place"], y, curve.style, curve.name, error_y=launch_bars(part), **look))
    return Panel(title, lay_out(traces, "bucket size (MiB)", "step time (ms)", xaxis=ticks, **layout))


def scaling_title(point: Mapping[Any, Any], works: pd.DataFrame) -> str:
    """Return the title of a point of `scaling.curves`: 'Strong scaling, global batch 8'.

    It also has the fields that differ between the workloads `works`.
    """
    kind = point["kind"]
    same = point[FIXED[kind]]
    fixed = f"global batch {same}" if kind == STRONG else f"{same:g} samples a rank"
    apart = [
        str(point[name]) if name in _WITHOUT_NAME else f"{name.replace('_', ' ')} {point[name] or 'of bytes'}"
        for name in map(str, works)
        if works[name].nunique() > 1
    ]
    return ", ".join([f"{kind.capitalize()} scaling", fixed, *apart])


def longest(points_of: pd.DataFrame, by: str | list[str]) -> list[pd.DataFrame]:
    """Return the curve with the most world sizes, then the fastest at the most ranks, for each value of `by`."""
    return [
        max((own for _, own in alike.groupby("curve")), key=lambda own: (len(own), own["tokens_per_s"].iloc[-1]))
        for _, alike in points_of.groupby(by, dropna=False, sort=False)
    ]


def over_ranks(title: str, curves: Sequence[Curve], ideal_rate: float | None = None) -> list[Panel]:
    """Return throughput against the world size.

    `ideal_rate` is the throughput of one rank on the ideal line; by default, there is no such line.
    """
    every = pd.concat([curve.rows for curve in curves])
    sizes, unit = sorted(map(int, every["world_size"].unique())), format.unit_of(every["seq_len"].iloc[0])
    # A linear axis would crowd the small sizes of a wide range.
    logarithmic = sizes[-1] > 16 * sizes[0]
    ranks = {"tickvals": sizes, "ticktext": [*map(str, sizes)], "type": "log" if logarithmic else "linear"}
    rates: dict[str, Any] = {"type": "log"} if logarithmic else FROM_ZERO
    traces = [_over_ranks(curve, unit) for curve in curves]
    if ideal_rate is not None:
        traces.insert(0, _ideal_line(sizes, [ideal_rate * size for size in sizes]))
        if not logarithmic:
            highest = every["tokens_per_s"].max()
            rates = {"range": [0, 1.05 * max(highest, min(ideal_rate * sizes[-1], _ABOVE * highest))]}
    figure = lay_out(traces, "world size (ranks)", f"throughput ({unit}/s)", xaxis=ranks, yaxis=rates)
    return [Panel(title, figure, 340 + 16 * len(curves))]


def _over_ranks(curve: Curve, unit: str) -> Trace:
    name, style, rows = curve
    also = [
        f"{format.rate(rate)} {unit}/s, efficiency {format.percent(efficiency)}"
        for rate, efficiency in zip(rows["tokens_per_s"], rows["efficiency"], strict=True)
    ]
    look = {"mode": "lines+markers", "line": style.line, "showlegend": True}
    return points(rows, rows["world_size"], rows["tokens_per_s"], style, name, also=also, **look)


def _ideal_line(x: Sequence[int], y: Sequence[float]) -> Trace:
    return {
        "type": "scatter", "mode": "lines", "name": "ideal", "meta": ALL, "hoverinfo": "skip", "x": x, "y": y,
        "line": {"color": GREY, "dash": "dot", "width": 1.5},
    }  # fmt: skip
