"""Sections of single calls in training: DDP's buckets, bus bandwidth, and ranks that others wait for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.environment.nodes import clocks_said
from parabench.analysis.session import SessionData
from parabench.analysis.step.bandwidth import QUESTION, alone_table, training_bandwidth
from parabench.analysis.step.calls import bucket_table
from parabench.analysis.step.stragglers import NEARLY_ALL, always_last, straggler_table
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
from parabench.report.palette import OVERLAP_HATCH, SHARE, algorithm_style
from parabench.report.sections.step import why_nothing
from parabench.report.spec import WORDED, Column, Section, table_of
from parabench.store.record import MIB
from parabench.store.results import records

# The most bucket sizes that are drawn, and the most buckets in a figure.
_MOST_CASES, _MOST_BUCKETS = 4, 24
# The parts of a step at whose start a bucket's times begin.
_SINCE = {"backward": "backward", "forward_backward": "the first forward"}


def bucket_section(seen: SessionData) -> Section | None:
    """Return the section of DDP's buckets; None if no case used DDP."""
    buckets = bucket_table(seen)
    if why_nothing(seen) or (buckets.empty and not (seen.counted["strategy"] == "ddp").any()):
        return None
    cases = seen.cases_by_id
    drawn = cases.loc[list(buckets["case_id"].unique())].drop_duplicates("bucket_mib").head(_MOST_CASES)
    table = table_of(
        "Buckets of each case; times in ms since the start of the part under “Counted from”",
        (
            Column("Case", "label"),
            Column("Parameters", lambda row: _names(row["parameters"])),
            Column("Counted from", lambda row: _SINCE[row["since"]]),
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
    )
    return Section(
        "buckets",
        "DDP buckets",
        "When each bucket is ready (triangle) and reduced, in the fastest case of each bucket size, up to "
        f"{_MOST_CASES}. Overlapped communication is hatched, exposed communication solid.",
        "No bucket reduction was recorded: unknown, not zero.",
        (table,),
        panels=[_buckets(buckets[buckets["case_id"] == case], cases["label"][case]) for case in drawn.index],
        reading="A bucket is reduced as soon as its last gradient is there. Exposed time is drawn at the end, where "
        "DDP waits. Values are medians over steps and ranks, then over launches. With gradient accumulation, times "
        f"count from the first forward. At most {_MOST_BUCKETS} buckets are drawn.",
    )


def _buckets(rows: pd.DataFrame, label: str) -> Panel:
    """Return the figure of a case's buckets in the order of reduction, with the exposed part at the end."""
    rows = rows.head(_MOST_BUCKETS)
    # The end is computed from exposed and total time, because medians of the three may not add up.
    overlapped = (rows["duration_s"] - rows["exposed_s"]).clip(lower=0)
    places, sizes = list(range(len(rows))), [_mebibytes(size) for size in rows["bytes"]]
    hovers = [
        f"bucket {row['bucket']}, {size}: ready at {format.milliseconds(row['ready_s'])},"
        f"<br>reduced from {format.milliseconds(row['start_s'])}, in {format.milliseconds(row['duration_s'])},"
        f"<br>{format.milliseconds(row['exposed_s'])} of it exposed"
        for row, size in zip(records(rows), sizes, strict=True)
    ]
    look = {"line": {"width": 0}, "color": SHARE["exposed_s"][0]}
    hatched, end = look | {"pattern": OVERLAP_HATCH}, rows["start_s"] + overlapped
    traces = [
        bars(places, rows["start_s"], overlapped, "overlapped", hovers, width=0.6, marker=hatched),
        bars(places, end, rows["exposed_s"], "exposed", hovers, width=0.6, marker=look),
        marks(rows["ready_s"] * 1e3, places, "ready", hovers, READY),
    ]
    name_case(traces, label)
    names = name_bars(f"{bucket}: {size}" for bucket, size in zip(rows["bucket"], sizes, strict=True))
    figure = lay_out(
        traces,
        f"since {_SINCE[str(rows['since'].iloc[0])]} began (ms)",
        "",
        barmode="overlay",
        legend={"traceorder": "normal"},
        xaxis={"rangemode": "tozero"},
        yaxis=names,
    )
    return Panel(label, figure, 130 + 34 * len(rows), case=str(rows["case_id"].iloc[0]))


def _mebibytes(count: float) -> str:
    return f"{format.digits(count / MIB, 2)} MiB"


def _names(parameters: list[str] | None) -> str:
    """Return '12: head.weight … stem.bias', in the order of the gradients."""
    if not parameters:
        return format.UNKNOWN
    return f"{len(parameters)}: {' … '.join(dict.fromkeys((parameters[0], parameters[-1])))}"


def bandwidth_section(seen: SessionData) -> Section | None:
    """Return the section of the bus bandwidth of calls, next to the database's microbenchmarks."""
    if why_nothing(seen):
        return None
    alone = alone_table(seen.results.whole_store)
    table = training_bandwidth(seen, alone)
    order = list(seen.labels).index
    table["case_ids"] = [sorted(ids, key=order) for ids in table["case_ids"]]
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
    )
    lead = ""
    if len(share := table["share"].dropna()):
        lead = (
            f"In training, collectives reach {format.percent(share.median())} of their microbenchmark bus bandwidth "
            f"(median of {format.count(len(share), 'comparison')}; {format.percent(share.min())} to "
            f"{format.percent(share.max())})."
        )
    source = "This store has no microbenchmark: run parabench collectives into the same folder."
    if len(alone):
        source = "Dotted, open marks: the microbenchmark of this store."
    return Section(
        "bandwidth",
        "Bus bandwidth: training vs microbenchmark",
        f"Bus bandwidth as nccl-tests defines it; higher is better. {source}",
        "No collective of several ranks was recorded with its start and end on all of them.",
        (rows,),
        panels=_bandwidths(table, alone, seen.labels),
        lead=lead,
        reading="A call is timed from when its last rank starts, so late ranks do not look like slow links. Each "
        "number is over the calls of all cases that made them, selected or not. A microbenchmark is compared only "
        "within the sizes it measured.",
    )


def _bandwidths(table: pd.DataFrame, alone: pd.DataFrame, labels: Mapping[str, str]) -> list[Panel]:
    """Return a figure of bandwidth against size for each operation, number of ranks and number of nodes.

    Marks are training, without a line because they are of several cases. Open marks with dots are the microbenchmark.
    """
    panels, measured = [], dict(iter(alone.groupby(QUESTION)))
    figures: Any = table.groupby(["op", "group_size", "nodes"], sort=False)
    for (op, ranks, nodes), group in figures:
        traces: list[Trace] = []
        several_sizes = group.loc[group["node"] > 0, "node"].nunique() > 1
        for question, own in group.groupby(QUESTION):
            names: dict[str, Any] = dict(zip(QUESTION, question, strict=True))
            parts = [names["algorithm"], names["dtype"] if group["dtype"].nunique() > 1 else ""]
            parts.append(f"{names['node']} ranks a node" if several_sizes and names["node"] else "")
            name = cut(", ".join(filter(None, parts)), 34)
            style = algorithm_style(names["algorithm"])
            same: dict[str, Any] = {"legendgroup": name}
            hover = {"hovertemplate": "%{hovertext}<extra>%{fullData.name}</extra>"}
            marker = {"size": 8, "symbol": style.symbol, "color": style.color}
            texts, ids = _hovers(own, labels), own["case_id"].to_list()
            own_marks = marks(own["bytes"], listed(own["busbw"]), name, texts, marker, customdata=ids, **hover, **same)
            traces.append(own_marks)
            if (theirs := measured.get(question)) is not None:
                same |= {"meta": "|".join(dict.fromkeys(case for ids in own["case_ids"] for case in ids))}
                same |= {"mode": "lines+markers", "line": {"color": style.color, "dash": "dot", "width": 1.5}}
                same |= {"hovertemplate": "%{hovertext}: %{y:.3~g} GB/s<extra>%{fullData.name}</extra>"}
                marker, sizes = {"size": 8, "symbol": f"{style.symbol}-open"}, list(map(size_text, theirs["bytes"]))
                traces.append(marks(theirs["bytes"], listed(theirs["busbw"]), f"{name}, alone", sizes, marker, **same))
        axis = _size_axis(size for trace in traces for size in trace["x"])
        zero = {"rangemode": "tozero"}
        figure = lay_out(traces, "size of the whole buffer", "bus bandwidth (GB/s)", xaxis=axis, yaxis=zero)
        panels.append(Panel(f"{op}, {ranks_in_words(ranks, nodes)}", figure, 340 + 10 * len(traces)))
    return panels


def _hovers(rows: pd.DataFrame, labels: Mapping[str, str]) -> list[str]:
    return [
        f"<b>{plain(format.listed((labels[case] for case in row['case_ids']), most=1))}</b><br>"
        f"{_mebibytes(row['bytes'])}: {format.digits(row['busbw'])} GB/s, {format.count(row['calls'], 'call')},<br>"
        + (f"alone: {row['why'] or format.digits(row['alone']) + ' GB/s'}")
        for row in records(rows)
    ]


def _size_axis(sizes: Iterable[float]) -> dict[str, Any]:
    """Return a logarithmic axis from a power of two to another, with six ticks or fewer."""
    powers = [math.log2(size) for size in sizes]
    low, high = math.floor(min(powers)), math.ceil(max(powers))
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
            Column("Rank", lambda row: row["who"][len("rank ") :] + ", by the schedule" * row["by_schedule"], WORDED),
            Column("Last in, of steps", "share", "percent"),
            Column("Blocked per step, ms", "waited_s", "ms"),
            Column("Blocked, of the step", "waited_share", "percent"),
            Column("Launches that agree", lambda row: f"{row['agreeing']}/{row['launches']}", WORDED),
        ),
        rows,
    )
    lead, found = "", rows[always_last(rows)]
    if len(found):
        worst = found.iloc[int(found["waited_share"].argmax())]
        lead = (
            f"{worst['label']}: {worst['who']} is last in {format.percent(worst['share'])} of the steps and blocks the "
            f"others for {format.milliseconds(worst['waited_s'])} per step ({format.percent(worst['waited_share'])}). "
            + f"{len(found)} of {format.count(len(rows), 'case')} have a straggler."
            * (len(rows) > 1)
        )
    elif not rows["by_schedule"].all():
        share = format.percent(NEARLY_ALL)
        lead = f"No straggler: in no case is the same rank last in {share} of the steps or more."
    if rows["by_schedule"].any():
        lead += " In a pipeline the schedule itself makes one rank the last: the first stage is the last in backward."
    launches = seen.counted.loc[seen.counted["case"].isin(rows["case_id"]), "launch_id"]
    clocks = clocks_said(seen.facts[at] for at in launches)
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
