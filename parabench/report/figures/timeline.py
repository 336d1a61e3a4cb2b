"""Timelines of one step: what each rank computed, and below it what it communicated, when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd

from parabench.analysis.collectives.bus import bus_factor
from parabench.analysis.environment.nodes import spread_over_nodes
from parabench.analysis.step.timeline import Timeline
from parabench.analysis.text import format
from parabench.plan.collective_case import OPS
from parabench.report.data.bars import PART
from parabench.report.figures.figures import Panel, Trace, lay_out, listed, name_case, plain, short
from parabench.report.palette import colour_of
from parabench.store.metrics import STEP_PARTS
from parabench.store.record import GB, MIB, WAIT

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


def timeline_panel(timeline: Timeline, label: str) -> Panel:
    """Two rows or more a rank: parts of the step, with hatching where training stood still for communication, and below
    them its calls, with a mark where a bucket's last gradient was there."""
    ranks = spread_over_nodes(timeline.ranks, timeline.node_of, MOST_RANKS)
    calls = timeline.calls[timeline.calls["rank"].isin(ranks)]
    calls = calls.assign(row=_rows(calls)).astype({"row": int})
    calls = calls.assign(alone=_alone(calls))
    rows = int(calls["row"].max()) + 1 if len(calls) else 1
    thick = 1.0 if rows == 1 else _THIN
    pitch = 1 + rows * thick + _GAP
    top = {rank: place * pitch for place, rank in enumerate(ranks)}
    traces: list[Trace] = []
    spans = timeline.spans[timeline.spans["rank"].isin(ranks)]
    for name in (part.removesuffix("_s") for part in STEP_PARTS):
        colour, meaning = PART[f"{name}_s"]
        _bars(traces, spans[spans["name"] == name], top, meaning, {"color": colour})
    pattern = {"shape": "/", "size": 6, "solidity": 0.25, "fgcolor": "#333333", "bgcolor": "rgba(255,255,255,0.6)"}
    _bars(traces, spans[spans["name"] == WAIT], top, "stands still", {"pattern": pattern})
    for op in dict.fromkeys(calls["op"]):
        _calls(traces, calls[calls["op"] == op], top, thick, str(op))
    _ready(traces, calls, top)
    name_case(traces, label)
    ends = [spans["end_s"].max(), (calls["start_s"] + calls["duration_s"]).max()]
    middle = 1 + (rows * thick - 1) / 2
    figure = lay_out(
        traces,
        "since the first rank began the step (ms)",
        "",
        barmode="overlay",
        bargap=0,
        legend={"traceorder": "normal", "maxheight": _LEGEND_PX},
        uniformtext={"minsize": 10, "mode": "hide"},
        xaxis={"range": [0, 1.01e3 * max(end for end in ends if format.known(end))], "zeroline": False},
        yaxis={
            "tickvals": [top[rank] + at for rank in ranks for at in (0.0, middle)],
            "ticktext": [text for rank in ranks for text in (f"rank {rank}", "calls")],
            "range": [pitch * len(ranks) - _GAP / 2 - 0.5, -0.65],
            "showgrid": False,
            "zeroline": False,
        },
    )
    return Panel(
        label,
        figure,
        round(130 + 20 * calls["op"].nunique() + _ROW_PX * pitch * len(ranks)),
        wide=True,
        case=timeline.case_id,
    )


def _rows(calls: pd.DataFrame) -> pd.Series[int]:
    """The row of each call below its rank's parts: the first that is free when it begins."""
    chosen: dict[Any, int] = {}
    for _, own in calls.groupby("rank"):
        free: list[float] = []
        for index, call in _in_turn(own):
            begin, end = _begin(call), _end(call)
            row = next((at for at, since in enumerate(free) if since <= begin), len(free))
            row = min(row, MOST_ROWS - 1)
            if row == len(free):
                free.append(end)
            free[row] = max(free[row], end)
            chosen[index] = row
    return pd.Series(chosen, index=calls.index, dtype=int)


def _alone(calls: pd.DataFrame) -> pd.Series[bool]:
    """Whether nothing else in its row covers a call: only then is there room for what is said in it."""
    covered: set[Any] = set()
    for _, own in calls.groupby(["rank", "row"]):
        before: Any = None
        until = float("-inf")
        for index, call in _in_turn(own):
            if _begin(call) < until:
                covered |= {before, index}
            if _end(call) > until:
                before, until = index, _end(call)
    return pd.Series([index not in covered for index in calls.index], index=calls.index, dtype=bool)


def _in_turn(calls: pd.DataFrame) -> Iterator[tuple[Any, Mapping[Any, Any]]]:
    """(index, call) in the order in which they began."""
    own = calls.sort_values(["start_s", "seq"])
    return zip(own.index, own[["made_s", "start_s", "duration_s"]].to_dict("records"), strict=True)


def _begin(call: Mapping[Any, Any]) -> float:
    return float(call["start_s"] if format.known(call["start_s"]) else call["made_s"])


def _end(call: Mapping[Any, Any]) -> float:
    return _begin(call) + (float(call["duration_s"]) if format.known(call["duration_s"]) else 0.0)


def _bars(
    traces: list[Trace], spans: pd.DataFrame, top: Mapping[int, float], meaning: str, marker: dict[str, Any]
) -> None:
    if spans.empty:
        return
    lengths = spans["end_s"] - spans["start_s"]
    traces.append(
        {
            "type": "bar",
            "y": [top[rank] for rank in spans["rank"]],
            "x": listed(lengths * 1e3),
            "base": listed(spans["start_s"] * 1e3),
            "width": 0.9,
            "orientation": "h",
            "name": meaning,
            "marker": {"line": {"width": 0}} | marker,
            "customdata": [
                f"rank {rank}, {meaning}: {format.milliseconds(length)},<br>from {_moment(start)}"
                for rank, length, start in zip(spans["rank"], lengths, spans["start_s"], strict=True)
            ],
            "hovertemplate": "%{customdata}<extra></extra>",
        }
    )


def _calls(traces: list[Trace], calls: pd.DataFrame, top: Mapping[int, float], thick: float, op: str) -> None:
    """Bars of one operation's calls; a tick where it began, of those whose end nobody saw."""
    colour = colour_of(OP, op)
    timed = calls[calls["duration_s"].notna()]
    open_ended = calls[calls["duration_s"].isna()]
    if len(timed):
        rows = timed.to_dict("records")
        traces.append(
            {
                "type": "bar",
                "y": _heights(timed, top, thick),
                "x": listed(timed["duration_s"] * 1e3),
                "base": listed(timed["start_s"] * 1e3),
                "width": 0.86 * thick,
                "orientation": "h",
                "name": plain(op),
                # The line tells neighbours apart.
                "marker": {"color": colour, "line": {"width": 1, "color": "rgba(0,0,0,0.35)"}},
                "text": [_said_inside(call) if call["alone"] else "" for call in rows],
                "textposition": "inside",
                "insidetextanchor": "start",
                "textangle": 0,
                "customdata": [_hover(call) for call in rows],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    if len(open_ended):
        rows = open_ended.to_dict("records")
        traces.append(
            {
                "type": "scatter",
                "y": _heights(open_ended, top, thick),
                "x": [1e3 * _begin(call) for call in rows],
                "mode": "markers",
                "name": "end unknown",
                "legendgroup": "end unknown",
                "showlegend": not any(trace["name"] == "end unknown" for trace in traces),
                "marker": {"symbol": "line-ns", "size": 12, "line": {"width": 2, "color": colour}},
                "customdata": [_hover(call) for call in rows],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )


def _heights(calls: pd.DataFrame, top: Mapping[int, float], thick: float) -> list[float]:
    return [top[rank] + 0.5 + thick * (row + 0.5) for rank, row in zip(calls["rank"], calls["row"], strict=True)]


def _ready(traces: list[Trace], calls: pd.DataFrame, top: Mapping[int, float]) -> None:
    known = calls[calls["ready_s"].notna()]
    if known.empty:
        return
    traces.append(
        {
            "type": "scatter",
            "y": [top[rank] + 0.5 for rank in known["rank"]],
            "x": listed(known["ready_s"] * 1e3),
            "mode": "markers",
            "name": "bucket ready",
            "marker": READY,
            "customdata": [
                f"rank {rank}: bucket {bucket:.0f} is ready,<br>its last gradient came at {_moment(at)}"
                for rank, bucket, at in zip(known["rank"], known["bucket"], known["ready_s"], strict=True)
            ],
            "hovertemplate": "%{customdata}<extra></extra>",
        }
    )


def _said_inside(call: Mapping[Any, Any]) -> str:
    size = f"{format.digits(call['bytes'] / MIB, 2)} MiB"
    return f"bucket {call['bucket']:.0f}, {size}" if format.known(call["bucket"]) else size


def _hover(call: Mapping[Any, Any]) -> str:
    """Operation, algorithm, ranks, bytes, how long, how fast, and when."""
    bucket = [f"bucket {call['bucket']:.0f}"] if format.known(call["bucket"]) else []
    who = [f"rank {call['rank']}: {call['op']} by {short(str(call['algorithm']), 34)}", f"ranks {call['ranks']}"]
    return "<br>".join([plain(", ".join([*who, *bucket])), _amount(call), _when(call)])


def _amount(call: Mapping[Any, Any]) -> str:
    size, seconds = format.mebibytes(call["bytes"]), call["duration_s"]
    if not format.known(seconds):
        return f"{size}; when it ended is unknown"
    on_bus = call["op"] in OPS
    speed = call["bytes"] / seconds / GB * bus_factor(str(call["op"]), int(call["group_size"])) if seconds else None
    said = f"{size} in {format.milliseconds(seconds)}"
    return f"{said}: {format.digits(speed)} GB/s{' on the bus' if on_bus else ''}" if format.known(speed) else said


def _when(call: Mapping[Any, Any]) -> str:
    moments: Iterable[tuple[str, Any]] = (("called at", call["made_s"]), ("began at", call["start_s"]))
    return ", ".join(f"{verb} {_moment(second)}" for verb, second in moments if format.known(second))


def _moment(second: float) -> str:
    """A moment of the step: '12.34 ms'; two decimals, so that moments near one another are told apart."""
    return f"{second * 1e3:.2f} ms"
