"""Figures of launches: their spread around the step time of their configuration, their drift, and their order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from parabench.analysis import format
from parabench.analysis.launch_number import STATISTIC
from parabench.analysis.session import SessionData
from parabench.analysis.warnings.launches import AA_SPREAD, DRIFTS
from parabench.report.cases import page_cases, page_launches
from parabench.report.figures.figures import ALL, BAND, GREY, Figure, Panel, Trace, in_rows, lay_out, marks, plain
from parabench.report.palette import strategy_style

# Marks in a figure; more are a cloud, and slow.
_MOST_MARKS = 1000
_MOST_BINS = 40
# With more strategies, a legend would take the room of the figure.
_MOST_NAMES = 4
_NEUTRAL = "#6B7F93"
_FROM = "from its case's step time"
Row = Mapping[Any, Any]


def _launches(seen: SessionData) -> list[dict[Any, Any]]:
    """Return the launches of `page_launches` with fields of their configurations."""
    names = ["case_id", "shown", "strategy", "device", "statistic", "spread"]
    cases = {case["case_id"]: case for case in seen.once(page_cases)[names].to_dict("records")}
    launches = seen.once(page_launches).to_dict("records")
    return [launch | cases[launch["case_id"]] for launch in launches if launch["case_id"] in cases]


def _deviating(seen: SessionData) -> list[dict[Any, Any]]:
    return [launch for launch in seen.once(_launches) if format.known(launch["from_case"])]


def spread(seen: SessionData) -> list[Panel]:
    """Return the launches around the step time of their configuration: all in one histogram, and case by case."""
    own = _deviating(seen)
    if not own:
        return []
    widest = sorted({launch["case_id"]: launch for launch in own}.values(), key=lambda launch: -launch["spread"])
    rows = {launch["case_id"]: row for row, launch in enumerate(widest)}
    bins = _histogram([launch["from_case"] for launch in own])
    band = _band(own, "x")
    title = f"{_FROM} (%)"
    look: dict[str, Any] = {"shapes": band, "bargap": 0, "yaxis": _whole_ticks(max(bins["y"]))}
    histogram = lay_out([bins], title, "launches", **look)
    traces = _marks(own, lambda launch: (100 * launch["from_case"], rows[launch["case_id"]]), _percent_from)
    look = {"showlegend": False, "xaxis": _ZERO_LINE, "shapes": band}
    names = [launch["shown"] for launch in widest]
    count = f"{format.count(len(own), 'launch')} of {format.count(len(widest), 'case')}"
    return [
        Panel(count, histogram, 260, wide=True),
        in_rows("Case by case", names, title, traces, head=60, which="that differ most", **look),
    ]


def drift(seen: SessionData) -> list[Panel]:
    """Return the last third of each launch relative to its first third, in the order in which launches ran."""
    own = [launch for launch in seen.once(_launches) if launch["counts"] and format.known(launch["drift"])]
    if not own:
        return []
    place = {launch["launch_id"]: at for at, launch in enumerate(own, 1)}
    beyond = [launch for launch in own if abs(launch["drift"]) > DRIFTS.get(launch["device"], math.inf)]
    farthest = sorted(beyond, key=lambda launch: -abs(launch["drift"]))[: _MOST_MARKS // 2]
    outside = {launch["launch_id"] for launch in beyond}
    within = [launch for launch in own if launch["launch_id"] not in outside]
    drawn = [*farthest, *_thinned(within, _MOST_MARKS - len(farthest))]
    which = f"the {len(farthest)} farthest beyond the dashed lines and others " if farthest else ""
    traces = _marks(
        drawn,
        lambda launch: (place[launch["launch_id"]], 100 * launch["drift"]),
        lambda launch: f"drift {format.signed(launch['drift'])}",
    )
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "line": {"color": GREY, "width": 1.2, "dash": "dash"}}
    limits = dict.fromkeys(DRIFTS[launch["device"]] for launch in own if launch["device"] in DRIFTS)
    shapes = [line | {"y0": 100 * end, "y1": 100 * end} for limit in limits for end in (-limit, limit)]
    figure = _in_order(traces, "last third over first (%)", len(own), shapes)
    title = f"{_drawn(drawn, own, which)} · {len(beyond):,} beyond the dashed lines"
    return [Panel(title, figure, 340, wide=True)]


def order(seen: SessionData) -> list[Panel]:
    """Return the launches in the order in which they ran, and the median of each block."""
    own = _deviating(seen)
    if not own:
        return []
    place = {launch["launch_id"]: at for at, launch in enumerate(own, 1)}
    drawn = _thinned(own, _MOST_MARKS)
    blocks: dict[int, list[Row]] = {}
    for launch in own:
        blocks.setdefault(launch["block"], []).append(launch)
    x: list[Any] = []
    y: list[Any] = []
    hovers: list[str] = []
    for block, group in blocks.items():
        level = median(launch["from_case"] for launch in group)
        text = f"block {block}: median {format.signed(level)}"
        # A gap follows each block.
        x += [place[group[0]["launch_id"]], place[group[-1]["launch_id"]], math.nan]
        y += [100 * level, 100 * level, None]
        hovers += [text, text, ""]
    look = {"mode": "lines+markers", "line": {"color": GREY, "width": 2}, "showlegend": _has_legend(drawn), "meta": ALL}
    medians = marks(x, y, "median of a block", hovers, {"color": GREY, "size": 5}, **look)
    traces = _marks(drawn, lambda launch: (place[launch["launch_id"]], 100 * launch["from_case"]), _percent_from)
    figure = _in_order([*traces, medians], f"{_FROM} (%)", len(own), _band(own, "y"))
    return [Panel(_drawn(drawn, own), figure, 340, wide=True)]


def _in_order(traces: list[Trace], y: str, launches: int, shapes: list[dict[str, Any]]) -> Figure:
    xaxis = _whole_ticks(launches)
    return lay_out(traces, "launches, as they ran", y, xaxis=xaxis, yaxis=_ZERO_LINE, shapes=shapes)


_ZERO_LINE = {"zeroline": True, "zerolinewidth": 1}


def _whole_ticks(most: int) -> dict[str, Any]:
    """Without fractions of a launch on an axis that is short."""
    return {"dtick": 1} if most <= 12 else {}


def _percent_from(launch: Row) -> str:
    return f"{format.signed(launch['from_case'])} {_FROM}"


def _has_legend(drawn: Sequence[Row]) -> bool:
    return 1 < len({launch["strategy"] for launch in drawn}) <= _MOST_NAMES


def _marks(
    drawn: Sequence[Row], place: Callable[[Row], tuple[float, float]], text: Callable[[Row], str]
) -> list[Trace]:
    """Return marks of launches, in a trace for each strategy."""
    groups: dict[str, list[Row]] = {}
    for launch in drawn:
        groups.setdefault(launch["strategy"], []).append(launch)
    many, traces = len(drawn) > 400, []
    for name, group in groups.items():
        style = strategy_style(name)
        marker: dict[str, Any] = {"color": style.color, "symbol": style.symbol}
        marker |= {"size": 4, "opacity": 0.6} if many else {"size": 7, "opacity": 0.9}
        hovers = [_hover(launch, text(launch)) for launch in group]
        ids = [launch["case_id"] for launch in group]
        x, y = zip(*map(place, group), strict=True)
        traces.append(marks(x, [*y], plain(name), hovers, marker, customdata=ids, showlegend=_has_legend(drawn)))
    return traces


def _hover(launch: Row, text: str) -> str:
    time = f"block {launch['block']}: {format.milliseconds(launch['launch_step_s'])} per step"
    return "<br>".join((f"<b>{plain(launch['label'])}</b>", time, text))


def _band(own: Sequence[Row], axis: str) -> list[dict[str, Any]]:
    """Return the variation of launches of the same configuration, if it is known for the statistic of all of them."""
    shares = {STATISTIC[device]: share for device, share in AA_SPREAD.items()}
    statistics = {launch["statistic"] for launch in own}
    if len(statistics) > 1 or not statistics <= shares.keys():
        return []
    share, other = 100 * shares[statistics.pop()], "y" if axis == "x" else "x"
    ends = {f"{axis}0": -share, f"{axis}1": share, f"{other}ref": "paper", f"{other}0": 0, f"{other}1": 1}
    return [BAND | ends]


def _thinned(launches: Sequence[Row], most: int) -> list[Row]:
    """Return at most `most` launches, evenly chosen."""
    n = len(launches)
    return list(launches) if n <= most else [launches[k * n // most] for k in range(most)]


def _drawn(drawn: Sequence[Row], own: Sequence[Row], which: str = "") -> str:
    count = format.count(len(own), "launch")
    return f"{count} in all" if len(drawn) == len(own) else f"{len(drawn):,} of {count} are drawn, {which}evenly chosen"


def _histogram(shares: Sequence[float]) -> Trace:
    """Return how many launches are how far from their mean. The bars at the ends have all that are farther."""
    distances = sorted(map(abs, shares))
    reach = max(distances[math.floor((len(distances) - 1) * 0.98)] * 1.25, 1e-4)
    width = _round_width(2 * reach / _MOST_BINS)
    most = math.ceil(reach / width)
    bins = sorted(Counter(max(-most, min(most, math.floor(share / width + 0.5))) for share in shares).items())

    def text(place: int, n: int) -> str:
        low, high = (format.signed((place + half) * width) for half in (-0.5, 0.5))
        ends = f"below {high}" if place == -most else f"above {low}" if place == most else f"{low} to {high}"
        return f"{format.count(n, 'launch')} {ends}"

    return {
        "type": "bar", "x": [100 * place * width for place, _ in bins], "y": [n for _, n in bins], "meta": ALL,
        "width": 94 * width, "marker": {"color": _NEUTRAL}, "hovertext": [text(*each) for each in bins],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }  # fmt: skip


def _round_width(least: float) -> float:
    """Return the next of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(of * power for of in (1, 2, 5, 10) if of * power >= least * (1 - 1e-9))
