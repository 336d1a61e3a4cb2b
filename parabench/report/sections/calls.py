"""Sections of single calls in training: DDP's buckets, bus bandwidth, and ranks that others wait for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.environment.nodes import clocks_said
from parabench.analysis.session import SessionData
from parabench.analysis.step.bandwidth import QUESTION, alone_table, training_bandwidth
from parabench.analysis.step.calls import bucket_table, call_table
from parabench.analysis.step.stragglers import NEARLY_ALL, straggler_table
from parabench.plan.case import ranks_in_words
from parabench.plan.collective_case import size_text
from parabench.report.figures.figures import (
    Panel,
    Trace,
    bars,
    cut,
    lay_out,
    listed,
    marks,
    name_bars,
    name_case,
    plain,
)
from parabench.report.figures.timeline import READY
from parabench.report.palette import SHARE, algorithm_style
from parabench.report.sections.step import why_nothing
from parabench.report.spec import WORDED, Column, Section, table_of
from parabench.store.record import MIB

# The most bucket sizes that are drawn, the most buckets in a figure, and the most parameters named in a cell.
_MOST_CASES, _MOST_BUCKETS, _MOST_NAMES = 4, 24, 2
_BY_ORDER = ", by the schedule"
_HATCH = {"shape": "/", "size": 5, "solidity": 0.45, "fgcolor": SHARE["exposed_s"][0], "bgcolor": "rgba(0,0,0,0)"}
# The parts of a step at whose start a bucket's times begin.
_SINCE = {"backward": "backward", "forward_backward": "the first forward"}


def bucket_section(seen: SessionData) -> Section | None:
    """Return the section of DDP's buckets; None if no case used DDP."""
    buckets = bucket_table(seen)
    if why_nothing(seen) or (buckets.empty and not (seen.counted["strategy"] == "ddp").any()):
        return None
    cases = seen.cases.set_index("case_id")
    of_case = {str(case_id): rows for case_id, rows in buckets.groupby("case_id", sort=False)}
    drawn = cases.loc[list(of_case)].drop_duplicates("bucket_mib").head(_MOST_CASES)
    table = table_of(
        "Buckets of each case; times in ms since the start of the part under “Counted from”",
        (
            Column("Case", "label"),
            Column("Parameters", lambda row: _names(row["parameters"])),
            Column("Counted from", lambda row: _SINCE.get(row["since"])),
            Column("Bucket", "bucket", WORDED),
            Column("MiB", "bytes", "mib"),
            Column("Ready", "ready_s", "ms"),
            Column("Called", "made_s", "ms"),
            Column("Started", "start_s", "ms"),
            Column("Took", "duration_s", "ms"),
            Column("Wire", "wire_s", "ms"),
            Column("Exposed", "exposed_s", "ms"),
            Column("GB/s", "busbw", "digits"),
        ),
        buckets.assign(label=buckets["case_id"].map(cases["label"])),
    )  # fmt: skip
    return Section(
        "buckets",
        "DDP buckets",
        "When each bucket is ready (triangle) and reduced, in the fastest case of each bucket size, up to "
        f"{_MOST_CASES}. Overlapped communication is hatched, exposed communication solid.",
        "No bucket reduction was recorded: unknown, not zero.",
        (table,),
        panels=[_bucket_panel(of_case[case_id], cases["label"][case_id]) for case_id in drawn.index],
        reading="A bucket is reduced as soon as its last gradient is there. Exposed time is drawn at the end, where "
        "DDP waits. Values are medians over steps and ranks, then over launches. With gradient accumulation, times "
        f"count from the first forward. At most {_MOST_BUCKETS} buckets are drawn.",
    )


def _bucket_panel(buckets: pd.DataFrame, label: str) -> Panel:
    """Return the figure of a case's buckets in the order of reduction, with the exposed part at the end."""
    rows = buckets.head(_MOST_BUCKETS)
    # Exposed and total times are kept, and the end follows, because medians of the three may not add up.
    overlapped = (rows["duration_s"] - rows["exposed_s"]).clip(lower=0)
    places = list(range(len(rows)))
    hovers = [
        f"bucket {row['bucket']}, {_mebibytes(row['bytes'])}: ready at {format.milliseconds(row['ready_s'])},"
        f"<br>reduced from {format.milliseconds(row['start_s'])}, in {format.milliseconds(row['duration_s'])},"
        f"<br>{format.milliseconds(row['exposed_s'])} of it exposed"
        for row in rows.to_dict("records")
    ]
    look = {"line": {"width": 0}, "color": SHARE["exposed_s"][0]}
    hatched = look | {"pattern": _HATCH}
    traces = [
        bars(places, rows["start_s"], overlapped, "overlapped", hovers, width=0.6, marker=hatched),
        bars(places, rows["start_s"] + overlapped, rows["exposed_s"], "exposed", hovers, width=0.6, marker=look),
        marks(rows["ready_s"] * 1e3, places, "ready", hovers, READY),
    ]
    name_case(traces, label)
    figure = lay_out(
        traces,
        f"since {_SINCE[str(rows['since'].iloc[0])]} began (ms)",
        "",
        barmode="overlay",
        legend={"traceorder": "normal"},
        xaxis={"rangemode": "tozero"},
        yaxis=name_bars(
            f"{bucket}: {_mebibytes(size)}" for bucket, size in zip(rows["bucket"], rows["bytes"], strict=True)
        ),
    )
    return Panel(label, figure, 130 + 34 * len(rows), case=str(rows["case_id"].iloc[0]))


def _mebibytes(count: float) -> str:
    return f"{format.digits(count / MIB, 2)} MiB"


def _names(parameters: list[str] | None) -> str:
    """Return '12: head.weight … stem.bias', in the order in which their gradients come."""
    if not parameters:
        return format.UNKNOWN
    ends = parameters if len(parameters) <= _MOST_NAMES else [parameters[0], "…", parameters[-1]]
    return f"{len(parameters)}: {' '.join(ends)}"


def bandwidth_section(seen: SessionData) -> Section | None:
    """Return the section of the bus bandwidth of calls, next to the store's microbenchmarks."""
    if why_nothing(seen):
        return None
    alone = alone_table(seen.results.whole_store)
    table = training_bandwidth(seen, seen.once(call_table), alone)
    place = {case: row for row, case in enumerate(seen.cases["case_id"])}
    table["case_ids"] = [sorted(ids, key=place.__getitem__) for ids in table["case_ids"]]
    table["case_id"] = ["|".join(ids) for ids in table["case_ids"]]
    rows = table_of(
        "Bus bandwidth by operation, algorithm and size, in GB/s",
        (
            Column("Operation", "op"),
            Column("Algorithm", lambda row: row["algorithm"] + f", {row['node']} ranks a node" * (row["node"] > 0)),
            Column("dtype", "dtype"),
            Column("Ranks", lambda row: ranks_in_words(row["group_size"], row["nodes"]).replace(" ranks", ""), WORDED),
            Column("MiB", "bytes", "mib"),
            Column("Calls", "calls", "count"),
            Column("In training", "busbw", "digits"),
            Column("Launches", lambda row: f"{format.digits(row['low'])} to {format.digits(row['high'])}", WORDED),
            Column("Alone", lambda row: row["why"] or format.digits(row["alone"]), WORDED),
            Column("Share", "share", "percent"),
        ),
        table,
    )  # fmt: skip
    lead = ""
    if len(share := table["share"].dropna()):
        lead = (
            f"In training, collectives reach {format.percent(share.median())} of their microbenchmark bus bandwidth "
            f"(median of {format.count(len(share), 'comparison')}; {format.percent(share.min())} to "
            f"{format.percent(share.max())})."
        )
    source = (
        "Dotted, open marks: the microbenchmark of this store."
        if len(alone)
        else "This store has no microbenchmark: run parabench collectives into the same folder."
    )
    return Section(
        "bandwidth",
        "Bus bandwidth: training vs microbenchmark",
        f"Bus bandwidth as nccl-tests defines it; higher is better. {source}",
        "No collective of several ranks was recorded with its start and end on all of them.",
        (rows,),
        panels=_bandwidth_panels(table, alone, seen.labels),
        lead=lead,
        reading="A call is timed from when its last rank starts, so late ranks do not look like slow links. Each "
        "number is over the calls of all cases that made them, selected or not. A microbenchmark is compared only "
        "within the sizes it measured.",
    )


def _bandwidth_panels(table: pd.DataFrame, alone: pd.DataFrame, labels: Mapping[str, str]) -> list[Panel]:
    """Return a figure for each operation, number of ranks and number of nodes: bandwidth in training against size.

    Open marks and dots show the microbenchmark, in the color of the algorithm.
    """
    panels = []
    measured = dict(iter(alone.groupby(QUESTION, sort=False)))
    figures: Any = table.groupby(["op", "group_size", "nodes"], sort=False)
    for (op, ranks, nodes), group in figures:
        traces: list[Trace] = []
        for (algorithm, dtype, device, node), own in group.groupby(["algorithm", "dtype", "device", "node"]):
            of_algorithm = group[group["algorithm"] == algorithm]
            parts = [algorithm, dtype if group["dtype"].nunique() > 1 else ""]
            parts.append(f"{node} ranks a node" if of_algorithm["node"].nunique() > 1 else "")
            name = cut(", ".join(filter(None, parts)), 34)
            look = algorithm_style(algorithm)
            group_of = {"legendgroup": f"{algorithm} {dtype} {device} {node}"}
            marker = {"size": 8, "symbol": look.symbol, "color": look.color}
            hover = {"hovertemplate": "%{hovertext}<extra>%{fullData.name}</extra>"}
            texts = [_bandwidth_hover(row, labels) for row in own.to_dict("records")]
            # No line joins the marks, which are of several cases.
            own_cases = {"customdata": own["case_id"].to_list()}
            traces.append(
                marks(own["bytes"], listed(own["busbw"]), name, texts, marker, **hover, **own_cases, **group_of)
            )
            theirs = measured.get((op, algorithm, ranks, dtype, device, node, nodes))
            if theirs is not None:
                more: dict[str, Any] = group_of | {
                    "meta": "|".join(dict.fromkeys("|".join(own["case_id"]).split("|"))),
                    "mode": "lines+markers",
                    "line": {"color": look.color, "dash": "dot", "width": 1.5},
                    "hovertemplate": "%{hovertext}: %{y:.3~g} GB/s<extra>%{fullData.name}</extra>",
                }
                sizes = [size_text(int(size)) for size in theirs["bytes"]]
                marker = {"size": 8, "symbol": f"{look.symbol}-open"}
                y = listed(theirs["busbw"])
                traces.append(marks(theirs["bytes"], y, f"{name}, alone", sizes, marker, **more))
        figure = lay_out(
            traces,
            "size of the whole buffer",
            "bus bandwidth (GB/s)",
            xaxis=_size_axis([size for trace in traces for size in trace["x"]]),
            yaxis={"rangemode": "tozero"},
        )
        panels.append(Panel(f"{op}, {ranks_in_words(ranks, nodes)}", figure, 340 + 10 * len(traces)))
    return panels


def _bandwidth_hover(row: dict[Any, Any], labels: Mapping[str, str]) -> str:
    first, *others = row["case_ids"]
    alone = "" if row["why"] else f",<br>{format.percent(row['share'])} of {format.digits(row['alone'])} GB/s alone"
    return (
        f"<b>{plain(labels[first])}</b>{f' and {len(others)} more' if others else ''}<br>"
        f"{_mebibytes(row['bytes'])}: {format.digits(row['busbw'])} GB/s, {format.count(row['calls'], 'call')}{alone}"
    )


def _size_axis(sizes: list[float]) -> dict[str, Any]:
    """Return a logarithmic axis from a power of two to another, with six ticks or fewer."""
    low, high = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))
    ticks = [2**power for power in range(low, high + 1, max(1, math.ceil((high - low) / 5)))]
    return {
        "type": "log",
        "tickvals": ticks,
        "ticktext": [size_text(tick) for tick in ticks],
        "range": [math.log10(2**low) - 0.05, math.log10(2**high) + 0.05],
    }


def straggler_section(seen: SessionData) -> Section | None:
    """Return the section of the rank that the others wait for, and how long."""
    if why_nothing(seen):
        return None
    rows = seen.once(straggler_table)
    table = table_of(
        "Straggler of each case",
        (
            Column("Case", "label"),
            Column("Rank", lambda row: row["who"].removeprefix("rank ") + _BY_ORDER * row["by_schedule"], WORDED),
            Column("Last in, of steps", "share", "percent"),
            Column("Blocked per step, ms", "waited_s", "ms"),
            Column("Blocked, of the step", "waited_share", "percent"),
            Column("Launches that agree", lambda row: f"{row['agreeing']}/{row['launches']}", WORDED),
        ),
        rows,
    )  # fmt: skip
    by_schedule = rows["by_schedule"].astype(bool)
    lead = _straggler(rows[~by_schedule])
    if by_schedule.any():
        lead += " In a pipeline the schedule itself makes one rank the last: the first stage is the last in backward."
    clocks = clocks_said(
        seen.facts[at] for at in seen.counted.loc[seen.counted["case"].isin(rows["case_id"]), "launch_id"]
    )
    return Section(
        "stragglers",
        "Stragglers",
        "A straggler enters the collectives last and blocks the other ranks until then.",
        "No rank was blocked by one that came later.",
        (table,),
        lead=lead.strip(),
        reading="A collective starts to move data when its last rank has entered it. Blocked is the time of the rank "
        "that waited longest for the straggler in a step, the median over instrumented steps."
        + (f" {clocks[0].upper()}{clocks[1:]}: which rank is last by less is unknown." if clocks else ""),
    )


def _straggler(rows: pd.DataFrame) -> str:
    """Return which straggler costs most, or that no rank is one."""
    if rows.empty:
        return ""
    always = rows[(rows["share"] >= NEARLY_ALL) & (rows["agreeing"] == rows["launches"])]
    if always.empty:
        return f"No straggler: in no case is the same rank last in {format.percent(NEARLY_ALL)} of the steps or more."
    worst = always.iloc[int(always["waited_share"].argmax())]
    return (
        f"{worst['label']}: {worst['who']} is last in {format.percent(worst['share'])} of the steps and blocks the "
        f"others for {format.milliseconds(worst['waited_s'])} per step ({format.percent(worst['waited_share'])})."
        + (f" {len(always)} of {format.count(len(rows), 'case')} have a straggler." if len(rows) > 1 else "")
    )
