"""Draw timelines of one step: the parts of the step on each rank, and below them its collectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from parabench.analysis import format
from parabench.analysis.environment.nodes import clocks_text, spread_over_nodes
from parabench.analysis.session import SessionData
from parabench.analysis.step.calls import group_calls
from parabench.analysis.step.timeline import MOST_TIMELINES, Timeline, lanes, timelines
from parabench.metrics import STEP_PARTS
from parabench.report.figures import PART, Panel, Trace, bars, color_of, lay_out, marks, name_case, plain, short
from parabench.report.sections.step import why_nothing
from parabench.report.spec import Column, Section, table_of
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


# One row per call of all its ranks.
_CALLS = (
    Column("Operation", lambda row: row["op"] + (f", bucket {row['bucket']:.0f}" if row["bucket"] >= 0 else "")),
    Column("Algorithm", "algorithm"),
    Column("Ranks", "ranks"),
    Column("Called in", lambda row: row["part"].replace("_", " and ")),
    Column("MiB", "bytes", "mib"),
    Column("Took", "duration_s", "ms"),
    Column("Transfer", "wire_s", "ms"),
    Column("Late", "late_s", "ms"),
    Column("Exposed", "exposed_s", "ms"),
    Column("GB/s", "busbw", "digits"),
)


def timeline_section(seen: SessionData) -> Section | None:
    """Return the section of one step of each strategy or algorithm, rank by rank."""
    if why_nothing(seen):
        return None
    calls, (each, shown) = seen.once(group_calls), timelines(seen)
    clocks = clocks_text(seen.facts[one.launch_id] for one in shown)
    return Section(
        "timeline",
        "Timeline of one step",
        f"The median instrumented step of the fastest configuration of each {each} (at most {MOST_TIMELINES}). Each "
        "rank shows the parts of its step (hatched: blocked on communication), and below them its collectives.",
        "No communication was recorded of any configuration with several ranks.",
        tuple(
            table_of(
                f"{seen.labels[one.case_id]}: calls of this step in ms; late: last rank after the first",
                _CALLS,
                calls[(calls["launch_id"] == one.launch_id) & (calls["step"] == one.step)],
            )
            for one in shown
        ),
        panels=[
            timeline_panel(one, f"{seen.labels[one.case_id]}: {format.milliseconds(one.length_s)}") for one in shown
        ],
        reading="A collective includes the time that it waits for later ranks. A triangle marks a bucket's last "
        f"gradient. All ranks share one clock{f'; {clocks}' if clocks else ''}. At most {MOST_RANKS} ranks are drawn. "
        "`parabench export --trace` writes a step of any configuration for Perfetto.",
    )


def timeline_panel(
    timeline: Timeline, label: str, hatched: str = "blocked", names: Mapping[str, str] | None = None
) -> Panel:
    """Return a figure with the parts of each rank's step, and its calls in one or more rows below them.

    `hatched` is the legend of the time that training was blocked, and `names` replace the names of parts in the legend.
    """
    ranks = spread_over_nodes(timeline.ranks, timeline.node_of, MOST_RANKS)
    spans = [span for span in records(timeline.spans) if span["rank"] in ranks]
    calls = _in_rows([call for call in records(timeline.calls) if call["rank"] in ranks])
    rows = 1 + max((call["row"] for call in calls), default=0)
    thick = 1.0 if rows == 1 else _THIN
    pitch = 1 + rows * thick + _GAP
    top = {rank: place * pitch for place, rank in enumerate(ranks)}
    for call in calls:
        call["y"] = top[call["rank"]] + 0.5 + thick * (call["row"] + 0.5)
    traces = [*_parts(spans, top, hatched, names or {}), *_of_calls(calls, top, thick)]
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
    height = round(130 + 20 * len({call["op"] for call in calls}) + _ROW_PX * pitch * len(ranks))
    return Panel(label, figure, height, wide=True, case=timeline.case_id)


def _in_rows(calls: list[Row]) -> list[Row]:
    """Return the calls by rank and start, with `begin_s`, `end_s` and `row`, their row below the parts, from 0."""
    for call in calls:
        call["begin_s"] = call["start_s"] if format.known(call["start_s"]) else call["made_s"]
        call["end_s"] = call["begin_s"] + (call["duration_s"] if format.known(call["duration_s"]) else 0.0)
    calls.sort(key=lambda call: (call["rank"], call["begin_s"], call["seq"]))
    for _, group in groupby(calls, key=lambda call: call["rank"]):
        own = list(group)
        for call, lane in zip(own, lanes([c["begin_s"] for c in own], [c["end_s"] for c in own]), strict=True):
            call["row"] = min(lane, MOST_ROWS - 1)
    return calls


def _parts(spans: list[Row], top: Mapping[int, float], hatched: str, names: Mapping[str, str]) -> Iterator[Trace]:
    """Yield the bars of each part of the step, and of the blocked time above them."""
    looks: dict[str, tuple[str, dict[str, Any]]] = {
        part.removesuffix("_s"): (names.get(part, PART[part][1]), {"color": PART[part][0]}) for part in STEP_PARTS
    }
    for name, (meaning, marker) in (looks | {WAIT: (hatched, {"pattern": _HATCH})}).items():
        if own := [span for span in spans if span["name"] == name]:
            lengths_s = [span["end_s"] - span["start_s"] for span in own]
            hovers = [
                f"rank {span['rank']}, {meaning}: {format.milliseconds(length_s)},<br>from {_moment(span['start_s'])}"
                for span, length_s in zip(own, lengths_s, strict=True)
            ]
            heights, begins_s = [top[span["rank"]] for span in own], [span["start_s"] for span in own]
            marker = {"line": {"width": 0}} | marker
            yield bars(heights, begins_s, lengths_s, meaning, hovers, width=0.9, marker=marker)


def _of_calls(calls: list[Row], top: Mapping[int, float], thick: float) -> Iterator[Trace]:
    """Yield the bars of each operation, marks of calls with an unknown end, and marks of buckets that are ready."""
    for op in dict.fromkeys(call["op"] for call in calls):
        if own := [call for call in calls if call["op"] == op and format.known(call["duration_s"])]:
            heights, begins_s, lengths_s = ([call[name] for call in own] for name in ("y", "begin_s", "duration_s"))
            # The line separates adjacent calls.
            marker = {"color": color_of(OP, op), "line": {"width": 1, "color": "rgba(0,0,0,0.35)"}}
            # The last row may have calls that overlap, so it has no room for text.
            texts = ["" if call["row"] == MOST_ROWS - 1 else _inside(call) for call in own]
            look: dict[str, Any] = {"width": 0.86 * thick, "marker": marker, "text": texts, "textposition": "inside"}
            look |= {"insidetextanchor": "start", "textangle": 0}
            yield bars(heights, begins_s, lengths_s, plain(op), [*map(_hover, own)], **look)
    if endless := [call for call in calls if not format.known(call["duration_s"])]:
        colors = [color_of(OP, call["op"]) for call in endless]
        tick = {"symbol": "line-ns", "size": 12, "line": {"width": 2, "color": colors}}
        begins_ms, heights = [1e3 * call["begin_s"] for call in endless], [call["y"] for call in endless]
        yield marks(begins_ms, heights, "end unknown", [*map(_hover, endless)], tick)
    if ready := [call for call in calls if format.known(call["ready_s"])]:
        texts = [
            f"rank {call['rank']}: bucket {call['bucket']:.0f} is ready at {_moment(call['ready_s'])}" for call in ready
        ]
        heights = [top[call["rank"]] + 0.5 for call in ready]
        yield marks([1e3 * call["ready_s"] for call in ready], heights, "bucket ready", texts, READY)


def _inside(call: Row) -> str:
    bucket = f"bucket {call['bucket']:.0f}" if format.known(call["bucket"]) else ""
    size = f"{format.digits(call['bytes'] / MIB, 2)} MiB" if format.known(call["bytes"]) else ""
    return ", ".join(filter(None, (bucket, size)))


def _hover(call: Row) -> str:
    """Return the operation, size, duration and start of a call."""
    name = f"rank {call['rank']}: {call['op']} by {short(str(call['algorithm']), 34)}, ranks {call['ranks']}"
    name += f", bucket {call['bucket']:.0f}" if format.known(call["bucket"]) else ""
    size = format.mebibytes(call["bytes"]) if format.known(call["bytes"]) else "size unknown"
    took = f"in {format.milliseconds(call['duration_s'])}" if format.known(call["duration_s"]) else "end unknown"
    return f"{plain(name)}<br>{size} {took},<br>from {_moment(call['begin_s'])}"


def _moment(second: float) -> str:
    """Return '12.34 ms', with two decimals so that adjacent times differ."""
    return f"{second * 1e3:.2f} ms"
