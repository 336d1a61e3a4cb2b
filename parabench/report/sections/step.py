"""Sections of where a step's time goes: exposed and overlapped communication, the timeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.environment.nodes import clocks_said
from parabench.analysis.loop_time import MEAN
from parabench.analysis.pipeline import bubbles
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import EXPOSED_IN, taken_apart
from parabench.analysis.step.calls import call_table
from parabench.analysis.step.timeline import MOST_TIMELINES, Timeline, median_step, timelines
from parabench.metrics import STEP_PARTS
from parabench.report.figures.figures import Panel, measured, unranked
from parabench.report.figures.timeline import MOST_RANKS, timeline_panel
from parabench.report.figures.usage import shares, step_parts
from parabench.report.palette import PART
from parabench.report.spec import FORMATS, MARKED, WORDED, Column, Section, Table, nothing_to_draw, table_of
from parabench.strategies import Layout, entry_of

_ms = FORMATS["ms"]
# The most cases whose timeline is in the details of their case.
MOST_SPARE = 12
SHARES = "Compute, exposed and overlapped communication"


def why_nothing(seen: SessionData) -> str:
    """Return why no step of several ranks was taken apart; empty if one was."""
    if len(seen.rows("span")):
        alone = "One rank does not communicate. Measure more ranks to see the cost of communication."
        return "" if (seen.counted["world_size"] > 1).any() else alone
    if seen.counted.empty:
        return f"{seen.why_none}, so no step was taken apart."
    asked = (seen.session.plan.get("protocol") or {}).get("instrumented")
    if asked is None:
        return "This session has no instrumented steps: an older version recorded it."
    if asked == 0:
        return "This session was run without instrumented steps (--instrumented 0)."
    return "No instrumented step was recorded: unknown, not zero."


def shares_section(seen: SessionData) -> Section:
    """Return the section of compute, exposed and overlapped communication, or of why no step was taken apart."""
    if nothing := why_nothing(seen):
        return Section("anatomy", SHARES, empty=nothing)
    cases = seen.once(taken_apart)
    several = cases[cases["world_size"] > 1]
    within = {name: column for name, column in EXPOSED_IN.items() if cases[column].notna().any()}
    table = table_of(
        "Steps in ms; ratio: instrumented over timed step",
        (
            MARKED,
            Column("Share", "exposed_share", "percent", format.UNKNOWN),
            Column("Exposed", "exposed_s", "ms"),
            *(Column(f"in {PART[f'{name}_s'][1]}", column, "ms") for name, column in within.items()),
            Column("Overlapped", lambda row: "≥ " * bool(row["unknown_calls"]) + _ms(row["overlapped_s"]), WORDED),
            Column("Compute", "compute_s", "ms"),
            Column("Idle", "idle_s", "ms"),
            Column("Data", "data_s", "ms"),
            Column("Ratio", "instruments_ratio", "ratio", format.UNKNOWN),
        ),
        cases,
    )  # fmt: skip
    ratios = cases["instruments_ratio"].dropna()
    slower = "How much slower instrumented steps are than timed ones is unknown."
    if len(ratios):
        between = f", between {ratios.min():.2f} and {ratios.max():.2f} by case" if len(ratios) > 1 else ""
        slower = f"Instrumented steps took {ratios.median():.2f} times as long as timed ones{between}."
    on_cpu = (
        " On a CPU the backend's threads need a core too: where ranks have none to spare (warnings oversubscribed and "
        "host_busy), overlapped time includes waiting for a core."
    )
    return Section(
        "anatomy",
        SHARES,
        "Exposed communication blocks training; its share of the step is at the end of each bar. Overlapped "
        "communication runs during compute, so it is drawn apart and not added.",
        "No step was taken apart.",
        (table,),
        lead=_exposed_and_overlapped(several),
        panels=shares(seen),
        reading="Idle is time blocked while no collective runs. Of sends and receives only the waiting counts. Values "
        f"are medians over the instrumented steps of the slowest rank, then over launches. {slower} Step "
        "times, the ranking and the parts above come from the timed steps."
        + (" ≥ marks a lower bound: the end of some calls is unknown." if (cases["unknown_calls"] > 0).any() else "")
        + (on_cpu if (several["device"] == "cpu").any() else ""),
    )


def _exposed_and_overlapped(several: pd.DataFrame) -> str:
    """Return the exposed and overlapped shares of the fastest case, and the case with the largest exposed share."""
    known = several[several["exposed_share"].notna()]
    if known.empty:
        return ""
    first, most = known.iloc[0], known.iloc[int(known["exposed_share"].argmax())]
    overlapped = ""
    if first["communication_s"] > 0:
        share = format.percent(first["overlapped_s"] / first["communication_s"])
        if first["overlapped_s"] == 0 and first["unknown_calls"]:
            overlapped = "; how much more is overlapped with compute is unknown"
        else:
            at_least = "at least " if first["unknown_calls"] else ""
            overlapped = f"; {at_least}{share} of the communication is overlapped with compute"
    lead = (
        f"{first['label']}: {format.percent(first['exposed_share'])} of a step "
        f"({format.milliseconds(first['exposed_s'])}) is exposed communication{overlapped}."
    )
    if most["case_id"] != first["case_id"]:
        lead += f" Most exposed: {most['label']}, {format.percent(most['exposed_share'])} of a step."
    return lead


def timeline_section(seen: SessionData) -> Section | None:
    """Return the section of one step of each strategy or algorithm, rank by rank."""
    if why_nothing(seen):
        return None
    calls = seen.once(call_table)
    each, shown = timelines(seen)
    there = {one.case_id for one in shown}
    steps = (median_step(seen, str(case_id)) for case_id in seen.cases["case_id"][:MOST_SPARE] if case_id not in there)
    clocks = clocks_said(seen.facts[one.launch_id] for one in shown)
    return Section(
        "timeline",
        "Timeline of one step",
        f"The median instrumented step of the fastest case of each {each}, up to {MOST_TIMELINES}. Each rank shows the "
        "parts of its step (hatched: blocked on communication), and below them its collectives.",
        "No communication was recorded of any case with several ranks.",
        tuple(_calls(calls, one, seen.labels[one.case_id]) for one in shown),
        panels=[_panel(one, seen.labels) for one in shown],
        spare=tuple(_panel(one, seen.labels) for one in steps if one is not None and len(one.calls)),
        reading="A collective includes the time that it waits for later ranks. A triangle marks a bucket's last "
        f"gradient. All ranks share one clock{f'; {clocks}' if clocks else ''}. At most {MOST_RANKS} ranks are drawn, "
        "of all nodes in turn.",
    )


def _panel(one: Timeline, labels: Mapping[str, str]) -> Panel:
    return timeline_panel(one, f"{labels[one.case_id]}: {format.milliseconds(one.length_s)}")


def _calls(calls: pd.DataFrame, step: Timeline, label: str) -> Table:
    """Return the calls of a timeline, each once for all its ranks, in the order in which a rank makes them."""
    own = calls[(calls["launch_id"] == step.launch_id) & (calls["step"] == step.step)]
    return table_of(
        f"{label}: calls of this step in ms; late: last rank after the first",
        (
            Column("Operation", _operation),
            Column("Algorithm", "algorithm"),
            Column("Ranks", "ranks"),
            Column("Called in", lambda row: str(row["part"]).replace("_", " and ")),
            Column("MiB", "bytes", "mib"),
            Column("Took", "duration_s", "ms"),
            Column("On the wire", "wire_s", "ms"),
            Column("Late", "late_s", "ms"),
            Column("Exposed", "exposed_s", "ms"),
            Column("GB/s", "busbw", "digits"),
        ),
        own.assign(case_id=step.case_id),
    )  # fmt: skip


def _operation(call: dict[Any, Any]) -> str:
    return str(call["op"]) + (f", bucket {call['bucket']:.0f}" if format.known(call["bucket"]) else "")


def parts_section(seen: SessionData) -> Section:
    """Return the section of the parts of the measured steps."""
    rows = measured(seen.cases).dropna(subset=list(STEP_PARTS), how="all")
    how = "medians over the steps of the slowest rank, then over launches; the ranking may use another statistic"
    if set(rows["statistic"]) == {MEAN}:
        how = "means over the steps of the loop on one rank, then over launches"
    return Section(
        "parts",
        "Step breakdown",
        "Parts of the measured steps. Backward includes the communication that it waits for.",
        nothing_to_draw(seen) or "The parts of a step were not recorded.",
        panels=step_parts(seen),
        reading=f"Values are {how}. With micro-batches or accumulation, forward and backward are one part."
        f"{unranked(rows['strategy'])}",
    )


def pipelines_section(seen: SessionData) -> Section | None:
    """Return the section of pipeline bubbles; None if no case is a pipeline."""
    if not any(entry_of(str(strategy)).layout is Layout.PIPELINE for strategy in seen.cases["strategy"].unique()):
        return None
    title = "Pipeline bubbles: theory and measured"
    table = table_of(
        title,
        (
            Column("Case", "label"),
            Column("Schedule", "schedule"),
            Column("Stages", "stages", WORDED),
            Column("Micro-batches", "microbatches", WORDED),
            Column("Theory", "theory", "percent"),
            Column("Measured", "measured", "percent"),
        ),
        bubbles(seen),
        closed=False,
    )
    return Section(
        "pipelines",
        title,
        "The bubble is the share of forward and backward in which a rank computes nothing.",
        nothing_to_draw(seen) or "How busy the stages were was not recorded: unknown, not zero.",
        (table,),
        reading="Measured is the mean over ranks, then the median over launches. Theory assumes equal stages and free "
        "messages; the excess is uneven stages, messages, and ranks that share a core.",
    )
