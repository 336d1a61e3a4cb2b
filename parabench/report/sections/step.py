"""Sections about the time of a step: its parts, exposed and overlapped communication, the timeline."""

from __future__ import annotations

import pandas as pd

from parabench.analysis import format
from parabench.analysis.environment.nodes import clocks_said
from parabench.analysis.loop_time import MEAN
from parabench.analysis.pipeline import bubbles
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import EXPOSED_IN, taken_apart
from parabench.analysis.step.calls import group_calls
from parabench.analysis.step.timeline import MOST_TIMELINES, Timeline, median_step, timelines
from parabench.metrics import STEP_PARTS
from parabench.report.figures.figures import Panel, measured, unranked
from parabench.report.figures.timeline import MOST_RANKS, timeline_panel
from parabench.report.figures.usage import shares, step_parts
from parabench.report.palette import PART
from parabench.report.spec import FORMATS, MARKED, WORDED, Column, Section, nothing_to_draw, table_of
from parabench.strategies import Layout, entry_of

_ms = FORMATS["ms"]
# The most cases whose timeline is in the details of their case.
MOST_SPARE = 6


def why_nothing(seen: SessionData) -> str:
    """Return why no step of several ranks was taken apart; empty if one was."""
    if len(seen.rows("span")):
        alone = "One rank does not communicate. Measure more ranks to see the cost of communication."
        return "" if (seen.counted["world_size"] > 1).any() else alone
    if seen.counted.empty:
        return f"{seen.why_none}, so no step was taken apart."
    if (seen.session.plan.get("protocol") or {}).get("instrumented") == 0:
        return "This session was run without instrumented steps (--instrumented 0)."
    return "No instrumented step was recorded: unknown, not zero."


def shares_section(seen: SessionData) -> Section:
    """Return the section of compute, exposed and overlapped communication, or of why no step was taken apart."""
    title = "Compute, exposed and overlapped communication"
    if nothing := why_nothing(seen):
        return Section("anatomy", title, empty=nothing)
    cases = seen.once(taken_apart)
    several = cases[cases["world_size"] > 1]
    table = table_of(
        "Steps in ms; ratio: instrumented over timed step",
        (
            MARKED,
            Column("Share", "exposed_share", "percent", format.UNKNOWN),
            Column("Exposed", "exposed_s", "ms"),
            *(
                Column(f"in {PART[f'{part}_s'][1]}", column, "ms")
                for part, column in EXPOSED_IN.items()
                if cases[column].notna().any()
            ),
            Column("Overlapped", lambda row: "≥ " * bool(row["unknown_calls"]) + _ms(row["overlapped_s"]), WORDED),
            Column("Compute", "compute_s", "ms"),
            Column("Idle", "idle_s", "ms"),
            Column("Data", "data_s", "ms"),
            Column("Ratio", "instruments_ratio", "ratio", format.UNKNOWN),
        ),
        cases,
    )
    ratios = cases["instruments_ratio"].dropna()
    slower = "The cost of the instruments is unknown."
    if len(ratios):
        between = f", between {ratios.min():.2f} and {ratios.max():.2f} by case" if len(ratios) > 1 else ""
        slower = f"Instrumented steps took {ratios.median():.2f} times as long as timed ones{between}."
    lower_bound = " ≥ marks a lower bound: the end of some calls is unknown."
    on_cpu = (
        " On a CPU the backend's threads need a core too. If ranks have none to spare (warnings oversubscribed and "
        "host_busy), overlapped time includes waiting for a core."
    )
    return Section(
        "anatomy",
        title,
        "Exposed communication blocks training; its share of the step is at the end of each bar. Overlapped "
        "communication runs during compute, so it is drawn apart and not added.",
        "No step was taken apart.",
        (table,),
        lead=_exposed_and_overlapped(several.dropna(subset="exposed_share")),
        panels=shares(seen),
        reading="Idle is time blocked while no collective runs. Sends and receives count only while a rank waits for "
        f"them. Values are medians over the instrumented steps of the slowest rank, then over launches. {slower} Step "
        "times, the ranking and the parts above come from the timed steps."
        + lower_bound * bool((cases["unknown_calls"] > 0).any())
        + on_cpu * bool((several["device"] == "cpu").any()),
    )


def _exposed_and_overlapped(known: pd.DataFrame) -> str:
    """Return the exposed and overlapped shares of the fastest case, and the case with the largest exposed share."""
    if known.empty:
        return ""
    first, most = known.iloc[0], known.iloc[int(known["exposed_share"].argmax())]
    lead = (
        f"{first['label']}: {format.percent(first['exposed_share'])} of a step "
        f"({format.milliseconds(first['exposed_s'])}) is exposed communication"
    )
    if first["communication_s"] > 0:
        at_least = "at least " * bool(first["unknown_calls"])
        share = format.percent(first["overlapped_s"] / first["communication_s"])
        lead += f"; {at_least}{share} of the communication is overlapped with compute"
    if most["case_id"] != first["case_id"]:
        lead += f". Most exposed: {most['label']}, {format.percent(most['exposed_share'])} of a step"
    return f"{lead}."


# One row per call of all its ranks.
_CALLS = (
    Column("Operation", lambda row: row["op"] + (f", bucket {row['bucket']:.0f}" if row["bucket"] >= 0 else "")),
    Column("Algorithm", "algorithm"),
    Column("Ranks", "ranks"),
    Column("Called in", lambda row: row["part"].replace("_", " and ")),
    Column("MiB", "bytes", "mib"),
    Column("Took", "duration_s", "ms"),
    Column("On the wire", "wire_s", "ms"),
    Column("Late", "late_s", "ms"),
    Column("Exposed", "exposed_s", "ms"),
    Column("GB/s", "busbw", "digits"),
)


def timeline_section(seen: SessionData) -> Section | None:
    """Return the section of one step of each strategy or algorithm, rank by rank."""
    if why_nothing(seen):
        return None
    calls, (each, shown) = seen.once(group_calls), timelines(seen)
    there = {one.case_id for one in shown}
    others = (median_step(seen, case_id) for case_id in [*seen.labels][:MOST_SPARE] if case_id not in there)
    spare = [step for step in others if step is not None and len(step.calls)]

    def panel(one: Timeline) -> Panel:
        return timeline_panel(one, f"{seen.labels[one.case_id]}: {format.milliseconds(one.length_s)}")

    clocks = clocks_said(seen.facts[one.launch_id] for one in shown)
    return Section(
        "timeline",
        "Timeline of one step",
        f"The median instrumented step of the fastest case of each {each}, up to {MOST_TIMELINES}. Each rank shows the "
        "parts of its step (hatched: blocked on communication), and below them its collectives.",
        "No communication was recorded of any case with several ranks.",
        tuple(
            table_of(
                f"{seen.labels[one.case_id]}: calls of this step in ms; late: last rank after the first",
                _CALLS,
                calls[(calls["launch_id"] == one.launch_id) & (calls["step"] == one.step)],
            )
            for one in shown
        ),
        panels=[panel(one) for one in shown],
        spare=tuple(panel(one) for one in spare),
        reading="A collective includes the time that it waits for later ranks. A triangle marks a bucket's last "
        f"gradient. All ranks share one clock{f'; {clocks}' if clocks else ''}. At most {MOST_RANKS} ranks are drawn, "
        "of all nodes in turn.",
    )


def parts_section(seen: SessionData) -> Section:
    """Return the section of the parts of the measured steps."""
    rows = measured(seen.cases).dropna(subset=list(STEP_PARTS), how="all")
    values = "medians over the steps of the slowest rank, then over launches; the ranking may use another statistic"
    if set(rows["statistic"]) == {MEAN}:
        values = "means over the steps of the loop on one rank, then over launches"
    return Section(
        "parts",
        "Step breakdown",
        "Parts of the measured steps. Backward includes the communication that it waits for.",
        nothing_to_draw(seen) or "The parts of a step were not recorded.",
        panels=step_parts(seen),
        reading=f"Values are {values}. With micro-batches or accumulation, forward and backward are one part."
        f"{unranked(rows['strategy'])}",
    )


def pipelines_section(seen: SessionData) -> Section | None:
    """Return the section of pipeline bubbles; None if no case is a pipeline."""
    if not any(entry_of(str(strategy)).layout is Layout.PIPELINE for strategy in seen.cases["strategy"].unique()):
        return None
    title = "Pipeline bubbles: theory and measured"
    columns = (
        Column("Case", "label"),
        Column("Schedule", "schedule"),
        Column("Stages", "stages", WORDED),
        Column("Micro-batches", "microbatches", WORDED),
        Column("Theory", "theory", "percent"),
        Column("Measured", "measured", "percent"),
    )
    return Section(
        "pipelines",
        title,
        "The bubble is the share of forward and backward without computation on a rank.",
        nothing_to_draw(seen) or "How busy the stages were was not recorded: unknown, not zero.",
        (table_of(title, columns, bubbles(seen), closed=False),),
        reading="Measured is the mean over ranks, then the median over launches. Theory assumes equal stages and free "
        "messages; the excess is uneven stages, messages, and ranks that share a core.",
    )
