"""Figures of step time and throughput along an axis: bucket size, algorithm, ranks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.numbers import WORK
from parabench.analysis.scaling import ALIKE, curves
from parabench.analysis.session import SessionData
from parabench.plan.case import DEFAULTS, ranks_in_words
from parabench.report.cases import page_cases
from parabench.report.figures.axes import (
    Size,
    bucket_axis,
    by_size,
    ideal_line,
    ranks_axis,
    scaling_title,
    size_of,
    size_text,
)
from parabench.report.figures.figures import (
    BAND,
    FROM_ZERO,
    Panel,
    Trace,
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
from parabench.report.palette import (
    PART,
    SYMBOLS,
    Style,
    algorithm_style,
    in_native_order,
    native_first,
    strategy_style,
)
from parabench.strategies import entry_of

# Characters of a name in a legend.
_NAME = 34
# Rows in a figure of algorithms; with more, each world size has its own.
_MOST_LINES = 24
# All axes but the two that the figures show.
_OTHERS = tuple(name for name in DEFAULTS if name not in ("algorithm", "bucket_mib"))
_IN_TITLE = ("strategy", "world_size", "nodes")
_SHOWN = ("case_id", "hover", "ranking", "heading", "algorithm", "bucket_mib", "strategy", "world_size", "work")
_SECONDS = ("step_time_s", "low_s", "high_s", "slower")


def _worlds(seen: SessionData) -> list[pd.DataFrame]:
    """Return the measured configurations that differ only in algorithm and bucket size, with the text `world` of the
    ranks and of the other options in which the strategy's configurations of the workload differ."""
    cases = measured(seen.once(page_cases))
    groups: dict[tuple[Any, ...], list[int]] = {}
    values: dict[tuple[Any, ...], dict[str, set[Any]]] = {}
    for at, row in enumerate(cases[["work", *_OTHERS]].to_dict("records")):
        own = {str(name): None if value != value else value for name, value in row.items()}
        groups.setdefault(tuple(own.values()), []).append(at)
        for name in _OTHERS:
            values.setdefault((own["work"], own["strategy"]), {}).setdefault(name, set()).add(own[name])
    shown, found = cases[[*_SHOWN, *_SECONDS]], []
    for key, places in groups.items():
        named: dict[str, Any] = dict(zip(("work", *_OTHERS), key, strict=True))
        several = values[named["work"], named["strategy"]]
        options = [
            _option(name, named[name])
            for name in _OTHERS
            if name not in _IN_TITLE and name not in WORK and len(several[name]) > 1
        ]
        world = ", ".join([ranks_in_words(named["world_size"], named["nodes"]), *options])
        sizes = [size_of(mib) for mib in shown["bucket_mib"].iloc[places]]
        found.append(shown.iloc[places].assign(world=world, bucket_mib=pd.Series(sizes, dtype=object).to_numpy()))
    return found


def _option(name: str, value: Any) -> str:
    text = "auto" if value is None else ("off", "on")[value] if isinstance(value, bool) else str(value)
    return f"{name} {text}"


def _sizes(own: pd.DataFrame) -> list[Size]:
    return sorted(set(own["bucket_mib"]), key=by_size)


def _title(own: pd.DataFrame) -> str:
    return titled(own, f"{own['strategy'].iloc[0]}, {own['world'].iloc[0]}")


def buckets(seen: SessionData) -> list[Panel]:
    """Return step time against bucket size, with a curve for each algorithm."""
    worlds = [(own, sizes) for own in _worlds(seen) if len(sizes := _sizes(own)) > 1]
    return [_buckets(*world) for world in sorted(worlds, key=lambda world: -len(world[1]))]


def _buckets(own: pd.DataFrame, sizes: list[Size]) -> Panel:
    (places, ticks), traces = bucket_axis(sizes), list[Trace]()
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
            name, x = cut(algorithm, _NAME), part["place"] + aside
            y = listed(part["step_time_s"], 1e3)
            traces.append(points(part, x, y, style, name, legendgroup=algorithm, **look))
    fastest = set(own["bucket_mib"][own["ranking"] != ""])
    runs = (list(run) for inside, run in itertools.groupby(sizes, fastest.__contains__) if inside)
    bands = [
        BAND | {"yref": "paper", "y0": 0, "y1": 1, "x0": places[run[0]] - 0.3, "x1": places[run[-1]] + 0.3}
        for run in runs
    ]
    return Panel(_title(own), lay_out(traces, "bucket size (MiB)", "step time (ms)", xaxis=ticks, shapes=bands))


# Light enough for black text, on light and dark pages alike.
_FAST, _SLOW = (0x4F, 0xA8, 0xDD), (0xF4, 0xF8, 0xFB)
# The lightest cell, relative to the fastest: one slow algorithm must not make all others look alike.
_LIGHTEST = 1.25


def heat(seen: SessionData) -> list[Panel]:
    """Return the step time of each algorithm and bucket size, in cells."""
    worlds = [own for own in _worlds(seen) if own["algorithm"].nunique() > 1 and len(_sizes(own)) > 1]
    return [_heat(own) for own in sorted(worlds, key=lambda own: -len(own))]


def _heat(own: pd.DataFrame) -> Panel:
    sizes, names = _sizes(own), in_native_order(own["algorithm"].unique())
    times = own["step_time_s"].astype(float)
    slowest = min(times.max(), _LIGHTEST * times.min())
    shares = ((times - times.min()) / (slowest - times.min() or 1)).clip(upper=1)
    colors = [
        f"rgb({','.join(str(round(fast + share * (slow - fast))) for fast, slow in zip(_FAST, _SLOW, strict=True))})"
        for share in shares
    ]
    edge = {"color": "#111111", "width": [2 if ranking else 0 for ranking in own["ranking"]]}
    # Cells are bars: plotly's basic bundle has no heat maps.
    cells = {
        "type": "bar", "x": [sizes.index(mib) for mib in own["bucket_mib"]], "width": 0.94,
        "base": [names.index(name) - 0.46 for name in own["algorithm"]], "y": [0.92] * len(own),
        "customdata": own["case_id"].to_list(), "text": [format.digits(1e3 * seconds) for seconds in times],
        "textposition": "inside", "insidetextanchor": "middle", "textangle": 0, "constraintext": "none",
        "insidetextfont": {"color": "#111111", "size": 12}, "hovertext": own["hover"].to_list(),
        "hovertemplate": "%{hovertext}<extra></extra>", "marker": {"color": colors, "line": edge},
    }  # fmt: skip
    columns = {"tickvals": [*range(len(sizes))], "ticktext": [size_text(mib) for mib in sizes], "showgrid": False}
    rows = {"tickvals": [*range(len(names))], "ticktext": [cut(name, 20) for name in names], "showgrid": False}
    rows |= {"range": [len(names) - 0.5, -0.5]}
    figure = lay_out([cells], "bucket size (MiB)", "", barmode="overlay", xaxis=columns, yaxis=rows)
    return Panel(f"{_title(own)} (ms)", figure, 80 + 44 * len(names))


def algorithms(seen: SessionData) -> list[Panel]:
    """Return the step time of algorithms relative to native, in common launches and repetitions."""
    panels: dict[tuple[Any, ...], list[pd.DataFrame]] = {}
    for world in _worlds(seen):
        # `slower` is unknown if no launch or repetition connects a configuration with the best.
        for _, line in world[world["slower"].notna()].groupby("bucket_mib", dropna=False, sort=False):
            native = line["slower"][line["algorithm"] == "native"]
            if len(native) and len(line) > 1:
                ratios = (1 + line["slower"]) / (1 + native.iloc[0])
                key = (line["work"].iloc[0], line["strategy"].iloc[0])
                panels.setdefault(key, []).append(line.assign(ratio=ratios))
    found: list[tuple[str, list[pd.DataFrame]]] = []
    for (_, strategy), lines in panels.items():
        if len(lines) <= _MOST_LINES:
            found.append((titled(lines[0], strategy), lines))
            continue
        worlds: dict[str, list[pd.DataFrame]] = {}
        for line in lines:
            worlds.setdefault(_title(line), []).append(line)
        found += worlds.items()
    return [_algorithms(*each) for each in sorted(found, key=lambda each: -len(each[1]))]


def _algorithms(title: str, lines: list[pd.DataFrame]) -> Panel:
    def place(line: pd.DataFrame) -> tuple[Any, ...]:
        return int(line["world_size"].iloc[0]), line["world"].iloc[0], by_size(line["bucket_mib"].iloc[0])

    lines = sorted(lines, key=place)
    own = pd.concat([line.assign(row=row) for row, line in enumerate(lines)])
    several, traces = len(_sizes(own)) > 1, []
    names = in_native_order(own["algorithm"].unique())
    for i, name in enumerate(names):
        style = algorithm_style(name)
        # All are filled: the figure is about ratios.
        group = own[own["algorithm"] == name].assign(ranking="ratio")
        also = ["" if name == "native" else f"{format.digits(ratio)} times native's step" for ratio in group["ratio"]]
        y = group["row"] + (i - (len(names) - 1) / 2) * min(0.14, 0.7 / len(names))
        bars = launch_bars(group, group["ratio"] / group["step_time_s"]) | {"color": style.color}
        text = cut(name, _NAME)
        traces.append(points(group, group["ratio"], y, style, text, legendgroup=name, also=also, error_x=bars))
    one = vertical(1, color=algorithm_style("native").color, dash="dot")
    texts = [_line(line["world"].iloc[0], line["bucket_mib"].iloc[0], several) for line in lines]
    least = max(1, math.ceil((9 * len(names) - 12) / 16))
    look: dict[str, Any] = {"wide": False, "which": "first", "most": len(lines), "shapes": [one]}
    return in_rows(title, texts, "over native (ratio)", traces, head=120, least=least, **look)


def _line(world: str, mib: Size, several: bool) -> str:
    return f"{world}, {size_text(mib)}{'' if mib is None else ' MiB'}" if several else world


# How far above the highest point the ideal line is shown, so that it does not press the curves down.
_ABOVE = 1.5
# The values of these need no name before them.
_SPEAKING = ("model", "data", "precision", "device")
_COLORS = [color for color, _ in PART.values()]
Curve = list[dict[Any, Any]]


def scaling(seen: SessionData) -> list[Panel]:
    """Return throughput and efficiency against the world size.

    Each strategy has its curve with the most world sizes, then the fastest. For a strategy with several algorithms, or
    else bucket sizes, a further pair of figures has such a curve for each.
    """
    table, panels = seen.once(curves), []
    cases = seen.once(page_cases).set_index("case_id", drop=False)
    cases = cases[["case_id", "hover", "strategy", "world_size", "tokens_per_s"]].assign(ranking="scaling")
    works = table[list(ALIKE)].drop_duplicates()
    for _, group in table.groupby("group", sort=False):
        found: list[Curve] = [own.to_dict("records") for _, own in group.groupby("curve", sort=False)]
        title, unit = _work(found[0][0], works), format.unit_of(found[0][0]["seq_len"])
        sizes = sorted({int(point["world_size"]) for own in found for point in own})
        strategies = _best(found, "strategy")
        if len(strategies) > 1:
            look = [strategy_style(name) for name in strategies]
            panels += _scaling(title, unit, cases, sizes, list(strategies.values()), look)
        for name in strategies:
            own = [each for each in found if each[0]["strategy"] == name]
            column = "algorithm" if len({each[0]["algorithm"] for each in own}) > 1 else "bucket_mib"
            order = native_first if column == "algorithm" else by_size
            best = dict(sorted(_best(own, column).items(), key=lambda each: order(each[0])))
            if len(best) == 1 and len(strategies) > 1:
                continue
            look = [algorithm_style(str(each[0]["algorithm"])) for each in best.values()]
            if column == "bucket_mib" and len(best) > 1:
                look = [Style(_COLORS[i % len(_COLORS)], "solid", SYMBOLS[i % len(SYMBOLS)]) for i in range(len(best))]
            text = f"{title}, {name}" if len(strategies) > 1 else title
            panels += _scaling(text, unit, cases, sizes, list(best.values()), look)
    return panels


def _best(found: list[Curve], column: str) -> dict[Any, Curve]:
    """Return the curve with the most points, then the fastest at the most ranks, for each value of a column."""
    best: dict[Any, Curve] = {}
    for own in found:
        name = own[0][column]
        name = None if name != name else name
        if name not in best or _extent(own) > _extent(best[name]):
            best[name] = own
    return best


def _extent(own: Curve) -> tuple[int, float]:
    return len(own), own[-1]["tokens_per_s"]


def _scaling(
    title: str, unit: str, cases: pd.DataFrame, sizes: list[int], found: list[Curve], styles: list[Style]
) -> list[Panel]:
    # Without one device as the common base, the best ranked base is the ideal: no curve is flattered.
    ranked = [own for own in found if own[0]["ranked"]] or found
    bases = {own[0]["base_case_id"] for own in ranked}
    rate = max(cases["tokens_per_s"][base] / cases["world_size"][base] for base in bases)
    own_sizes = {int(point["world_size"]) for own in found for point in own}
    shown = [size for size in sizes if min(own_sizes) <= size <= max(own_sizes)]
    xaxis = ranks_axis(shown)
    wide = xaxis["type"] == "log"  # with both axes logarithmic, the ideal line stays straight
    highest = max(float(cases["tokens_per_s"][point["case_id"]]) for own in found for point in own)
    top = 1.05 * max(highest, min(rate * shown[-1], _ABOVE * highest))
    base = found[0][0]["base_case_id"]
    single = cases.loc[[base]] if cases["strategy"][base] == "single" else None
    rates = [[float(cases["tokens_per_s"][point["case_id"]]) for point in own] for own in found]
    shares = [listed((point["efficiency"] for point in own), 100) for own in found]
    several = len({own[0]["strategy"] for own in found}) > 1
    named = not several or any(own[0]["algorithm"] != "native" for own in found)
    panels = []
    for what, axis, values, ideal, yaxis in (
        ("throughput", f"throughput ({unit}/s)", rates, rate, {"type": "log"} if wide else {"range": [0, top]}),
        ("efficiency", "efficiency (%)", shares, None, FROM_ZERO),
    ):
        line = [100 if ideal is None else ideal * size for size in shown]
        traces: list[Trace] = [
            ideal_line(shown, line),
            *(_curve(*each, cases, unit, named) for each in zip(found, values, styles, strict=True)),
        ]
        if single is not None:  # over the marks of all curves
            at = single["world_size"].to_list()
            y = [100 if ideal is None else ideal * at[0]]
            traces.append(points(single, at, y, strategy_style("single"), "single"))
        figure = lay_out(traces, "world size (ranks)", axis, xaxis=xaxis, yaxis=yaxis)
        # So that a legend of one or two lines leaves room for the curves.
        panels.append(Panel(f"{title}: {what}", figure, 340 + 16 * len(found)))
    return panels


def _curve(own: Curve, values: list[float], style: Style, cases: pd.DataFrame, unit: str, named: bool) -> Trace:
    first, at = own[0], cases.loc[[point["case_id"] for point in own]]
    also = [
        f"{format.rate(rate)} {unit}/s, efficiency {format.percent(point['efficiency'])}"
        for point, rate in zip(own, at["tokens_per_s"], strict=True)
    ]
    # The strategy, its algorithm if curves differ in it, and its bucket size.
    size = size_of(first["bucket_mib"])
    words = [first["strategy"], "" if size is None else f"{size_text(size)} MiB"]
    if named and "algorithm" in entry_of(first["strategy"]).axes:
        words.insert(1, first["algorithm"])
    # A point of the common base is shown with the others of the curve.
    strategies, ids = at["strategy"].to_list(), at["case_id"].to_list()
    others = [case for case, strategy in zip(ids, strategies, strict=True) if strategy == first["strategy"]]
    name = cut(" ".join(filter(None, words)), _NAME)
    x = at["world_size"]
    trace = points(at, x, values, style, name, mode="lines+markers", line=style.line, also=also)
    trace["customdata"] = [case if case in others else "|".join(others) for case in ids]
    return trace


def _work(group: Mapping[Any, Any], works: pd.DataFrame) -> str:
    """Return the fixed batch, and the other values that distinguish the workload: 'Strong scaling, global batch 8'."""
    apart = (
        str(group[name]) if name in _SPEAKING else f"{name.replace('_', ' ')} {group[name] or 'of bytes'}"
        for name in ALIKE
        if works[name].nunique() > 1
    )
    return scaling_title(group, apart)
