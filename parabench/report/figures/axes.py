"""Axes that figures of one session and of several sessions share: bucket sizes and world sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from parabench.analysis import format
from parabench.analysis.scaling import FIXED, STRONG
from parabench.plan.fields import number
from parabench.report.figures.figures import ALL, GREY, Trace

# A bucket size in MiB, a list of caps ("1+4"), or PyTorch's default.
Size = float | str | None


def size_of(mib: Any) -> Size:
    """Return a bucket size from a table of configurations."""
    return mib if isinstance(mib, str) else format.number_or_none(mib)


def by_size(mib: Size) -> tuple[int, list[float]]:
    """Return a key that sorts sizes first, then lists of caps, then the default."""
    if mib is None:
        return 2, []
    if isinstance(mib, str):
        return 1, [float(cap) for cap in re.split(r"(?<!e)\+", mib) if cap]
    return 0, [mib]


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


def ranks_axis(sizes: Sequence[int]) -> dict[str, Any]:
    """Return the axis of these world sizes. A linear axis would crowd the small ones of a wide range."""
    kind = "log" if sizes[-1] > 16 * sizes[0] else "linear"
    return {"type": kind, "tickvals": sizes, "ticktext": [*map(str, sizes)]}


def ideal_line(x: Sequence[int], y: Sequence[float]) -> Trace:
    """Return the line of perfect scaling."""
    return {
        "type": "scatter", "mode": "lines", "name": "ideal", "meta": ALL, "hoverinfo": "skip", "x": x, "y": y,
        "line": {"color": GREY, "dash": "dot", "width": 1.5},
    }  # fmt: skip


def scaling_title(point: Mapping[Any, Any], apart: Iterable[str]) -> str:
    """Return 'Strong scaling, global batch 8' of a point of `scaling.curves`, with other values of its workload."""
    kind = point["kind"]
    same = point[FIXED[kind]]
    fixed = f"global batch {same}" if kind == STRONG else f"{same:g} samples a rank"
    return ", ".join([f"{kind.capitalize()} scaling", fixed, *apart])
