"""Figures of several sessions, which are compared with the first: a color and a symbol for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from msgspec import structs

from parabench.analysis import format
from parabench.analysis.compare.cases import Outcome
from parabench.analysis.compare.comparison import MACHINES_OWN, SHARED_WORK, STEP, Comparison
from parabench.analysis.compare.overall import Overall, interval
from parabench.analysis.scaling import ALIKE, FIXED, curves
from parabench.plan.case import DEFAULTS
from parabench.report.figures.axes import (
    Curve,
    longest,
    over_buckets,
    over_ranks,
    scaling_title,
    size_text,
    sizes_of,
    with_sizes,
)
from parabench.report.figures.figures import (
    ALL,
    ERROR_BARS,
    FROM_ZERO,
    Panel,
    Trace,
    cut,
    in_rows,
    listed,
    marked,
    plain,
    points,
    vertical,
)
from parabench.report.palette import side_style
from parabench.store.record import MIB
from parabench.store.results import records

# Rows of a figure that are shown at once.
_MOST_ROWS = 30
# Characters of a session's name in a legend.
_NAME = 32
# The axis reaches at most this many times as far as its points: an interval of two launches would flatten the rest.
REACH = 2.5
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
# By quantity, its name on the axis.
_AXES = {STEP: "step time", "per_joule": "tokens per joule", "per_gb": "tokens/s per GB"}


def ratios(of: Comparison, works: Sequence[Overall], quantity: str) -> list[Panel]:
    """Return a quantity of each configuration relative to the first session, the smallest ratio on top.

    The geometric means are in the last row.
    """
    every = of.of(quantity)
    every = every[every["ratio"] > 0]
    # Other quantities than step times are not judged.
    filled = every["outcome"].isin((Outcome.FASTER, Outcome.SLOWER)) | (quantity != STEP)
    every = every.assign(ranking=filled, case_id=of.cases["case_id"].loc[every["row"]].to_numpy())
    own = [(work, every[every["row"].isin(work.rows)]) for work in works]
    return [_ratios(of, work, quantity, rows) for work, rows in own if len(rows)]


def _ratios(of: Comparison, work: Overall, quantity: str, own: pd.DataFrame) -> Panel:
    logs = np.log(own["ratio"]).groupby(own["row"])
    rows = pd.DataFrame({"mean": logs.mean(), "far": logs.agg(lambda log: log.abs().max())})
    rows = rows.sort_values("mean", kind="stable")
    order = (rows["far"].rank(method="first", ascending=False).astype(int) - 1).tolist()
    own = own.assign(y=own["row"].map({row: y for y, row in enumerate(rows.index)})).sort_values("y", kind="stable")
    labels = own.drop_duplicates("row")["label"].tolist()
    means = [(at, mean) for at, mean in enumerate(work.means[quantity], 1) if mean.ratio]
    if any(mean.cases > 1 for _, mean in means):
        counts = sorted({mean.cases for _, mean in means})
        label = f"geometric mean of {' or '.join(f'{count:,}' for count in counts)} configurations"
        below = [
            {"at": at, "y": len(labels), "label": label, "case_id": ALL, "ratio": mean.ratio, "low": mean.low}
            | {"high": mean.high, "ranking": (mean.low or 0) > 1 or (mean.high or 2) < 1}
            for at, mean in means
        ]
        columns = [*below[0]]
        numbers = {"low": float, "high": float}
        own = pd.concat([own[columns], pd.DataFrame(below).astype(numbers)], ignore_index=True)
        labels, order = [*labels, label], [*order, -1]
    others = len(of.names) - 1
    traces = [_ratio_points(of, at, rows, others) for at, rows in _by_side(own)]
    logs = own[["ratio", "low", "high"]].apply(np.log)
    ends = span(logs, REACH * logs["ratio"].abs().max() or 0.1, -0.01, 0.01)
    axis = {"type": "log", "range": [end / math.log(10) for end in ends], "tickformat": "~g"}
    look: dict[str, Any] = {"which": "most changed", "most": _MOST_ROWS, "order": order, "xaxis": axis}
    look |= {"least": math.ceil((2 + 13 * others) / 16), "shapes": [vertical(1)]}
    return in_rows(work.heading, labels, f"{_AXES[quantity]}, {cut(of.names[0], 16)} = 1", traces, head=110, **look)


def _ratio_points(of: Comparison, at: int, own: pd.DataFrame, others: int) -> Trace:
    hovers = []
    for row in records(own):
        known = f"95%: {interval(row['low'], row['high'])}" if format.known(row["low"]) else ""
        text = f"{format.times(row['ratio'])} times ({known or 'no interval: it needs two launches per variant'})"
        hovers.append(f"<b>{plain(row['label'])}</b><br>{plain(of.names[at])}: {text}")
    y = own["y"] + (at - (others + 1) / 2) * min(0.22, 0.7 / others)
    style = side_style(at)
    bars = interval_bars(own) | {"color": style.color}
    trace = points(own.assign(hover=hovers), own["ratio"], y, style, _name(of, at), error_x=bars, showlegend=True)
    sizes = [13 if case_id == ALL else 9 for case_id in own["case_id"]]
    trace["marker"] |= {"size": sizes, "line": {"width": 1.5, "color": style.color}}
    return trace


def _name(of: Comparison, at: int) -> str:
    return cut(of.names[at], _NAME)


def _by_side(own: pd.DataFrame) -> list[tuple[int, pd.DataFrame]]:
    """Return the rows of each session, by its place."""
    return [(at, own[own["at"] == at]) for at in sorted(own["at"].unique().tolist())]


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


def _numbers(of: Comparison, name: str) -> pd.DataFrame:
    """Return a row per configuration and session with the number `name`, and the columns of `points`."""
    fields = with_sizes(of.cases[["case_id", "label", *DEFAULTS]])
    own = of.numbers[of.numbers[name].notna()].drop(columns="device").join(fields, on="row").reset_index(drop=True)
    hovers = []
    for row in records(own):
        step = f": {format.milliseconds(row['step_time_s'])} per step" if format.known(row["step_time_s"]) else ""
        launches = f"{row['n_ok']:.0f} of {format.count(int(row['n_launches']), 'launch')} ok"
        hovers.append(f"<b>{plain(row['label'])}</b><br>{plain(of.names[row['at']])}{step}<br>{launches}")
    return own.assign(ranking="number", hover=hovers)


def memory(of: Comparison, works: Sequence[Overall]) -> list[Panel]:
    """Return the peak memory of each configuration and session; the largest differences are on top."""
    known, panels = _numbers(of, "peak_memory_bytes"), []
    for work in works:
        own = known[known["row"].isin(work.rows)]
        if own.empty:
            continue
        peaks = own.groupby("row")["peak_memory_bytes"].agg(["min", "max"])
        peaks["apart"] = peaks["max"] / peaks["min"].clip(lower=1)
        rows = peaks.sort_values(["apart", "max"], ascending=False, kind="stable").index
        own = own.assign(y=own["row"].map({row: y for y, row in enumerate(rows)}))
        traces = []
        for at, side in _by_side(own):
            peak, also = side["peak_memory_bytes"] / MIB, [*map(format.mebibytes, side["peak_memory_bytes"])]
            name, more = _name(of, at), {"also": also, "showlegend": True}
            traces.append(points(side, listed(peak), side["y"], side_style(at), name, **more))
        names = [marked(*of.cases.loc[row, ["label", "strategy"]]) for row in rows]
        look: dict[str, Any] = {"which": "that differ most", "most": _MOST_ROWS, "xaxis": FROM_ZERO}
        panels.append(in_rows(work.heading, names, "peak memory (MiB)", traces, head=80, **look))
    return panels


def buckets(of: Comparison, works: Sequence[Overall]) -> list[Panel]:
    """Return step time against bucket size: a panel for configurations that differ only in it, a curve per session.

    Panels with the most sizes come first.
    """
    known, panels = _numbers(of, "step_time_s"), []
    same = [name for name in DEFAULTS if name not in (*MACHINES_OWN, "bucket_mib")]
    for work in works:
        for _, own in known[known["row"].isin(work.rows)].groupby(same, dropna=False, sort=False):
            if len(sizes := sizes_of(own)) > 1:
                row = own.iloc[0]
                case = of.sides[row["at"]].case(of.id(row["row"], row["at"]))
                title = " · ".join(filter(None, (work.heading, structs.replace(case, bucket_mib=None).label)))
                # The fastest, if a session measured one size on two kinds of device.
                own = own.sort_values("step_time_s", kind="stable").drop_duplicates(["at", "bucket_mib"])
                found = [Curve(_name(of, at), side_style(at), side) for at, side in _by_side(own)]
                panels.append((len(sizes), over_buckets(title, sizes, found)))
    return [panel for _, panel in sorted(panels, key=lambda each: -each[0])]


def scaling(of: Comparison) -> list[Panel]:
    """Return throughput and efficiency against the world size: a color per session, a dash per strategy.

    A session's strategy has its curve with the most world sizes, then the fastest.
    """
    tables = []
    for at, side in enumerate(of.sides):
        page_ids = dict(zip(of.ids[at], of.cases["case_id"], strict=True))
        table = side.once(curves)
        tables.append(table.assign(side=at, case_id=table["case_id"].map(page_ids)))
    table = with_sizes(pd.concat([each for each in tables if len(each)] or tables[:1], ignore_index=True))
    alike = [name for name in ALIKE if name in SHARED_WORK]
    panels = []
    for kind, fixed in FIXED.items():
        for _, own in table[table["kind"] == kind].groupby([*alike, fixed], dropna=False, sort=False):
            if own["world_size"].nunique() > 1:
                title = scaling_title(own.iloc[0].to_dict(), table[alike])
                panels += over_ranks(title, _scaling(of, own))
    return panels


def _scaling(of: Comparison, own: pd.DataFrame) -> list[Curve]:
    strategies, found = own["strategy"].unique().tolist(), []
    for rows in sorted(longest(own, ["side", "strategy"]), key=lambda rows: int(rows["side"].iloc[0])):
        first = rows.iloc[0]
        at, strategy = int(first["side"]), str(first["strategy"])
        which = plain(f"{strategy}, {first['algorithm']}, bucket {size_text(first['bucket_mib'])}")
        hovers = [f"<b>{plain(of.names[at])}</b><br>{which}<br>{format.count(n, 'rank')}" for n in rows["world_size"]]
        name = _name(of, at) + (f", {plain(strategy)}" if len(strategies) > 1 else "")
        style = side_style(at)._replace(dash=_DASHES[strategies.index(strategy) % len(_DASHES)])
        found.append(Curve(name, style, rows.assign(ranking="scaling", hover=hovers)))
    return found
