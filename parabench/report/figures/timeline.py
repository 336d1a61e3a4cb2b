"""Timelines of one step: the parts of each rank's step, and below them its collectives."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from parabench.analysis import format
from parabench.analysis.environment.nodes import spread_over_nodes
from parabench.analysis.step.timeline import Timeline, lanes
from parabench.metrics import STEP_PARTS
from parabench.plan.collective_case import OPS
from parabench.report.figures.figures import Panel, Trace, bars, lay_out, marks, name_case, plain, short
from parabench.report.palette import PART, colour_of
from parabench.store.record import MIB, WAIT
from parabench.store.results import records

Row = dict[str, Any]

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
    spans = [span for span in records(timeline.spans) if span["rank"] in ranks]
    calls = _placed([call for call in records(timeline.calls) if call["rank"] in ranks])
    rows = 1 + max((call["row"] for call in calls), default=0)
    thick = 1.0 if rows == 1 else _THIN
    pitch = 1 + rows * thick + _GAP
    top = {rank: place * pitch for place, rank in enumerate(ranks)}
    for call in calls:
        call["y"] = top[call["rank"]] + 0.5 + thick * (call["row"] + 0.5)
    traces: list[Trace] = []
    looks: dict[str, tuple[str, dict[str, Any]]] = {
        part: ((names or {}).get(part, PART[part][1]), {"color": PART[part][0]}) for part in STEP_PARTS
    }
    for name, (meaning, marker) in (looks | {WAIT: (hatched, {"pattern": _HATCH})}).items():
        if own := [span for span in spans if span["name"] == name.removesuffix("_s")]:
            heights = [top[span["rank"]] for span in own]
            traces.append(_parts(own, heights, meaning, {"line": {"width": 0}} | marker))
    timed = [call for call in calls if format.known(call["duration_s"])]
    ops = list(dict.fromkeys(call["op"] for call in calls))
    by_op = {op: [call for call in timed if call["op"] == op] for op in ops}
    traces += [_calls(own, op, thick) for op, own in by_op.items() if own]
    if unknown := [call for call in calls if not format.known(call["duration_s"])]:
        colors = [colour_of(OP, call["op"]) for call in unknown]
        marker = {"symbol": "line-ns", "size": 12, "line": {"width": 2, "color": colors}}
        begins_ms, heights = [1e3 * call["begin_s"] for call in unknown], [call["y"] for call in unknown]
        traces.append(marks(begins_ms, heights, "end unknown", [*map(_hover, unknown)], marker))
    if ready := [call for call in calls if format.known(call["ready_s"])]:
        texts = [
            f"rank {call['rank']}: bucket {call['bucket']:.0f} is ready,<br>its last gradient came at "
            f"{_moment(call['ready_s'])}"
            for call in ready
        ]
        heights = [top[call["rank"]] + 0.5 for call in ready]
        traces.append(marks([1e3 * call["ready_s"] for call in ready], heights, "bucket ready", texts, READY))
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
        xaxis={"range": [0, 1.01e3 * max(each["end_s"] for each in spans + calls)]},
        yaxis={
            "tickvals": [top[rank] + at for rank in ranks for at in (0.0, middle)],
            "ticktext": [text for rank in ranks for text in (f"rank {rank}", "calls")],
            "range": [pitch * len(ranks) - _GAP / 2 - 0.5, -0.65],
            "showgrid": False,
        },
    )
    height = round(130 + 20 * len(ops) + _ROW_PX * pitch * len(ranks))
    return Panel(label, figure, height, wide=True, case=timeline.case_id)


def _placed(calls: list[Row]) -> list[Row]:
    """Return the calls with `begin_s`, `end_s`, the `row` below the parts of their rank, and whether a row is `shared`
    by calls that overlap, so that it has no room for text."""
    for call in calls:
        call["begin_s"] = call["start_s"] if format.known(call["start_s"]) else call["made_s"]
        call["end_s"] = call["begin_s"] + (call["duration_s"] if format.known(call["duration_s"]) else 0.0)
    for rank in {call["rank"] for call in calls}:
        own = sorted((call for call in calls if call["rank"] == rank), key=itemgetter("begin_s", "seq"))
        found = lanes([call["begin_s"] for call in own], [call["end_s"] for call in own])
        for call, lane in zip(own, found, strict=True):
            call["row"] = min(lane, MOST_ROWS - 1)
            call["shared"] = lane >= MOST_ROWS - 1 and max(found) >= MOST_ROWS
    return calls


def _parts(spans: list[Row], heights: list[float], meaning: str, marker: dict[str, Any]) -> Trace:
    begins_s = [span["start_s"] for span in spans]
    lengths_s = [span["end_s"] - span["start_s"] for span in spans]
    hovers = [
        f"rank {span['rank']}, {meaning}: {format.milliseconds(length_s)},<br>from {_moment(span['start_s'])}"
        for span, length_s in zip(spans, lengths_s, strict=True)
    ]
    return bars(heights, begins_s, lengths_s, meaning, hovers, width=0.9, marker=marker)


def _calls(calls: list[Row], op: str, thick: float) -> Trace:
    # The line separates adjacent calls.
    marker = {"color": colour_of(OP, op), "line": {"width": 1, "color": "rgba(0,0,0,0.35)"}}
    texts = ["" if call["shared"] else _inside(call) for call in calls]
    look: dict[str, Any] = {"width": 0.86 * thick, "marker": marker, "text": texts, "textposition": "inside"}
    look |= {"insidetextanchor": "start", "textangle": 0}
    heights, begins_s, lengths_s = ([call[name] for call in calls] for name in ("y", "begin_s", "duration_s"))
    return bars(heights, begins_s, lengths_s, plain(op), [*map(_hover, calls)], **look)


def _inside(call: Row) -> str:
    bucket = f"bucket {call['bucket']:.0f}" if format.known(call["bucket"]) else ""
    size = f"{format.digits(call['bytes'] / MIB, 2)} MiB" if format.known(call["bytes"]) else ""
    return ", ".join(filter(None, (bucket, size)))


def _hover(call: Row) -> str:
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
