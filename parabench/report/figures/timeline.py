"""Timelines of one step: the parts of each rank's step, and below them its collectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.environment.nodes import spread_over_nodes
from parabench.analysis.step.timeline import Timeline, lanes
from parabench.metrics import STEP_PARTS
from parabench.plan.collective_case import OPS
from parabench.report.figures.figures import Panel, Trace, bars, lay_out, marks, name_case, plain, short
from parabench.report.palette import PART, colour_of
from parabench.store.record import MIB, WAIT
from parabench.store.results import records

# Distinct from each other and from the parts of a step for any color vision: Tol's muted colors and two grays.
OP = {
    "all_reduce": "#E69F00",
    "all_gather": "#44AA99",
    "reduce_scatter": "#AA4499",
    "broadcast": "#999933",
    "reduce": "#DDCC77",
    "gather": "#88CCEE",
    "scatter": "#CC6677",
    "all_to_all": "#9467FF",
    "send": "#7F7F7F",
    "recv": "#AAAAAA",
    "barrier": "#8C6D31",
}
# More ranks would make the rows too thin to read.
MOST_RANKS = 8
# Simultaneous calls are below each other, in at most this many rows.
MOST_ROWS = 4
# The time of a bucket's last gradient, visible on bars and on light and dark pages.
READY = {"symbol": "triangle-down", "size": 9, "color": "#111111", "line": {"width": 1, "color": "#ffffff"}}
_HATCH = {"shape": "/", "size": 6, "solidity": 0.25, "fgcolor": "#333333", "bgcolor": "rgba(255,255,255,0.6)"}
# Height of a row of parts. The rows of calls, if there are several, and the gap between ranks are in this unit.
_ROW_PX = 26
_THIN = 0.72
_GAP = 0.55
# On a phone the legend has one name per line; it must not scroll.
_LEGEND_PX = 190


def timeline_panel(
    timeline: Timeline, label: str, hatched: str = "blocked", names: Mapping[str, str] | None = None
) -> Panel:
    """Return a figure with two rows or more per rank: the parts of its step, and its calls below them.

    `hatched` is the legend of the time that training was blocked, and `names` replace the names of parts in the legend.
    """
    ranks = spread_over_nodes(timeline.ranks, timeline.node_of, MOST_RANKS)
    spans = timeline.spans[timeline.spans["rank"].isin(ranks)]
    calls = _placed(timeline.calls[timeline.calls["rank"].isin(ranks)])
    rows = int(calls["row"].max()) + 1 if len(calls) else 1
    thick = 1.0 if rows == 1 else _THIN
    pitch = 1 + rows * thick + _GAP
    top = {rank: place * pitch for place, rank in enumerate(ranks)}
    spans = spans.assign(y=spans["rank"].map(top))
    calls = calls.assign(y=calls["rank"].map(top) + 0.5 + thick * (calls["row"] + 0.5))
    traces: list[Trace] = []
    looks: dict[str, tuple[str, dict[str, Any]]] = {
        part: ((names or {}).get(part, PART[part][1]), {"color": PART[part][0]}) for part in STEP_PARTS
    }
    for name, (meaning, marker) in (looks | {WAIT: (hatched, {"pattern": _HATCH})}).items():
        own = spans[spans["name"] == name.removesuffix("_s")]
        if len(own):
            traces.append(_parts(own, meaning, {"line": {"width": 0}} | marker))
    timed, ops = calls[calls["duration_s"].notna()], calls["op"].drop_duplicates()
    traces += [_calls(timed[timed["op"] == op], str(op), thick) for op in ops if (timed["op"] == op).any()]
    if len(unknown := calls[calls["duration_s"].isna()]):
        colors = [colour_of(OP, str(op)) for op in unknown["op"]]
        marker = {"symbol": "line-ns", "size": 12, "line": {"width": 2, "color": colors}}
        traces.append(marks(1e3 * unknown["begin_s"], unknown["y"].to_list(), "end unknown", _hovers(unknown), marker))
    if len(ready := calls[calls["ready_s"].notna()]):
        texts = [
            f"rank {rank}: bucket {bucket:.0f} is ready,<br>its last gradient came at {_moment(ready_s)}"
            for rank, bucket, ready_s in zip(ready["rank"], ready["bucket"], ready["ready_s"], strict=True)
        ]
        heights = (ready["rank"].map(top) + 0.5).to_list()
        traces.append(marks(1e3 * ready["ready_s"], heights, "bucket ready", texts, READY))
    name_case(traces, label)
    middle = 1 + (rows * thick - 1) / 2
    figure = lay_out(
        traces,
        "since the first rank began the step (ms)",
        "",
        barmode="overlay",
        bargap=0,
        legend={"traceorder": "normal", "maxheight": _LEGEND_PX},
        uniformtext={"minsize": 10, "mode": "hide"},
        xaxis={"range": [0, 1.01e3 * pd.concat([spans["end_s"], calls["end_s"]]).max()]},
        yaxis={
            "tickvals": [top[rank] + at for rank in ranks for at in (0.0, middle)],
            "ticktext": [text for rank in ranks for text in (f"rank {rank}", "calls")],
            "range": [pitch * len(ranks) - _GAP / 2 - 0.5, -0.65],
            "showgrid": False,
        },
    )
    height = round(130 + 20 * len(ops) + _ROW_PX * pitch * len(ranks))
    return Panel(label, figure, height, wide=True, case=timeline.case_id)


def _placed(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the calls with `begin_s`, `end_s`, the `row` below the parts of their rank, and whether a row is `shared`
    by calls that overlap, so that it has no room for text."""
    begin_s = calls["start_s"].fillna(calls["made_s"])
    calls = calls.assign(begin_s=begin_s, end_s=begin_s + calls["duration_s"].fillna(0.0))
    order = calls.sort_values(["begin_s", "seq"], kind="stable")
    lane_of: dict[Any, int] = {}
    for _, own in order.groupby("rank"):
        lane_of |= zip(own.index, lanes(own["begin_s"], own["end_s"]), strict=True)
    lane = pd.Series([lane_of[at] for at in calls.index], calls.index, dtype=int)
    return calls.assign(
        row=lane.clip(upper=MOST_ROWS - 1),
        shared=(lane >= MOST_ROWS - 1) & (lane.groupby(calls["rank"]).transform("max") >= MOST_ROWS),
    )


def _parts(spans: pd.DataFrame, meaning: str, marker: dict[str, Any]) -> Trace:
    lengths = spans["end_s"] - spans["start_s"]
    hovers = [
        f"rank {rank}, {meaning}: {format.milliseconds(length)},<br>from {_moment(start)}"
        for rank, length, start in zip(spans["rank"], lengths, spans["start_s"], strict=True)
    ]
    return bars(spans["y"].to_list(), spans["start_s"], lengths, meaning, hovers, width=0.9, marker=marker)


def _calls(calls: pd.DataFrame, op: str, thick: float) -> Trace:
    # The line separates adjacent calls.
    marker = {"color": colour_of(OP, op), "line": {"width": 1, "color": "rgba(0,0,0,0.35)"}}
    texts = ["" if call["shared"] else _inside(call) for call in records(calls)]
    look: dict[str, Any] = {"width": 0.86 * thick, "marker": marker, "text": texts, "textposition": "inside"}
    look |= {"insidetextanchor": "start", "textangle": 0}
    heights = calls["y"].to_list()
    return bars(heights, calls["begin_s"], calls["duration_s"], plain(op), _hovers(calls), **look)


def _inside(call: Mapping[Any, Any]) -> str:
    bucket = f"bucket {call['bucket']:.0f}" if format.known(call["bucket"]) else ""
    size = f"{format.digits(call['bytes'] / MIB, 2)} MiB" if format.known(call["bytes"]) else ""
    return ", ".join(filter(None, (bucket, size)))


def _hovers(calls: pd.DataFrame) -> list[str]:
    return [_hover(call) for call in records(calls)]


def _hover(call: Mapping[Any, Any]) -> str:
    """Return operation, algorithm, ranks, size, duration, bandwidth and times of a call."""
    who = f"rank {call['rank']}: {call['op']} by {short(str(call['algorithm']), 34)}, ranks {call['ranks']}"
    who += f", bucket {call['bucket']:.0f}" if format.known(call["bucket"]) else ""
    amount = format.mebibytes(call["bytes"]) if format.known(call["bytes"]) else "size unknown"
    if format.known(call["duration_s"]):
        amount += f" in {format.milliseconds(call['duration_s'])}"
        on_bus = " on the bus" * (call["op"] in OPS)
        amount += f": {format.digits(call['busbw'])} GB/s{on_bus}" if format.known(call["busbw"]) else ""
    else:
        amount += "; when it ended is unknown"
    times = (("called at", call["made_s"]), ("began at", call["start_s"]))
    when = ", ".join(f"{verb} {_moment(second)}" for verb, second in times if format.known(second))
    return "<br>".join([plain(who), amount, when])


def _moment(second: float) -> str:
    """Return '12.34 ms', with two decimals so that adjacent times differ."""
    return f"{second * 1e3:.2f} ms"
