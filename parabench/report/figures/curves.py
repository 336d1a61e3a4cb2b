"""Figures of step time along the axes bucket size and algorithm."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.numbers import WORK
from parabench.analysis.session import SessionData
from parabench.plan.case import DEFAULTS, ranks_in_words
from parabench.report.cases import page_cases
from parabench.report.figures.axes import Size, bucket_axis, by_size, size_of, size_text
from parabench.report.figures.figures import (
    BAND,
    Panel,
    cut,
    in_rows,
    launch_bars,
    lay_out,
    listed,
    measured,
    points,
    titled,
    vertical,
)
from parabench.report.palette import algorithm_style, in_native_order
from parabench.store.results import records

# Characters of a name in a legend.
NAME = 34
# Rows in a figure of algorithms; with more, each world size has its own.
_MOST_LINES = 24
# All axes but the two that the figures show, and those among them that a title does not have.
_OTHERS = [name for name in DEFAULTS if name not in ("algorithm", "bucket_mib")]
_OPTIONS = [name for name in _OTHERS if name not in ("strategy", "world_size", "nodes", *WORK)]


def _worlds(seen: SessionData) -> list[pd.DataFrame]:
    """Return the measured configurations that differ only in algorithm and bucket size, with the text `world` of the
    ranks and of the other options in which the strategy's configurations of the workload differ."""
    cases = measured(seen.once(page_cases))
    sizes = pd.Series([size_of(mib) for mib in cases["bucket_mib"]], cases.index, dtype=object)
    found = []
    for _, alike in cases.assign(bucket_mib=sizes).groupby(["work", "strategy"], sort=False):
        differ = [name for name in _OPTIONS if alike[name].nunique(dropna=False) > 1]
        for _, own in alike.groupby(["world_size", "nodes", *differ], dropna=False, sort=False):
            first = own.iloc[0]
            options = [f"{name} {_option(first[name])}" for name in differ]
            found.append(own.assign(world=", ".join([ranks_in_words(first["world_size"], first["nodes"]), *options])))
    return found


def _option(value: Any) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else "auto" if pd.isna(value) else str(value)


def _sizes(own: pd.DataFrame) -> list[Size]:
    return sorted(set(own["bucket_mib"]), key=by_size)


def _title(own: pd.DataFrame) -> str:
    return titled(own, f"{own['strategy'].iloc[0]}, {own['world'].iloc[0]}")


def buckets(seen: SessionData) -> list[Panel]:
    """Return step time against bucket size, with a curve for each algorithm."""
    worlds = [(own, sizes) for own in seen.once(_worlds) if len(sizes := _sizes(own)) > 1]
    return [_buckets(*world) for world in sorted(worlds, key=lambda world: -len(world[1]))]


def _buckets(own: pd.DataFrame, sizes: list[Size]) -> Panel:
    (places, ticks), traces = bucket_axis(sizes), []
    own = own.assign(place=[places[mib] for mib in own["bucket_mib"]]).sort_values("place", kind="stable")
    single = own["bucket_mib"].map(lambda mib: isinstance(mib, float))
    algorithms = in_native_order(own["algorithm"].unique())
    for i, algorithm in enumerate(algorithms):
        style, of = algorithm_style(algorithm), own["algorithm"] == algorithm
        aside = (i - (len(algorithms) - 1) / 2) * 0.06  # so that bars do not hide each other
        # No line joins lists of caps and the default, which are not sizes.
        parts = [part for part in ((own[of & single], "lines+markers"), (own[of & ~single], "markers")) if len(part[0])]
        for at, (part, mode) in enumerate(parts):
            look = {"mode": mode, "line": style.line, "error_y": launch_bars(part), "showlegend": at == 0}
            y = listed(part["step_time_s"], 1e3)
            name = cut(algorithm, NAME)
            traces.append(points(part, part["place"] + aside, y, style, name, legendgroup=algorithm, **look))
    fastest = set(own["bucket_mib"][own["ranking"] != ""])
    runs = (list(run) for inside, run in itertools.groupby(sizes, fastest.__contains__) if inside)
    bands = [
        BAND | {"yref": "paper", "y0": 0, "y1": 1, "x0": places[run[0]] - 0.3, "x1": places[run[-1]] + 0.3}
        for run in runs
    ]
    return Panel(_title(own), lay_out(traces, "bucket size (MiB)", "step time (ms)", xaxis=ticks, shapes=bands))


def algorithms(seen: SessionData) -> list[Panel]:
    """Return the step time of algorithms relative to native, in common launches and repetitions."""
    lines: list[pd.DataFrame] = []
    for world in seen.once(_worlds):
        # `slower` is unknown if no launch or repetition connects a configuration with the best.
        for _, line in world[world["slower"].notna()].groupby("bucket_mib", dropna=False, sort=False):
            native = line["slower"][line["algorithm"] == "native"]
            if len(native) and len(line) > 1:
                ratio = (1 + line["slower"]) / (1 + native.iloc[0])
                lines.append(line.assign(ratio=ratio, line=len(lines), title=_title(line)))
    if not lines:
        return []
    found: list[tuple[Any, pd.DataFrame]] = []
    works: Any = pd.concat(lines).groupby(["work", "strategy"], sort=False)
    for (_, strategy), own in works:
        few = own["line"].nunique() <= _MOST_LINES
        found += [(titled(own, str(strategy)), own)] if few else list(own.groupby("title", sort=False))
    return [_algorithms(str(title), own) for title, own in sorted(found, key=lambda each: -each[1]["line"].nunique())]


def _algorithms(title: str, own: pd.DataFrame) -> Panel:
    firsts = records(own.drop_duplicates("line"))
    firsts.sort(key=lambda row: (row["world_size"], row["world"], by_size(size_of(row["bucket_mib"]))))
    place = {row["line"]: at for at, row in enumerate(firsts)}
    own = own.assign(row=own["line"].map(place)).sort_values("row", kind="stable")
    several, names, traces = len(_sizes(own)) > 1, in_native_order(own["algorithm"].unique()), []
    for i, name in enumerate(names):
        style = algorithm_style(name)
        # All are filled: the figure is about ratios.
        group = own[own["algorithm"] == name].assign(ranking="ratio")
        also = ["" if name == "native" else f"{format.digits(ratio)} times native's step" for ratio in group["ratio"]]
        y = group["row"] + (i - (len(names) - 1) / 2) * min(0.14, 0.7 / len(names))
        bars = launch_bars(group, (group["ratio"] / group["step_time_s"]).to_numpy()) | {"color": style.color}
        text = cut(name, NAME)
        traces.append(points(group, group["ratio"], y, style, text, legendgroup=name, also=also, error_x=bars))
    one = vertical(1, color=algorithm_style("native").color, dash="dot")
    texts = [row["world"] + (f", {_with_unit(size_of(row['bucket_mib']))}" if several else "") for row in firsts]
    least = max(1, math.ceil((9 * len(names) - 12) / 16))
    look: dict[str, Any] = {"wide": False, "which": "first", "most": len(firsts), "shapes": [one]}
    return in_rows(title, texts, "over native (ratio)", traces, head=120, least=least, **look)


def _with_unit(mib: Size) -> str:
    return size_text(mib) + " MiB" * (mib is not None)
