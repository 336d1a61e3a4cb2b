"""Sections of step time and throughput along the axes bucket size, algorithm and world size."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.numbers import WORK
from parabench.analysis.scaling import ALIKE, FIXED, STRONG, WEAK, curves
from parabench.analysis.session import SessionData
from parabench.plan.case import DEFAULTS, ranks_in_words
from parabench.plan.fields import number
from parabench.report.cases import page_cases
from parabench.report.figures import (
    ALL,
    GREY,
    PART,
    SYMBOLS,
    Panel,
    Style,
    Trace,
    algorithm_style,
    band,
    cut,
    error_bars,
    in_rows,
    lay_out,
    listed,
    native_first,
    points,
    strategy_style,
    titled,
    vertical,
)
from parabench.report.spec import Section, nothing_to_draw
from parabench.strategies import entry_of

# A bucket size in MiB, a list of caps ("1+4"), or PyTorch's default.
Size = float | str | None
# Characters of a name in a legend.
_NAME = 34
# The axes that a title may have.
_OPTIONS = [
    name for name in DEFAULTS if name not in ("algorithm", "bucket_mib", "strategy", "world_size", "nodes", *WORK)
]
# The ideal line is shown up to this multiple of the highest point, so that it does not compress the curves.
_ABOVE = 1.5


# ---- bucket size and algorithm


def _with_sizes(cases: pd.DataFrame) -> pd.DataFrame:
    """Return the configurations with `bucket_mib` converted to `Size`."""
    sizes = [mib if isinstance(mib, str) else format.number_or_none(mib) for mib in cases["bucket_mib"]]
    return cases.assign(bucket_mib=pd.Series(sizes, cases.index, dtype=object))


def _size_text(mib: Size, unit: str = "") -> str:
    """Return the name of a bucket size, with its unit."""
    return "default" if mib is None else (mib if isinstance(mib, str) else number(mib)) + unit


def _by_size(mib: Size) -> tuple[int, list[float]]:
    """Return a sort key: sizes first, then lists of caps, then the default."""
    if mib is None:
        return 2, []
    if isinstance(mib, str):
        return 1, [float(cap) for cap in re.split(r"(?<!e)\+", mib) if cap]
    return 0, [mib]


def _worlds(seen: SessionData) -> list[pd.DataFrame]:
    """Return the measured configurations in groups that differ only in algorithm and bucket size.

    The text `world` has the strategy and ranks, and the other options that differ between the strategy's
    configurations.
    """
    cases = _with_sizes(seen.once(page_cases).dropna(subset="step_time_s"))
    found = []
    for (_, strategy), alike in cases.groupby(["work", "strategy"], sort=False):
        differ = [name for name in _OPTIONS if alike[name].nunique(dropna=False) > 1]
        # Only two_level has it. One value does not separate two_level from the other algorithms.
        if alike["ranks_per_node"].nunique() == 1:
            differ = [name for name in differ if name != "ranks_per_node"]
        for _, own in alike.groupby(["world_size", "nodes", *differ], dropna=False, sort=False):
            first = own.iloc[0]
            parts = [str(strategy), ranks_in_words(first["world_size"], first["nodes"])]
            parts += [f"{name} {_option(first[name])}" for name in differ]
            found.append(own.assign(world=", ".join(parts)))
    return found


def _option(value: Any) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else "auto" if pd.isna(value) else str(value)


def by_bucket_section(seen: SessionData) -> Section:
    """Return the section of step time against bucket size, with a curve for each algorithm."""
    sized = [(own, sorted(set(own["bucket_mib"]), key=_by_size)) for own in seen.once(_worlds)]
    worlds = sorted((each for each in sized if len(each[1]) > 1), key=lambda each: -len(each[1]))
    return Section(
        "bucket",
        "Step time against bucket size",
        "Lower is better. Filled marks are not statistically distinguishable from the fastest configuration of the "
        "same workload.",
        nothing_to_draw(seen) or "No strategy has more than one bucket size at one world size.",
        panels=[_bucket_panel(*world) for world in worlds],
        reading="Bars span the fastest to the slowest launch. The shaded range covers the bucket sizes with a filled "
        "mark; “default” is PyTorch's own bucket setting. A list such as 1+4 has the cap of each bucket; the last cap "
        "applies to all further buckets. The axis does not start at zero.",
    )


def _bucket_panel(own: pd.DataFrame, sizes: list[Size]) -> Panel:
    """Return the figure of step time against bucket size for a group of `_worlds`.

    Sizes are on a logarithmic axis. Lists of caps and the default are on the right, without a line.
    """
    places: dict[Size, float] = {mib: math.log2(mib) for mib in sizes if isinstance(mib, float)}
    low, high = min(places.values(), default=0.0), max(places.values(), default=0.0)
    apart = [mib for mib in sizes if mib not in places]
    places |= {mib: high + (at + 1) * max(1.0, (high - low) / 5) for at, mib in enumerate(apart)}
    names, traces = sorted(own["algorithm"].unique(), key=native_first), list[Trace]()
    for at, algorithm in enumerate(names):
        style, name = algorithm_style(algorithm), cut(algorithm, _NAME)
        rows = own[own["algorithm"] == algorithm]
        aside = (at - (len(names) - 1) / 2) * 0.06  # so that bars do not hide each other
        rows = rows.assign(place=[places[mib] + aside for mib in rows["bucket_mib"]])
        rows = rows.sort_values("place", kind="stable")
        joined = ~rows["bucket_mib"].isin(apart)
        drawn = [
            (part, mode) for part, mode in ((rows[joined], "lines+markers"), (rows[~joined], "markers")) if len(part)
        ]
        for part, mode in drawn:
            look: dict[str, Any] = {"mode": mode, "line": style.line, "legendgroup": name}
            look["showlegend"] = part is drawn[0][0]
            look["error_y"] = error_bars(part["step_time_s"], part["low_s"], part["high_s"], 1e3)
            y, filled = listed(part["step_time_s"], 1e3), part["ranking"] != ""
            traces.append(points(part, part["place"], y, style, name, filled, **look))
    fastest = set(own["bucket_mib"][own["ranking"] != ""])
    runs = [list(run) for inside, run in itertools.groupby(sizes, fastest.__contains__) if inside]
    shapes = [band(places[run[0]] - 0.3, places[run[-1]] + 0.3) for run in runs]
    ticks = {"tickvals": [places[mib] for mib in sizes], "ticktext": [*map(_size_text, sizes)]}
    figure = lay_out(traces, "bucket size (MiB)", "step time (ms)", xaxis=ticks, shapes=shapes)
    return Panel(titled(own, own["world"].iloc[0]), figure)


def algorithms_section(seen: SessionData) -> Section:
    """Return the section of the step time of algorithms relative to native, in common launches and repetitions."""
    panels = [panel for world in seen.once(_worlds) if (panel := _algorithm_panel(world))]
    return Section(
        "algorithms",
        "Step time vs native all-reduce",
        "Step time of an algorithm divided by the step time of native, at the same strategy, ranks and bucket size. "
        "Left of the line is faster than native.",
        nothing_to_draw(seen)
        or "No algorithm was measured along with native at the same strategy, world size and bucket size.",
        panels=sorted(panels, key=lambda panel: -panel.height),
        reading="Bars span the fastest to the slowest launch of an algorithm, over the mean step time of native; "
        "native's own bar shows the spread of its launches.",
    )


def _algorithm_panel(world: pd.DataFrame) -> Panel | None:
    """Return the figure of algorithms relative to native for a group of `_worlds`; None without a ratio."""
    lines = []
    # `slower` is unknown if no launch or repetition connects a configuration with the best.
    for _, line in world[world["slower"].notna()].groupby("bucket_mib", dropna=False, sort=False):
        native = line["slower"][line["algorithm"] == "native"]
        if len(native) and len(line) > 1:
            lines.append(line.assign(ratio=(1 + line["slower"]) / (1 + native.iloc[0])))
    if not lines:
        return None
    lines.sort(key=lambda line: _by_size(line["bucket_mib"].iloc[0]))
    own = pd.concat([line.assign(row=at) for at, line in enumerate(lines)])
    names, traces = sorted(own["algorithm"].unique(), key=native_first), []
    for at, name in enumerate(names):
        style, group = algorithm_style(name), own[own["algorithm"] == name]
        also = ["" if name == "native" else f"{format.digits(ratio)} times native's step" for ratio in group["ratio"]]
        y = group["row"] + (at - (len(names) - 1) / 2) * min(0.14, 0.7 / len(names))
        over = group["ratio"] / group["step_time_s"]
        ends = error_bars(group["ratio"], group["low_s"] * over, group["high_s"] * over, color=style.color)
        look = {"legendgroup": name, "error_x": ends}
        traces.append(points(group, group["ratio"], y, style, cut(name, _NAME), True, also, **look))
    texts = [_size_text(line["bucket_mib"].iloc[0], " MiB") for line in lines]
    look = {
        "shapes": [vertical(1, color=algorithm_style("native").color, dash="dot")],
        "least": max(1, math.ceil((9 * len(names) - 12) / 16)),
        "which": "first",
        "most": len(texts),
        "wide": False,
    }
    title = titled(own, own["world"].iloc[0])
    return in_rows(title, texts if len(texts) > 1 else [""], "over native (ratio)", traces, head=120, **look)


# ---- world size


def scaling_section(seen: SessionData) -> Section:
    """Return the section of throughput and efficiency against the world size."""
    table = _with_sizes(seen.once(curves))
    kinds = {
        STRONG: "Strong scaling: the same global batch at every world size.",
        WEAK: "Weak scaling: the same batch per rank at every world size.",
    }
    unranked = [name for name in table["strategy"].unique() if not entry_of(name).ranked]
    note = f" {', '.join(unranked)} (dashed): no-communication baseline, not ranked." if unranked else ""
    return Section(
        "scaling",
        "Scaling",
        " ".join(text for kind, text in kinds.items() if (table["kind"] == kind).any()),
        nothing_to_draw(seen) or "No strategy has two world sizes with the same workload, algorithm and bucket size.",
        panels=[_scaling_panel(seen, table, group) for _, group in table.groupby("group", sort=False)],
        reading="In strong scaling, efficiency is the throughput per rank relative to the throughput of one rank. In "
        "weak scaling, it is the step time of one rank relative to the step time. If one rank was not measured, the "
        "smallest world size is the base. For each strategy, the curve with the most world sizes is drawn, or the "
        "fastest of these. With one strategy, each algorithm has a curve, or else each bucket size. The ideal line may "
        "leave the figure." + note,
    )


_ORDER: dict[str, Callable[[Any], Any]] = {
    "strategy": lambda name: 0, "algorithm": native_first, "bucket_mib": _by_size,
}  # fmt: skip


def _scaling_panel(seen: SessionData, table: pd.DataFrame, group: pd.DataFrame) -> Panel:
    """Return the figure of throughput against the world size for a workload, with a curve for each strategy.

    A single strategy has a curve for each algorithm, or else for each bucket size.
    """
    cases = seen.once(page_cases).set_index("case_id", drop=False)
    group = group.assign(hover=group["case_id"].map(cases["hover"]))
    by = next((name for name in ("strategy", "algorithm") if group[name].nunique() > 1), "bucket_mib")
    # The curve with the most world sizes, then the fastest at the most ranks, for each value.
    longest = [
        max((own for _, own in alike.groupby("curve")), key=lambda own: (len(own), own["tokens_per_s"].iloc[-1]))
        for _, alike in group.groupby(by, dropna=False, sort=False)
    ]
    longest.sort(key=lambda own: _ORDER[by](own[by].iloc[0]))
    drawn = [_curve(own, by, at) for at, own in enumerate(longest)]
    base = cases.loc[[group["base_case_id"].iloc[0]]]
    if base["strategy"].iloc[0] == "single":  # over the marks of all curves
        drawn.append(("single", strategy_style("single"), base.assign(efficiency=1.0)))
    own = pd.concat(longest)
    sizes = sorted({*map(int, own["world_size"]), *map(int, drawn[-1][2]["world_size"])})
    # Without one device as the common base, the best ranked base is the ideal: no curve is flattered.
    ranked = own[own["ranked"].astype(bool)]
    bases = (ranked if len(ranked) else own).drop_duplicates("base_case_id")
    ideal = (bases["base_case_id"].map(cases["tokens_per_s"]) / bases["base_world_size"]).max()
    traces: list[Trace] = [{
        "type": "scatter", "mode": "lines", "name": "ideal", "meta": ALL, "hoverinfo": "skip",
        "x": sizes, "y": [ideal * size for size in sizes], "line": {"color": GREY, "dash": "dot", "width": 1.5},
    }]  # fmt: skip
    unit = format.unit_of(own["seq_len"].iloc[0])
    for name, style, rows in drawn:
        also = [
            f"{format.rate(rate)} {unit}/s, efficiency {format.percent(efficiency)}"
            for rate, efficiency in zip(rows["tokens_per_s"], rows["efficiency"], strict=True)
        ]
        look = {"mode": "lines+markers", "line": style.line, "showlegend": True}
        traces.append(points(rows, rows["world_size"], rows["tokens_per_s"], style, name, True, also, **look))
    highest = max(rows["tokens_per_s"].max() for _, _, rows in drawn)
    ranks: dict[str, Any] = {"tickvals": sizes, "ticktext": [*map(str, sizes)]}
    rates: dict[str, Any] = {"range": [0, 1.05 * max(highest, min(ideal * sizes[-1], _ABOVE * highest))]}
    if sizes[-1] > 16 * sizes[0]:  # a linear axis would crowd the small sizes
        ranks["type"] = rates["type"] = "log"
        del rates["range"]
    figure = lay_out(traces, "world size (ranks)", f"throughput ({unit}/s)", xaxis=ranks, yaxis=rates)
    return Panel(_scaling_title(group, table), figure, 340 + 16 * len(drawn))


def _scaling_title(group: pd.DataFrame, table: pd.DataFrame) -> str:
    """Return 'Strong scaling, global batch 8', with the fields of the workload that differ in `table`."""
    point, kind = group.iloc[0], group["kind"].iloc[0]
    same = point[FIXED[kind]]
    title = [f"{kind.capitalize()} scaling", f"global batch {same}" if kind == STRONG else f"{same:g} samples a rank"]
    for name in (name for name in ALIKE if table[name].nunique() > 1):
        value = point[name] or "of bytes"
        needs_no_name = name in ("model", "data", "precision", "device")
        title.append(str(value) if needs_no_name else f"{name.replace('_', ' ')} {value}")
    return ", ".join(title)


def _curve(own: pd.DataFrame, by: str, at: int) -> tuple[str, Style, pd.DataFrame]:
    """Return the name, the style and the points of curve number `at`. The curves differ in the field `by`."""
    first = own.iloc[0]
    # The point of a common base is shown with the others of the curve.
    common = (own["case_id"] == own["base_case_id"]) & (own["base"] != first["strategy"])
    rows = own.assign(case_id=own["case_id"].mask(common, "|".join(own["case_id"][~common])))
    if by == "strategy":
        style = strategy_style(first["strategy"])
    elif by == "algorithm":
        style = algorithm_style(first["algorithm"])
    else:
        style = Style([*PART.values()][at % len(PART)][0], "solid", SYMBOLS[at % len(SYMBOLS)])
    algorithm = first["algorithm"] if "algorithm" in entry_of(first["strategy"]).axes else ""
    size = "" if first["bucket_mib"] is None else _size_text(first["bucket_mib"], " MiB")
    return cut(" ".join(filter(None, (first["strategy"], algorithm, size))), _NAME), style, rows
