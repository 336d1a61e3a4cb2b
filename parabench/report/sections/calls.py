"""Sections of single calls in training: DDP's buckets, bus bandwidth, and ranks that others wait for."""

from __future__ import annotations

from collections.abc import Mapping
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
from parabench.report.figures.axes import bytes_axis
from parabench.report.figures.figures import (
    FROM_ZERO,
    PARTS_LEGEND,
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


def _mebibytes(count: float) -> str:
    return f"{format.digits(count / MIB, 2)} MiB"


# -- buckets ----------------------------------------------------------------------------------------------------------

_BUCKETS = (
    Column("Configuration", "label"),
    Column("Parameters", lambda row: _names(row["parameters"])),
    Column("Bucket", "bucket", WORDED),
    Column("MiB", "bytes", "mib"),
    Column("Ready", "ready_s", "ms"),
    Column("Started", "start_s", "ms"),
    Column("Took", "duration_s", "ms"),
    Column("Transfer", "wire_s", "ms"),
    Column("Exposed", "exposed_s", "ms"),
    Column("GB/s", "busbw", "digits"),
)


def _names(parameters: list[str] | None) -> str:
    """Return '12: head.weight … stem.bias', in the order of the gradients."""
    if not parameters:
        return format.UNKNOWN
    return f"{len(parameters)}: {' … '.join(dict.fromkeys((parameters[0], parameters[-1])))}"


def bucket_section(seen: SessionData) -> Section | None:
    """Return the section of DDP's buckets; None if no configuration used DDP."""
    buckets = bucket_table(seen)
    if why_nothing(seen) or (buckets.empty and not (seen.counted["strategy"] == "ddp").any()):
        return None
    cases = seen.cases_by_id
    drawn = cases.loc[list(buckets["case_id"].unique())].drop_duplicates("bucket_mib").head(_MOST_CASES)
    rows = buckets.assign(label=buckets["case_id"].map(cases["label"]))
    return Section(
        "buckets",
        "DDP buckets",
        "When each bucket is ready (triangle) and reduced, in the fastest configuration of each bucket size, up to "
        f"{_MOST_CASES}. Overlapped communication is hatched, exposed communication solid.",
        "No bucket reduction was recorded: unknown, not zero.",
        (table_of("Buckets of each configuration; times in ms since the start of backward", _BUCKETS, rows),),
        panels=[_bucket_panel(rows[rows["case_id"] == case].head(_MOST_BUCKETS)) for case in drawn.index],
        reading="A bucket is reduced as soon as its last gradient is there. Exposed time is drawn at the end, where "
        "DDP waits. Values are medians over steps and ranks, then over launches. With gradient accumulation, times "
        f"count from the first forward. At most {_MOST_BUCKETS} buckets are drawn.",
    )


def _bucket_panel(rows: pd.DataFrame) -> Panel:
    """Return the figure of a configuration's buckets in the order of reduction, with the exposed part at the end."""
    # The end is computed from exposed and total time, because medians of the three may not add up.
    overlapped = (rows["duration_s"] - rows["exposed_s"]).clip(lower=0)
    places, sizes = list(range(len(rows))), [_mebibytes(size) for size in rows["bytes"]]
    hovers = [
        f"bucket {row['bucket']}, {size}: ready at {format.milliseconds(row['ready_s'])},"
        f"<br>reduced from {format.milliseconds(row['start_s'])}, in {format.milliseconds(row['duration_s'])},"
        f"<br>{format.milliseconds(row['exposed_s'])} of it exposed"
        for row, size in zip(records(rows), sizes, strict=True)
    ]
    solid: dict[str, Any] = {"line": {"width": 0}, "color": SHARE["exposed_s"][0]}
    hatched, end = solid | {"pattern": OVERLAP_HATCH}, rows["start_s"] + overlapped
    traces = [
        bars(places, rows["start_s"], overlapped, "overlapped", hovers, width=0.6, marker=hatched),
        bars(places, end, rows["exposed_s"], "exposed", hovers, width=0.6, marker=solid),
        marks(rows["ready_s"] * 1e3, places, "ready", hovers, READY),
    ]
    first = rows.iloc[0]
    name_case(traces, first["label"])
    names = name_bars(f"{bucket}: {size}" for bucket, size in zip(rows["bucket"], sizes, strict=True))
    look: dict[str, Any] = {"barmode": "overlay", "legend": PARTS_LEGEND, "xaxis": FROM_ZERO, "yaxis": names}
    figure = lay_out(traces, f"since {_SINCE[first['since']]} began (ms)", "", **look)
    return Panel(first["label"], figure, 130 + 34 * len(rows), case=first["case_id"])


# -- bandwidth --------------------------------------------------------------------------------------------------------

_BANDWIDTHS = (
    Column("Operation", "op"),
    Column("Algorithm", lambda row: row["algorithm"] + f", {row['node']} ranks a node" * (row["node"] > 0)),
    Column("dtype", "dtype"),
    Column("Ranks", lambda row: ranks_in_words(row["group_size"], row["nodes"]).replace(" ranks", ""), WORDED),
    Column("MiB", "bytes", "mib"),
    Column("Calls", "calls", "count"),
    Column("In training", "busbw", "digits"),
    Column("Launches", lambda row: f"{format.digits(row['low'])} to {format.digits(row['high'])}", WORDED),
    Column("Microbenchmark", lambda row: row["why"] or format.digits(row["alone"]), WORDED),
    Column("Share", "share", "percent"),
)


def bandwidth_section(seen: SessionData) -> Section | None:
    """Return the section of the bus bandwidth of calls, next to the database's microbenchmarks."""
    if why_nothing(seen):
        return None
    alone = alone_table(seen.results.whole_store)
    table = training_bandwidth(seen, alone)
    order = list(seen.labels).index
    table["case_ids"] = [sorted(ids, key=order) for ids in table["case_ids"]]
    table["case_id"] = ["|".join(ids) for ids in table["case_ids"]]
    lead = ""
    if len(share := table["share"].dropna()):
        lead = (
            f"In training, collectives reach {format.percent(share.median())} of their microbenchmark bus bandwidth "
            f"(median of {format.count(len(share), 'comparison')}; {format.percent(share.min())} to "
            f"{format.percent(share.max())})."
        )
    source = "This database has no microbenchmark: run parabench collectives into the same folder."
    if len(alone):
        source = "Dotted, open marks: the microbenchmark of this database."
    return Section(
        "bandwidth",
        "Bus bandwidth: training vs microbenchmark",
        f"Bus bandwidth as nccl-tests defines it; higher is better. {source}",
        "No collective of several ranks was recorded with its start and end on all of them.",
        (table_of("Bus bandwidth by operation, algorithm and size, in GB/s", _BANDWIDTHS, table),),
        panels=_bandwidth_panels(table, alone, seen.labels),
        lead=lead,
        reading="A call is timed from when its last rank starts, so late ranks do not look like slow links. Each "
        "number is over the calls of all configurations that made them, selected or not. A microbenchmark is compared "
        "only within the sizes it measured.",
    )


def _bandwidth_panels(table: pd.DataFrame, alone: pd.DataFrame, labels: Mapping[str, str]) -> list[Panel]:
    """Return a figure of bandwidth against size for each operation, number of ranks and number of nodes.

    Marks are training, without a line because they are of several configurations. Open marks with dots are the
    microbenchmark.
    """
    panels, measured = [], dict(iter(alone.groupby(QUESTION)))
    table = table.assign(hover=[_hover(row, labels) for row in records(table)])
    figures: Any = table.groupby(["op", "group_size", "nodes"], sort=False)
    for (op, ranks, nodes), group in figures:
        traces: list[Trace] = []
        for question, own in group.groupby(QUESTION):
            fields: dict[str, Any] = dict(zip(QUESTION, question, strict=True))
            parts = [fields["algorithm"], fields["dtype"] if group["dtype"].nunique() > 1 else ""]
            parts.append(f"{fields['node']} ranks a node" if fields["node"] else "")
            name, style = cut(", ".join(filter(None, parts)), 34), algorithm_style(fields["algorithm"])
            marker = {"size": 8, "symbol": style.symbol, "color": style.color}
            look: dict[str, Any] = {"legendgroup": name, "customdata": own["case_id"].to_list()}
            traces.append(marks(own["bytes"], listed(own["busbw"]), name, own["hover"].to_list(), marker, **look))
            if (theirs := measured.get(question)) is not None:
                texts = [
                    f"{name}, microbenchmark<br>{size_text(size)}: {format.digits(rate)} GB/s"
                    for size, rate in zip(theirs["bytes"], theirs["busbw"], strict=True)
                ]
                cases = dict.fromkeys(case for ids in own["case_ids"] for case in ids)
                look = {"legendgroup": name, "meta": "|".join(cases), "mode": "lines+markers"}
                look |= {"line": {"color": style.color, "dash": "dot", "width": 1.5}}
                marker = {"size": 8, "symbol": f"{style.symbol}-open"}
                title = f"{name}, microbenchmark"
                traces.append(marks(theirs["bytes"], listed(theirs["busbw"]), title, texts, marker, **look))
        axis = bytes_axis(size for trace in traces for size in trace["x"])
        figure = lay_out(traces, "size of the whole buffer", "bus bandwidth (GB/s)", xaxis=axis, yaxis=FROM_ZERO)
        panels.append(Panel(f"{op}, {ranks_in_words(ranks, nodes)}", figure, 340 + 10 * len(traces)))
    return panels


def _hover(row: Mapping[Any, Any], labels: Mapping[str, str]) -> str:
    cases = plain(format.listed((labels[case] for case in row["case_ids"]), most=1))
    rate = f"{_mebibytes(row['bytes'])}: {format.digits(row['busbw'])} GB/s, {format.count(row['calls'], 'call')}"
    alone = row["why"] or f"{format.digits(row['alone'])} GB/s"
    return f"<b>{cases}</b><br>{plain(row['algorithm'])}, {rate},<br>microbenchmark: {alone}"


# -- stragglers -------------------------------------------------------------------------------------------------------

_STRAGGLERS = (
    Column("Configuration", "label"),
    Column("Rank", lambda row: row["who"][len("rank ") :] + ", by the schedule" * row["by_schedule"], WORDED),
    Column("Last in, of steps", "share", "percent"),
    Column("Blocked per step, ms", "waited_s", "ms"),
    Column("Blocked, of the step", "waited_share", "percent"),
    Column("Launches that agree", lambda row: f"{row['agreeing']}/{row['launches']}", WORDED),
)


def straggler_section(seen: SessionData) -> Section | None:
    """Return the section of the rank that the others wait for, and how long."""
    if why_nothing(seen):
        return None
    rows = seen.once(straggler_table)
    launches = seen.counted.loc[seen.counted["case"].isin(rows["case_id"]), "launch_id"]
    clocks = clocks_said(seen.facts[at] for at in launches)
    if clocks:
        clocks = f" {clocks[0].upper()}{clocks[1:]}: which rank is last by less is unknown."
    return Section(
        "stragglers",
        "Stragglers",
        "A straggler enters the collectives last and blocks the other ranks until then.",
        "No rank was blocked by one that came later.",
        (table_of("Straggler of each configuration", _STRAGGLERS, rows),),
        lead=_straggler(rows),
        reading="A collective starts to move data when its last rank has entered it. Blocked is the time of the rank "
        f"that waited longest for the straggler in a step, the median over instrumented steps.{clocks}",
    )


def _straggler(rows: pd.DataFrame) -> str:
    """Return the sentence about the straggler that blocks others for the largest share of a step."""
    found, sentences = rows[always_last(rows)], []
    if len(found):
        worst = found.iloc[int(found["waited_share"].argmax())]
        sentences.append(
            f"{worst['label']}: {worst['who']} is last in {format.percent(worst['share'])} of the steps and blocks the "
            f"others for {format.milliseconds(worst['waited_s'])} per step ({format.percent(worst['waited_share'])})."
        )
        if len(rows) > 1:
            sentences.append(f"{len(found)} of {format.count(len(rows), 'configuration')} have a straggler.")
    elif not rows["by_schedule"].all():
        share = format.percent(NEARLY_ALL)
        sentences.append(f"No straggler: in no configuration is the same rank last in {share} of the steps or more.")
    if rows["by_schedule"].any():
        sentences.append(
            "In a pipeline the schedule itself makes one rank the last: the first stage is the last in backward."
        )
    return " ".join(sentences)
