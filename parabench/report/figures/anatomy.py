"""Communication inside training: DDP's buckets, and bandwidth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.step.bandwidth import QUESTION
from parabench.analysis.step.timeline import Row
from parabench.plan.case import ranks_in_words
from parabench.plan.collective_case import size_text
from parabench.report.figures.figures import Panel, Trace, bars, lay_out, marks, name_bars, name_case, plain, short
from parabench.report.figures.timeline import READY
from parabench.report.palette import SHARE, algorithm_line, algorithm_symbol
from parabench.store.record import MIB

_HATCH = {"shape": "/", "size": 5, "solidity": 0.45, "fgcolor": SHARE["exposed_s"][0], "bgcolor": "rgba(0,0,0,0)"}
# The parts of a step from whose begin a bucket's moments count, in words.
SINCE_WORDS = {"backward": "backward", "forward_backward": "the first forward"}
# Of more buckets the first are drawn; the table has all.
MOST_BUCKETS = 24


def bucket_panel(buckets: pd.DataFrame, label: str) -> Panel:
    """A case's buckets in the order of reduction, from where their moments count (`SINCE_WORDS`): ready, reduced behind
    compute, and reduced while training is blocked. The exposed part is drawn at the end, where DDP waits."""
    rows = buckets.head(MOST_BUCKETS)
    # Medians need not fit together: what is exposed and how long a bucket takes are kept, and its end follows.
    overlapped = (rows["duration_s"] - rows["exposed_s"]).clip(lower=0)
    places = list(range(len(rows)))
    colour = SHARE["exposed_s"][0]
    hovers = _bucket_hovers(rows)
    pieces: tuple[tuple[str, Any, Any, dict[str, Any]], ...] = (
        ("overlapped", rows["start_s"], overlapped, {"color": colour, "pattern": _HATCH}),
        ("exposed", rows["start_s"] + overlapped, rows["exposed_s"], {"color": colour}),
    )
    traces = [
        bars(places, start, length, name, hovers, width=0.6, marker={"line": {"width": 0}} | marker)
        for name, start, length, marker in pieces
    ]
    traces.append(marks(rows["ready_s"] * 1e3, places, "ready", hovers, READY))
    name_case(traces, label)
    axis = name_bars([f"{row['bucket']}: {_mebibytes(row['bytes'])}" for row in rows.to_dict("records")])
    figure = lay_out(
        traces,
        f"since {SINCE_WORDS[str(rows['since'].iloc[0])]} began (ms)",
        "",
        barmode="overlay",
        legend={"traceorder": "normal"},
        xaxis={"rangemode": "tozero"},
        yaxis=axis,
    )
    return Panel(label, figure, 130 + 34 * len(rows), case=str(rows["case_id"].iloc[0]))


def _bucket_hovers(rows: pd.DataFrame) -> list[str]:
    return [
        f"bucket {row['bucket']}, {_mebibytes(row['bytes'])}: ready at {format.milliseconds(row['ready_s'])},"
        f"<br>reduced from {format.milliseconds(row['start_s'])}, in {format.milliseconds(row['duration_s'])},"
        f"<br>{format.milliseconds(row['exposed_s'])} of it exposed"
        for row in rows.to_dict("records")
    ]


def _mebibytes(count: float) -> str:
    return f"{format.digits(count / MIB, 2)} MiB"


def bandwidth_panels(
    table: pd.DataFrame, alone: pd.DataFrame, places: Mapping[str, int], labels: Sequence[str]
) -> list[Panel]:
    """A panel for each operation, number of ranks and of nodes that they lie on: bandwidth inside training against
    size, filled, and, with open marks and dots, the microbenchmark's, both with the algorithm's colour.
    A point and its trace name the cases whose calls they are of by their `places` in the page's data, which `labels`
    has in that order."""
    panels = []
    figures: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Row]]] = {}
    for point in table.to_dict("records"):
        curves = figures.setdefault(tuple(point[name] for name in ("op", "group_size", "nodes")), {})
        curves.setdefault(tuple(point[name] for name in ("algorithm", "dtype", "device", "node")), []).append(point)
    measured: dict[tuple[Any, ...], list[Row]] = {}
    for point in alone.to_dict("records"):
        measured.setdefault(tuple(point[name] for name in QUESTION), []).append(point)
    for (op, ranks, nodes), group in figures.items():
        traces: list[Trace] = []
        for (algorithm, dtype, device, node), own in sorted(group.items()):
            said = [str(algorithm), *([str(dtype)] if len({curve[1] for curve in group}) > 1 else [])]
            nodes_known = {curve[3] for curve in group if curve[0] == algorithm}
            said += [f"{node} ranks a node"] if len(nodes_known) > 1 else []
            name = plain(short(", ".join(said), 34))
            look = algorithm_line(str(algorithm))
            style: dict[str, Any] = {"legendgroup": f"{algorithm} {dtype} {device} {node}"}
            rows = [sorted(places[case] for case in ids) for ids in (point["case_ids"] for point in own)]
            style["meta"] = {"cases": sorted({row for of_point in rows for row in of_point})}
            symbol = algorithm_symbol(str(algorithm))
            marker = {"size": 8, "symbol": symbol, "color": look["color"]}
            hover = {"hovertemplate": "%{text}<extra>%{fullData.name}</extra>"}
            texts = _bandwidth_hovers(own, rows, labels)
            # These are sizes of several cases, so no line joins them.
            x, y = ([float(point[column]) for point in own] for column in ("bytes", "busbw"))
            traces.append(marks(x, y, name, rows, marker, text=texts, **hover, **style))
            if theirs := measured.get((op, algorithm, ranks, dtype, device, node, nodes), []):
                style |= {"mode": "lines+markers", "line": look | {"dash": "dot", "width": 1.5}}
                hover = {"hovertemplate": "%{customdata}: %{y:.3~g} GB/s<extra>%{fullData.name}</extra>"}
                sizes = [size_text(int(point["bytes"])) for point in theirs]
                marker = {"size": 8, "symbol": f"{symbol}-open"}
                x, y = ([float(point[column]) for point in theirs] for column in ("bytes", "busbw"))
                traces.append(marks(x, y, f"{name}, alone", sizes, marker, **hover, **style))
        figure = lay_out(
            traces,
            "size of the whole buffer",
            "bus bandwidth (GB/s)",
            xaxis=_size_axis([size for trace in traces for size in trace["x"]]),
            yaxis={"rangemode": "tozero"},
        )
        title = f"{op}, {ranks_in_words(int(str(ranks)), int(str(nodes)))}"
        panels.append(Panel(title, figure, 340 + 10 * len(traces)))
    return panels


def _bandwidth_hovers(rows: Sequence[Row], cases: list[list[int]], labels: Sequence[str]) -> list[str]:
    return [
        f"<b>{plain(labels[first])}</b>{f' and {len(others)} more' if others else ''}<br>"
        f"{_mebibytes(row['bytes'])}: {format.digits(row['busbw'])} GB/s, {format.count(row['calls'], 'call')}"
        + (f",<br>{format.percent(row['share'])} of {format.digits(row['alone'])} GB/s alone" if not row["why"] else "")
        for row, (first, *others) in zip(rows, cases, strict=True)
    ]


def _size_axis(sizes: list[float]) -> dict[str, Any]:
    """Logarithmic, from a power of two to another; a tick at six of them at most."""
    low, high = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))
    powers = range(low, high + 1, max(1, math.ceil((high - low) / 5)))
    return {
        "type": "log",
        "tickvals": [2**power for power in powers],
        "ticktext": [size_text(2**power) for power in powers],
        "range": [math.log10(2**low) - 0.05, math.log10(2**high) + 0.05],
    }
