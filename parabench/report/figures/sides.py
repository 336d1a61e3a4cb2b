"""Figures of several sides, which are compared with the first; a color and a symbol for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from msgspec import structs

from parabench.analysis import format
from parabench.analysis.compare.cases import Outcome
from parabench.analysis.compare.comparison import MACHINES_OWN, SHARED_WORK, STEP, Comparison
from parabench.analysis.compare.overall import Overall, interval
from parabench.analysis.scaling import ALIKE, FIXED, curves
from parabench.analysis.stats.contrasts import Mean
from parabench.plan.case import DEFAULTS
from parabench.report.figures.axes import (
    bucket_axis,
    by_size,
    ideal_line,
    ranks_axis,
    scaling_title,
    size_of,
    size_text,
)
from parabench.report.figures.figures import (
    ALL,
    ERROR_BARS,
    FROM_ZERO,
    Panel,
    Trace,
    cut,
    in_rows,
    launch_bars,
    lay_out,
    listed,
    marked,
    marks,
    plain,
    round_numbers,
    vertical,
)
from parabench.report.palette import side_style
from parabench.store.record import MIB
from parabench.store.results import records

# Rows of a figure that are shown at once.
MOST_DOTS = 30
# Characters of a side's name in a legend.
SIDE_NAME = 32
# The axis reaches at most this many times as far as its points: an interval of two launches would flatten the rest.
REACH = 2.5
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def side_points(of: Comparison, at: int, x: Any, y: Any, hovers: Iterable[str], ids: list[str], **more: Any) -> Trace:
    """Return the points of a side; `hovers` follow its name."""
    style = side_style(at)
    marker = {"color": style.color, "size": 9, "symbol": style.symbol, "opacity": 1} | more.pop("marker", {})
    own = {"customdata": ids, "legendgroup": str(at), "showlegend": True} | more
    return marks(x, listed(y), cut(of.names[at], SIDE_NAME), [*hovers], marker, **own)


def _numbers(of: Comparison, name: str) -> pd.DataFrame:
    """Return the numbers of the configurations and sides that have `name`, with ids on the page and fields."""
    fields = of.cases[["case_id", "label", *DEFAULTS]]
    own = of.numbers[of.numbers[name].notna()].drop(columns="device")
    return own.join(fields, on="row").reset_index(drop=True)


# -- ratios to the first side -----------------------------------------------------------------------------------------

# By quantity, its name on the axis.
_AXES = {STEP: "step time", "per_joule": "tokens per joule", "per_gb": "tokens/s per GB"}


def ratios(of: Comparison, works: Sequence[Overall], name: str) -> list[Panel]:
    """Return a quantity of each configuration relative to the first side, from the smallest ratio to the largest, and
    below them the geometric mean."""
    panels, every = [], of.of(name)
    every = every[every["ratio"] > 0]
    # Other quantities than step times are not judged.
    filled = every["outcome"].isin((Outcome.FASTER, Outcome.SLOWER)) | (name != STEP)
    every = every.assign(filled=filled, id=of.cases["case_id"].loc[every["row"]].to_numpy())
    for work in works:
        own = every[every["row"].isin(work.rows)]
        if len(own):
            axis = f"{_AXES[name]}, {cut(of.names[0], 16)} = 1"
            panels.append(_ratios(of, work.heading, axis, own, work.means[name]))
    return panels


_POINT = ["at", "y", "label", "id", "ratio", "low", "high", "filled"]


def _ratios(of: Comparison, title: str, axis: str, own: pd.DataFrame, means: Sequence[Mean]) -> Panel:
    logs = np.log(own["ratio"]).groupby(own["row"])
    rows = pd.DataFrame({"mean": logs.mean(), "far": logs.agg(lambda log: log.abs().max())})
    rows["order"] = rows["far"].rank(method="first", ascending=False).astype(int) - 1
    rows = rows.sort_values("mean", kind="stable")
    own = own.assign(y=own["row"].map({row: y for y, row in enumerate(rows.index)})).sort_values("y", kind="stable")
    labels, order = own.drop_duplicates("row")["label"].tolist(), rows["order"].tolist()
    sizes = sorted({mean.cases for mean in means if mean.ratio})
    if any(size > 1 for size in sizes):
        label, y = f"geometric mean of {' or '.join(f'{size:,}' for size in sizes)} cases", len(labels)
        below = pd.DataFrame(
            [
                (at, y, label, ALL, each.ratio, each.low, each.high, (each.low or 0) > 1 or (each.high or 2) < 1)
                for at, each in enumerate(means, 1)
                if each.ratio
            ],
            columns=_POINT,
        )
        own = pd.concat([own[_POINT], below.astype({"low": float, "high": float})], ignore_index=True)
        labels, order = [*labels, label], [*order, -1]
    others = range(1, len(of.names))
    traces = [_ratio_points(of, at, own[own["at"] == at], len(others)) for at in others if (own["at"] == at).any()]
    least = math.ceil((2 + 13 * len(others)) / 16)
    look: dict[str, Any] = {"which": "most changed", "most": MOST_DOTS, "order": order, "xaxis": _ratio_axis(own)}
    return in_rows(title, labels, axis, traces, head=110, least=least, shapes=[vertical(1)], **look)


def _ratio_points(of: Comparison, at: int, own: pd.DataFrame, others: int) -> Trace:
    color, symbol = side_style(at).color, side_style(at).symbol
    marker = {
        "size": [13 if id_ == ALL else 9 for id_ in own["id"]],
        "symbol": [symbol if filled else f"{symbol}-open" for filled in own["filled"]],
        "line": {"width": 1.5, "color": color},
    }
    hovers = []
    for row in records(own):
        known = f"95%: {interval(row['low'], row['high'])}" if format.known(row["low"]) else ""
        text = f"{format.times(row['ratio'])} times ({known or 'no interval: it needs two launches per side'})"
        hovers.append(f"<b>{plain(row['label'])}</b><br>{plain(of.names[at])}: {text}")
    y = own["y"] + (at - (others + 1) / 2) * min(0.22, 0.7 / others)
    bars = interval_bars(own) | {"color": color}
    return side_points(of, at, own["ratio"], y, hovers, own["id"].tolist(), marker=marker, error_x=bars)


def interval_bars(own: pd.DataFrame) -> dict[str, Any]:
    """Return error bars from `low` to `high`; none if these are unknown."""
    ratio = own["ratio"]
    ends = {"array": own["high"].fillna(ratio) - ratio, "arrayminus": ratio - own["low"].fillna(ratio)}
    return ERROR_BARS | {"thickness": 1.5, "width": 3} | {end: listed(length) for end, length in ends.items()}


def span(numbers: pd.DataFrame, far: float, *also: float) -> list[float]:
    """Return the ends of an axis: all numbers up to `far` from 0, and `also`."""
    ends = [*also, *numbers.clip(-far, far).stack()]
    margin = 0.04 * (max(ends) - min(ends))
    return [min(ends) - margin, max(ends) + margin]


def _ratio_axis(own: pd.DataFrame) -> dict[str, Any]:
    logs = own[["ratio", "low", "high"]].apply(np.log)
    low, high = span(logs, REACH * logs["ratio"].abs().max() or 0.1, -0.01, 0.01)
    ticks = ratio_ticks(math.exp(low), math.exp(high))
    text = [f"{tick:g}" for tick in ticks]
    return {"type": "log", "range": [low / math.log(10), high / math.log(10)], "tickvals": ticks, "ticktext": text}


def ratio_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from `low` to `high`, evenly spaced if these are near each other."""
    ticks = round_numbers(low, high)
    if len(ticks) >= 4:
        return ticks
    rough = (high - low) / 6
    step = round_numbers(rough, 10 * rough)[0]
    return [float(f"{i * step:.12g}") for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


# -- numbers of each side ---------------------------------------------------------------------------------------------


def memory(of: Comparison, works: Sequence[Overall]) -> list[Panel]:
    """Return the peak memory of each configuration on each side, by how much the sides differ."""
    known = _numbers(of, "peak_memory_bytes")
    panels = []
    for work in works:
        own = known[known["row"].isin(work.rows)]
        peaks = own.groupby("row")["peak_memory_bytes"].agg(["min", "max"])
        apart = (peaks["max"] / peaks["min"].clip(lower=1)).rename("apart")
        rows = peaks.join(apart).sort_values(["apart", "max"], ascending=False, kind="stable").index
        own = own.assign(y=own["row"].map({row: y for y, row in enumerate(rows)}))
        traces = []
        for at, name in enumerate(of.names):
            side = own[own["at"] == at]
            peak = side["peak_memory_bytes"]
            pairs = zip(side["label"], map(format.mebibytes, peak), strict=True)
            hovers = [f"<b>{plain(label)}</b><br>{plain(name)}: {text}" for label, text in pairs]
            traces.append(side_points(of, at, peak / MIB, side["y"], hovers, side["case_id"].tolist()))
        if len(own):
            names = [marked(*of.cases.loc[row, ["label", "strategy"]]) for row in rows]
            look: dict[str, Any] = {"which": "that differ most", "most": MOST_DOTS, "xaxis": FROM_ZERO}
            panels.append(in_rows(work.heading, names, "peak memory (MiB)", traces, head=80, **look))
    return panels


def buckets(of: Comparison, works: Sequence[Overall]) -> list[Panel]:
    """Return step time against bucket size: a panel for configurations that differ only in it, a curve per side.

    Panels with the most sizes come first.
    """
    known = _numbers(of, "step_time_s")
    known = known.assign(size=pd.Series([*map(size_of, known["bucket_mib"])], known.index, dtype=object))
    same = [name for name in DEFAULTS if name not in (*MACHINES_OWN, "bucket_mib")]
    found = []
    for work in works:
        for _, own in known[known["row"].isin(work.rows)].groupby(same, dropna=False, sort=False):
            sizes = sorted(set(own["size"]), key=by_size)
            if len(sizes) > 1:
                row = own.iloc[0]
                case = of.sides[row["at"]].case(of.ids.at[row["row"], row["at"]])
                title = " · ".join(filter(None, (work.heading, structs.replace(case, bucket_mib=None).label)))
                found.append((title, own, sizes))
    return [_buckets(of, *panel) for panel in sorted(found, key=lambda panel: -len(panel[-1]))]


def _buckets(of: Comparison, title: str, own: pd.DataFrame, sizes: list[Any]) -> Panel:
    places, ticks = bucket_axis(sizes)
    own = own.assign(place=[places[size] for size in own["size"]])
    traces = []
    for at in range(len(of.names)):
        # The fastest, if a side measured one size on two kinds of device.
        side = own[own["at"] == at].sort_values("step_time_s", kind="stable").drop_duplicates("place")
        side = side.sort_values("place")
        # No line joins lists of caps and the default, which are not sizes.
        single = side["size"].map(lambda size: isinstance(size, float)).astype(bool)
        parts = [side[single], *(side[~single].iloc[[i]] for i in range((~single).sum()))]
        aside = (at - (len(of.names) - 1) / 2) * 0.06  # so that error bars do not hide each other
        for i, part in enumerate(part for part in parts if len(part)):
            hovers = [
                f"<b>{plain(row['label'])}</b><br>{plain(of.names[at])}: {format.milliseconds(row['step_time_s'])} "
                f"per step<br>{row['n_ok']:.0f} of {format.count(int(row['n_launches']), 'launch')} ok"
                for row in records(part)
            ]
            look = {"mode": "lines+markers" if len(part) > 1 else "markers", "line": {"color": side_style(at).color}}
            y, ids = listed(part["step_time_s"], 1e3), part["case_id"].tolist()
            more = look | {"error_y": launch_bars(part), "showlegend": not i}
            traces.append(side_points(of, at, part["place"] + aside, y, hovers, ids, **more))
    return Panel(title, lay_out(traces, "bucket size (MiB)", "step time (ms)", xaxis=ticks), 360)


# -- curves over the world size ---------------------------------------------------------------------------------------


def scaling(of: Comparison) -> list[Panel]:
    """Return throughput and efficiency against the world size: a color per side, a dash per strategy. A side's
    strategy is shown by its curve with most world sizes, among equals the fastest at the largest."""
    tables = []
    for at, side in enumerate(of.sides):
        page_ids = dict(zip(of.ids[at], of.cases["case_id"], strict=True))
        table = side.once(curves)
        tables.append(table.assign(side=at, page_id=table["case_id"].map(page_ids)))
    tables = [table for table in tables if len(table)]
    if not tables:
        return []
    points = pd.concat(tables, ignore_index=True)
    alike = [name for name in ALIKE if name in SHARED_WORK]
    differing = [name for name in alike if points[name].nunique() > 1]
    panels = []
    for kind, fixed in FIXED.items():
        for _, own in points[points["kind"] == kind].groupby([*alike, fixed], dropna=False, sort=False):
            if own["world_size"].nunique() > 1:
                first = own.iloc[0].to_dict()
                panels += _scaling(of, scaling_title(first, (str(first[name]) for name in differing)), own)
    return panels


def _scaling(of: Comparison, title: str, points: pd.DataFrame) -> list[Panel]:
    sizes = sorted(points["world_size"].astype(int).unique().tolist())
    strategies, unit = points["strategy"].unique().tolist(), format.unit_of(points["seq_len"].iloc[0])
    best = []
    for _, own in points.groupby(["side", "strategy"], sort=False):
        found = [curve.sort_values("world_size", kind="stable") for _, curve in own.groupby("curve", sort=False)]
        best.append(max(found, key=lambda curve: (len(curve), curve["tokens_per_s"].iloc[-1])))
    best = sorted(best, key=lambda curve: int(curve["side"].iloc[0]))

    def draw(name: str, factor: float, text: Callable[[float], str]) -> list[Trace]:
        return [_curve(of, curve, strategies, name, factor, text) for curve in best]

    xaxis, height = ranks_axis(sizes), 340 + 10 * len(best)
    y = {"type": "log"} if xaxis["type"] == "log" else FROM_ZERO
    rates, shares = (
        draw("tokens_per_s", 1, lambda value: format.throughput(value, unit)),
        draw("efficiency", 100, format.percent),
    )
    shares.insert(0, ideal_line([sizes[0], sizes[-1]], [100, 100]))
    throughput = lay_out(rates, "world size (ranks)", f"throughput ({unit}/s)", xaxis=xaxis, yaxis=y)
    efficiency = lay_out(shares, "world size (ranks)", "efficiency (%)", xaxis=xaxis, yaxis=FROM_ZERO)
    return [Panel(f"{title}: throughput", throughput, height), Panel(f"{title}: efficiency", efficiency, height)]


def _curve(
    of: Comparison, curve: pd.DataFrame, strategies: list[str], name: str, factor: float, text: Callable[[float], str]
) -> Trace:
    first = curve.iloc[0]
    at, strategy = int(first["side"]), str(first["strategy"])
    how = plain(f"{strategy}, {first['algorithm']}, bucket {size_text(size_of(first['bucket_mib']))}")
    hovers = [
        f"<b>{plain(of.names[at])}</b><br>{how}<br>{format.count(ranks, 'rank')}: {text(value)}"
        for ranks, value in zip(curve["world_size"], curve[name], strict=True)
    ]
    line = {"color": side_style(at).color, "dash": _DASHES[strategies.index(strategy) % len(_DASHES)]}
    more: dict[str, Any] = {"mode": "lines+markers", "line": line, "legendgroup": f"{at} {strategy}"}
    y, ids = listed(curve[name], factor), curve["page_id"].tolist()
    trace = side_points(of, at, curve["world_size"], y, hovers, ids, marker={"size": 8}, **more)
    return trace | {"name": f"{trace['name']}, {plain(strategy)}"} if len(strategies) > 1 else trace
