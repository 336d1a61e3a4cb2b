"""Timelines of one step: what each rank computed, and below it what it communicated, when."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from parabench.analysis import format
from parabench.analysis.environment.nodes import spread_over_nodes
from parabench.analysis.step.timeline import Row, Timeline
from parabench.metrics import STEP_PARTS
from parabench.plan.collective_case import OPS
from parabench.report.figures.figures import Panel, Trace, bars, lay_out, marks, name_case, plain, short
from parabench.report.palette import PART, colour_of
from parabench.store.record import MIB, WAIT

# Told apart from one another and from the parts of a step, with any colour vision; Tol's muted ones and two greys.
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
# Ranks beyond these would make rows too thin to read; they do the same.
MOST_RANKS = 8
# Calls that run at the same time lie below one another, in at most so many rows.
MOST_ROWS = 4
# When a bucket's last gradient was there; seen on light and dark pages, and on bars.
READY = {"symbol": "triangle-down", "size": 9, "color": "#111111", "line": {"width": 1, "color": "#ffffff"}}
# Of a row of parts; a rank's rows and its distance to the next are in this unit.
_ROW_PX = 26
_THIN = 0.72
# A phone has one name a line in the legend; it must not scroll.
_LEGEND_PX = 190
_GAP = 0.55


def timeline_panel(
    timeline: Timeline, label: str, hatched: str = "blocked", names: Mapping[str, str] | None = None
) -> Panel:
    """Two rows or more a rank: parts of the step, with hatching where training was blocked on communication, or
    whatever `hatched` is, and below them its calls, with a mark where a bucket's last gradient was there. `names`
    replace the usual ones of parts in the legend."""
    ranks = spread_over_nodes(timeline.ranks, timeline.node_of, MOST_RANKS)
    calls, spans = (_of_ranks(table, ranks) for table in (timeline.calls, timeline.spans))
    _place(calls)
    rows = max((call["row"] for call in calls), default=0) + 1
    thick = 1.0 if rows == 1 else _THIN
    pitch = 1 + rows * thick + _GAP
    top = {rank: place * pitch for place, rank in enumerate(ranks)}
    traces: list[Trace] = []
    for name in (part.removesuffix("_s") for part in STEP_PARTS):
        colour, meaning = PART[f"{name}_s"]
        meaning = (names or {}).get(f"{name}_s", meaning)
        _bars(traces, [span for span in spans if span["name"] == name], top, meaning, {"color": colour})
    pattern = {"shape": "/", "size": 6, "solidity": 0.25, "fgcolor": "#333333", "bgcolor": "rgba(255,255,255,0.6)"}
    _bars(traces, [span for span in spans if span["name"] == WAIT], top, hatched, {"pattern": pattern})
    ops = dict.fromkeys(str(call["op"]) for call in calls)
    for op in ops:
        _calls(traces, [call for call in calls if call["op"] == op], top, thick, op)
    _ready(traces, calls, top)
    name_case(traces, label)
    ends = [*(span["end_s"] for span in spans), *(call["start_s"] + call["duration_s"] for call in calls)]
    middle = 1 + (rows * thick - 1) / 2
    figure = lay_out(
        traces,
        "since the first rank began the step (ms)",
        "",
        barmode="overlay",
        bargap=0,
        legend={"traceorder": "normal", "maxheight": _LEGEND_PX},
        uniformtext={"minsize": 10, "mode": "hide"},
        xaxis={"range": [0, 1.01e3 * max(end for end in ends if format.known(end))]},
        yaxis={
            "tickvals": [top[rank] + at for rank in ranks for at in (0.0, middle)],
            "ticktext": [text for rank in ranks for text in (f"rank {rank}", "calls")],
            "range": [pitch * len(ranks) - _GAP / 2 - 0.5, -0.65],
            "showgrid": False,
        },
    )
    return Panel(
        label,
        figure,
        round(130 + 20 * len(ops) + _ROW_PX * pitch * len(ranks)),
        wide=True,
        case=timeline.case_id,
    )


def _of_ranks(rows: Sequence[Row], ranks: Sequence[int]) -> list[Row]:
    return [dict(row) for row in rows if row["rank"] in ranks]


def _place(calls: list[Row]) -> None:
    """Give each call its `row` below its rank's parts, the first that is free when it begins, and whether it is `alone`
    there, covered by nothing else: only then is there room for what is said in it."""
    free: dict[int, list[float]] = {}
    longest: dict[tuple[int, int], Row] = {}
    for call in sorted(calls, key=_in_turn):
        begin, end, ends = _begin(call), _end(call), free.setdefault(call["rank"], [])
        row = min(next((at for at, until in enumerate(ends) if until <= begin), len(ends)), MOST_ROWS - 1)
        if row == len(ends):
            ends.append(end)
        ends[row] = max(ends[row], end)
        before = longest.setdefault((call["rank"], row), call)
        call["row"], call["alone"] = row, True
        if before is not call and begin < _end(before):
            before["alone"] = call["alone"] = False
        if end > _end(before):
            longest[call["rank"], row] = call


def _in_turn(call: Row) -> tuple[float, int]:
    return (call["start_s"] if format.known(call["start_s"]) else math.inf), call["seq"]


def _begin(call: Mapping[Any, Any]) -> float:
    return float(call["start_s"] if format.known(call["start_s"]) else call["made_s"])


def _end(call: Mapping[Any, Any]) -> float:
    return _begin(call) + (float(call["duration_s"]) if format.known(call["duration_s"]) else 0.0)


def _bars(
    traces: list[Trace], spans: Sequence[Row], top: Mapping[int, float], meaning: str, marker: dict[str, Any]
) -> None:
    if spans:
        begins, lengths = ([span["start_s"] for span in spans], [span["end_s"] - span["start_s"] for span in spans])
        hovers = [
            f"rank {span['rank']}, {meaning}: {format.milliseconds(length)},<br>from {_moment(span['start_s'])}"
            for span, length in zip(spans, lengths, strict=True)
        ]
        marker = {"line": {"width": 0}} | marker
        heights = [top[span["rank"]] for span in spans]
        traces.append(bars(heights, begins, lengths, meaning, hovers, width=0.9, marker=marker))


def _calls(traces: list[Trace], calls: Sequence[Row], top: Mapping[int, float], thick: float, op: str) -> None:
    """Add bars of one operation's calls, and a tick at the start of calls whose end is unknown."""
    colour = colour_of(OP, op)
    timed = [call for call in calls if format.known(call["duration_s"])]
    open_ended = [call for call in calls if not format.known(call["duration_s"])]
    if timed:
        begins, lengths = ([call[name] for call in timed] for name in ("start_s", "duration_s"))
        # The line tells neighbours apart.
        look = {"width": 0.86 * thick, "marker": {"color": colour, "line": {"width": 1, "color": "rgba(0,0,0,0.35)"}}}
        look |= {"text": [_inside(call) if call["alone"] else "" for call in timed], "textposition": "inside"}
        look |= {"insidetextanchor": "start", "textangle": 0}
        hovers = [_hover(call) for call in timed]
        traces.append(bars(_heights(timed, top, thick), begins, lengths, plain(op), hovers, **look))
    if open_ended:
        marker = {"symbol": "line-ns", "size": 12, "line": {"width": 2, "color": colour}}
        shown = not any(trace["name"] == "end unknown" for trace in traces)
        more = {"legendgroup": "end unknown", "showlegend": shown}
        begins, hovers = [1e3 * _begin(call) for call in open_ended], [_hover(call) for call in open_ended]
        traces.append(marks(begins, _heights(open_ended, top, thick), "end unknown", hovers, marker, **more))


def _heights(calls: Sequence[Row], top: Mapping[int, float], thick: float) -> list[float]:
    return [top[call["rank"]] + 0.5 + thick * (call["row"] + 0.5) for call in calls]


def _ready(traces: list[Trace], calls: Sequence[Row], top: Mapping[int, float]) -> None:
    known = [call for call in calls if format.known(call["ready_s"])]
    if known:
        hovers = [
            f"rank {call['rank']}: bucket {call['bucket']:.0f} is ready,<br>its last gradient came at "
            f"{_moment(call['ready_s'])}"
            for call in known
        ]
        heights = [top[call["rank"]] + 0.5 for call in known]
        traces.append(marks([1e3 * call["ready_s"] for call in known], heights, "bucket ready", hovers, READY))


def _inside(call: Mapping[Any, Any]) -> str:
    size = f"{format.digits(call['bytes'] / MIB, 2)} MiB" if format.known(call["bytes"]) else ""
    return f"bucket {call['bucket']:.0f}, {size}" if format.known(call["bucket"]) else size


def _hover(call: Mapping[Any, Any]) -> str:
    """Operation, algorithm, ranks, bytes, how long, how fast, and when."""
    bucket = [f"bucket {call['bucket']:.0f}"] if format.known(call["bucket"]) else []
    who = [f"rank {call['rank']}: {call['op']} by {short(str(call['algorithm']), 34)}", f"ranks {call['ranks']}"]
    return "<br>".join([plain(", ".join([*who, *bucket])), _amount(call), _when(call)])


def _amount(call: Mapping[Any, Any]) -> str:
    size = format.mebibytes(call["bytes"]) if format.known(call["bytes"]) else "size unknown"
    seconds = call["duration_s"]
    if not format.known(seconds):
        return f"{size}; when it ended is unknown"
    on_bus = call["op"] in OPS
    speed = call["busbw"]
    said = f"{size} in {format.milliseconds(seconds)}"
    return f"{said}: {format.digits(speed)} GB/s{' on the bus' if on_bus else ''}" if format.known(speed) else said


def _when(call: Mapping[Any, Any]) -> str:
    moments: Iterable[tuple[str, Any]] = (("called at", call["made_s"]), ("began at", call["start_s"]))
    return ", ".join(f"{verb} {_moment(second)}" for verb, second in moments if format.known(second))


def _moment(second: float) -> str:
    """A moment of the step: '12.34 ms'; two decimals, so that moments near one another are told apart."""
    return f"{second * 1e3:.2f} ms"
