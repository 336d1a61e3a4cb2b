"""Sections of single calls in training: DDP's buckets, bus bandwidth, and ranks that others wait for."""

from __future__ import annotations

from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.environment.nodes import clocks_said
from parabench.analysis.session import SessionData
from parabench.analysis.step.bandwidth import alone_table, training_bandwidth
from parabench.analysis.step.calls import bucket_table, call_table
from parabench.analysis.step.stragglers import NEARLY_ALL, straggler_table
from parabench.report.figures.anatomy import MOST_BUCKETS, SINCE_WORDS, bandwidth_panels, bucket_panel
from parabench.report.sections.step import why_nothing
from parabench.report.spec import DASH, MOST_ROWS, WORDED, Column, Section, case_table, table_of

# Bucket sizes that are drawn.
_MOST_CASES = 4
_BY_SCHEDULE = (
    " In a pipeline the schedule itself makes one rank the last: the first stage ends backward after all others."
)
_BY_ORDER = ", by the schedule"
# Names of parameters in a cell.
_MOST_NAMES = 2


def bucket_section(seen: SessionData) -> Section | None:
    """DDP's buckets; None where nothing could have any."""
    if why_nothing(seen):
        return None
    buckets = bucket_table(seen)
    if buckets.empty:
        # Whoever measured no DDP does not miss them.
        return _no_buckets() if (seen.counted["strategy"] == "ddp").any() else None
    cases = seen.cases.set_index("case_id")
    of_case = {str(case_id): rows for case_id, rows in buckets.groupby("case_id", sort=False)}
    drawn = cases.loc[list(of_case)].drop_duplicates("bucket_mib").head(_MOST_CASES)
    label = cases["label"]
    cut = any(len(of_case[case_id]) > MOST_BUCKETS for case_id in drawn.index)
    in_turns = (buckets["since"] == "forward_backward").any()
    table = case_table(
        "Buckets of each case; times in ms since the start of the part under “Counted from”",
        (
            Column("Case", lambda row: label[row["case_id"]]),
            Column("Parameters", lambda row: _names(row["parameters"])),
            Column("Counted from", lambda row: SINCE_WORDS.get(row["since"], DASH)),
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
        buckets,
    )  # fmt: skip
    return Section(
        "buckets",
        "DDP buckets",
        "When each bucket is ready (triangle) and reduced, in the fastest case of each bucket size"
        + (f", up to {_MOST_CASES}" if len(drawn) == _MOST_CASES else "")
        + ". Overlapped communication is hatched, exposed communication solid.",
        "",
        (table,),
        panels=[bucket_panel(of_case[case_id], label[case_id]) for case_id in drawn.index],
        reading="A bucket is reduced as soon as its last gradient is there. Exposed time is drawn at the end, where "
        "DDP waits. Values are medians over steps and ranks, then over launches."
        + (
            " With gradient accumulation, times count from the first forward: when the last backward began is not "
            "known."
            if in_turns
            else ""
        )
        + (f" The first {MOST_BUCKETS} buckets are drawn." if cut else ""),
    )


def _no_buckets() -> Section:
    return Section("buckets", "DDP buckets", "", "No bucket reduction was recorded: unknown, not zero.")


def _names(parameters: list[str] | None) -> str:
    """'12: head.weight … stem.bias', in the order in which their gradients come."""
    if not parameters:
        return format.UNKNOWN
    ends = parameters if len(parameters) <= _MOST_NAMES else [parameters[0], "…", parameters[-1]]
    return f"{len(parameters)}: {' '.join(ends)}"


def _algorithm(row: dict[Any, Any]) -> str:
    return f"{row['algorithm']}, {row['node']} ranks a node" if row["node"] else str(row["algorithm"])


def _ranks(row: dict[Any, Any]) -> str:
    return str(row["group_size"]) + (f" on {row['nodes']} nodes" if row["nodes"] > 1 else "")


def bandwidth_section(seen: SessionData) -> Section | None:
    """Bus bandwidth of the calls, and what the store's microbenchmarks reached."""
    if why_nothing(seen):
        return None
    alone = alone_table(seen.results.whole_store)
    table = training_bandwidth(seen, seen.once(call_table), alone)
    places = {case: row for row, case in enumerate(seen.cases["case_id"])}
    listed = table.head(MOST_ROWS).to_dict("records")
    table_of_page = table_of(
        "Bus bandwidth by operation, algorithm and size, in GB/s",
        (
            Column("Operation", "op"),
            Column("Algorithm", _algorithm),
            Column("dtype", "dtype"),
            Column("Ranks", _ranks, WORDED),
            Column("MiB", "bytes", "mib"),
            Column("Calls", "calls", "count"),
            Column("In training", "busbw", "digits"),
            Column("Launches", lambda row: f"{format.digits(row['low'])} to {format.digits(row['high'])}", WORDED),
            Column("Alone", lambda row: row["why"] or format.digits(row["alone"]), WORDED),
            Column("Share", lambda row: None if row["why"] else row["share"], "percent"),
        ),
        listed,
        note=f"Listed are {MOST_ROWS} of {len(table):,} rows; the store has all." if len(table) > MOST_ROWS else "",
        of=tuple(tuple(sorted(places[case] for case in row["case_ids"])) for row in listed),
    )
    lead = ""
    if len(share := table["share"].dropna()):
        lead = (
            f"In training, collectives reach {format.percent(share.median())} of their microbenchmark bus bandwidth "
            f"(median of {format.count(len(share), 'comparison')}; {format.percent(share.min())} to "
            f"{format.percent(share.max())})."
        )
    return Section(
        "bandwidth",
        "Bus bandwidth: training vs microbenchmark",
        "Bus bandwidth as nccl-tests defines it; higher is better. "
        + (
            "Dotted, open marks: the microbenchmark of this store."
            if len(alone)
            else "This store has no microbenchmark: run parabench collectives into the same folder."
        ),
        "No collective of several ranks was recorded with its start and end on all of them.",
        (table_of_page,) if len(table) else (),
        panels=bandwidth_panels(table, alone, places, list(map(str, seen.cases["label"]))),
        lead=lead,
        reading="A call is timed from when its last rank starts, so late ranks do not look like slow links. Each "
        "number is over the calls of all cases that made them, selected or not. A microbenchmark is compared only "
        "within the sizes it measured.",
    )


def straggler_section(seen: SessionData) -> Section | None:
    """Which rank the others are blocked by, and how long."""
    if why_nothing(seen):
        return None
    rows = seen.once(straggler_table)
    table = case_table(
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
    )
    return Section(
        "stragglers",
        "Stragglers",
        "A straggler enters the collectives last and blocks the other ranks until then.",
        "No rank was blocked by one that came later.",
        (table,) if table.rows else (),
        lead=_late(rows),
        reading="A collective starts to move data when its last rank has entered it. Blocked is the time of the rank "
        "that waited longest for the straggler in a step, the median over instrumented steps." + _clocks(seen, rows),
    )


def _clocks(seen: SessionData, rows: pd.DataFrame) -> str:
    """Who comes last is told from clocks of several nodes, where there are some."""
    good = seen.counted.loc[seen.counted["case"].isin(rows["case_id"]), "launch_id"]
    said = clocks_said(seen.facts[at] for at in good)
    return f" {said[0].upper()}{said[1:]}: which rank is last by less is unknown." if said else ""


def _late(rows: pd.DataFrame) -> str:
    """Who is late always, who costs most; else that it is chance. Of pipelines that it is no rank's fault."""
    by_schedule = rows["by_schedule"].astype(bool)
    said = _late_by_itself(rows[~by_schedule])
    return (said + (_BY_SCHEDULE if by_schedule.any() else "")).strip()


def _late_by_itself(rows: pd.DataFrame) -> str:
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
