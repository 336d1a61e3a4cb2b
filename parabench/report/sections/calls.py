"""Sections of collective calls in training: DDP's buckets, and bus bandwidth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.session import SessionData
from parabench.analysis.step.calls import QUESTION, alone_table, bucket_table, training_bandwidth
from parabench.plan.case import ranks_in_words
from parabench.plan.collective_case import size_text
from parabench.report.figures import (
    FROM_ZERO,
    OVERLAP_HATCH,
    PARTS_LEGEND,
    SHARE,
    Panel,
    Trace,
    algorithm_style,
    bars,
    cut,
    lay_out,
    marks,
    name_bars,
    name_case,
)
from parabench.report.sections.step import why_nothing
from parabench.report.sections.timeline import READY
from parabench.report.spec import WORDED, Column, Section, table_of
from parabench.store.record import MIB

# -- buckets ----------------------------------------------------------------------------------------------------------

# The most bucket sizes that are drawn, and the most buckets in a figure.
_MOST_CASES, _MOST_BUCKETS = 4, 24
# The parts of a step at whose start a bucket's times begin.
_SINCE = {"backward": "backward", "forward_backward": "the first forward"}
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
    """Return the number of a bucket's parameters, the first and the last, as in '12: head.weight … stem.bias'."""
    if not parameters:
        return format.UNKNOWN
    return f"{len(parameters)}: {' … '.join(dict.fromkeys((parameters[0], parameters[-1])))}"


def bucket_section(seen: SessionData) -> Section | None:
    """Return the section of DDP's buckets; None if no configuration used DDP."""
    buckets = bucket_table(seen)
    if why_nothing(seen) or (buckets.empty and not (seen.counted["strategy"] == "ddp").any()):
        return None
    cases = seen.cases_by_id.loc[list(buckets["case_id"].unique())]
    drawn = cases.drop_duplicates("bucket_mib").head(_MOST_CASES)
    rows = buckets.assign(label=buckets["case_id"].map(seen.labels))
    return Section(
        "buckets",
        "DDP buckets",
        "When each bucket is ready (triangle) and reduced, in the fastest configuration of each bucket size (at "
        f"most {_MOST_CASES}). Overlapped communication is hatched, exposed communication solid.",
        "No bucket reduction was recorded: unknown, not zero.",
        (table_of("Buckets of each configuration; times in ms since the start of backward", _BUCKETS, rows),),
        panels=[_bucket_panel(rows[rows["case_id"] == case].head(_MOST_BUCKETS)) for case in drawn.index],
        reading="A bucket is reduced when its last gradient is there. Exposed time is drawn at the end, because DDP "
        "waits there. Values are medians over the steps of the slowest rank, then over launches. With gradient "
        f"accumulation, times start at the first forward. At most {_MOST_BUCKETS} buckets are drawn.",
    )


def _bucket_panel(rows: pd.DataFrame) -> Panel:
    """Return the figure of a configuration's buckets in the order of reduction, with the exposed part at the end."""
    first, places = rows.iloc[0], list(range(len(rows)))
    # The end is computed from exposed and total time, because medians of the three may not add up.
    overlapped = (rows["duration_s"] - rows["exposed_s"]).clip(lower=0)
    names = [
        f"{bucket}: {format.digits(size / MIB, 2)} MiB"
        for bucket, size in rows[["bucket", "bytes"]].itertuples(index=False, name=None)
    ]
    solid: dict[str, Any] = {"line": {"width": 0}, "color": SHARE["exposed_s"][0]}

    def texts(seconds: pd.Series, what: str) -> list[str]:
        return [what.format(name, format.milliseconds(each)) for name, each in zip(names, seconds, strict=True)]

    traces = [
        bars(places, begin, seconds, name, texts(seconds, f"{{}}: {{}} {name}"), width=0.6, marker=marker)
        for name, begin, seconds, marker in (
            ("overlapped", rows["start_s"], overlapped, solid | {"pattern": OVERLAP_HATCH}),
            ("exposed", rows["start_s"] + overlapped, rows["exposed_s"], solid),
        )
    ]
    traces.append(marks(rows["ready_s"] * 1e3, places, "ready", texts(rows["ready_s"], "{}: ready at {}"), READY))
    name_case(traces, first["label"])
    look: dict[str, Any] = {"barmode": "overlay", "legend": PARTS_LEGEND, "xaxis": FROM_ZERO, "yaxis": name_bars(names)}
    figure = lay_out(traces, f"since {_SINCE[first['since']]} began (ms)", "", **look)
    return Panel(first["label"], figure, 130 + 34 * len(rows), case=first["case_id"])


# -- bandwidth --------------------------------------------------------------------------------------------------------


def _algorithm_name(row: Mapping[str, Any]) -> str:
    ranks = f", {format.count(int(row['node']), 'rank')} per node" if row["node"] > 0 else ""
    return f"{row['algorithm']}{ranks}"


_BANDWIDTHS = (
    Column("Operation", "op"),
    Column("Algorithm", _algorithm_name),
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
    table["case_id"] = ["|".join(sorted(ids, key=order)) for ids in table["case_ids"]]
    source = "To compare with a microbenchmark, run `parabench collectives` with the same --out folder."
    if len(alone):
        source = "Dotted, open marks: the microbenchmark of this database."
    measured, panels = dict(iter(alone.groupby(QUESTION))), []
    figures: Any = table.groupby(["op", "group_size", "nodes"], sort=False)
    for (op, ranks, nodes), own in figures:
        panels.append(_bandwidth_panel(f"{op}, {ranks_in_words(ranks, nodes)}", own, measured))
    return Section(
        "bandwidth",
        "Bus bandwidth: training vs microbenchmark",
        f"Bus bandwidth as nccl-tests defines it; higher is better. {source}",
        "No collective of several ranks was recorded with its start and end on all of them.",
        (table_of("Bus bandwidth by operation, algorithm and size, in GB/s", _BANDWIDTHS, table),),
        panels=panels,
        reading="The time of a call starts when its last rank starts, so late ranks do not look like slow links. "
        "Numbers include the calls of all configurations, regardless of filters. Sizes outside the range of the "
        "microbenchmark are not compared.",
    )


def _bandwidth_panel(title: str, group: pd.DataFrame, measured: dict[Any, pd.DataFrame]) -> Panel:
    """Return the figure of bandwidth against size: marks of training, and dotted lines of the microbenchmark."""
    traces: list[Trace] = []
    for question, own in group.groupby(QUESTION):
        fields: dict[str, Any] = dict(zip(QUESTION, question, strict=True))
        text = _algorithm_name(fields) + (f", {fields['dtype']}" if group["dtype"].nunique() > 1 else "")
        name, style = cut(text, 34), algorithm_style(fields["algorithm"])
        look: dict[str, Any] = {"legendgroup": name, "customdata": own["case_id"].to_list()}
        marker = {"size": 8, "symbol": style.symbol, "color": style.color}
        drawn = [(own, name, marker, look)]
        if (alone := measured.get(question)) is not None:
            cases = dict.fromkeys(case for ids in own["case_ids"] for case in ids)
            look = {"legendgroup": name, "meta": "|".join(cases), "mode": "lines+markers"}
            look |= {"line": {"color": style.color, "dash": "dot", "width": 1.5}}
            marker = {"size": 8, "symbol": f"{style.symbol}-open"}
            drawn.append((alone, f"{name}, microbenchmark", marker, look))
        for rows, text, marker, look in drawn:
            pairs = zip(rows["bytes"], rows["busbw"], strict=True)
            hovers = [f"{text}, {format.mebibytes(size)}: {format.digits(rate)} GB/s" for size, rate in pairs]
            traces.append(marks(rows["bytes"], rows["busbw"], text, hovers, marker, **look))
    return over_sizes(title, traces, 340 + 10 * len(traces))


def over_sizes(title: str, traces: list[Trace], height: int) -> Panel:
    """Return the figure of bus bandwidth against size, with eight ticks or fewer at powers of two."""
    powers = [math.log2(size) for trace in traces for size in trace["x"]]
    low, high = math.floor(min(powers)), math.ceil(max(powers))
    ticks = [2**power for power in range(low, high + 1, max(1, math.ceil((high - low) / 7)))]
    axis = {"type": "log", "tickvals": ticks, "ticktext": [*map(size_text, ticks)]}
    figure = lay_out(traces, "size of the whole buffer", "bus bandwidth (GB/s)", xaxis=axis, yaxis=FROM_ZERO)
    return Panel(title, figure, height)
