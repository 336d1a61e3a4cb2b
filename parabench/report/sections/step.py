"""Sections of where a step's time goes: exposed and overlapped communication, the timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from parabench.analysis.environment.nodes import clocks_said
from parabench.analysis.loop_time import MEAN
from parabench.analysis.pipeline import bubbles
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import EXPOSED_IN, taken_apart
from parabench.analysis.step.calls import call_table
from parabench.analysis.step.timeline import MOST_TIMELINES, Timeline, median_step, timelines
from parabench.analysis.text import format
from parabench.metrics import STEP_PARTS
from parabench.report.figures.figures import Panel, measured, unranked
from parabench.report.figures.timeline import MOST_RANKS, timeline_panel
from parabench.report.palette import PART
from parabench.report.spec import FORMATS, MARKED, WORDED, Column, Section, Table, nothing_to_draw, table_of
from parabench.strategies import Layout, entry_of

# Of so many of the fastest cases the page keeps a timeline for the case's details.
MOST_SPARE = 40
# Less overlapped communication than this share of it is said as none.
_NONE = 0.0005
# Where nothing can overlap there is overlapped time all the same: tensor parallel waits for every call at once.
_ON_CPU = (
    " On a CPU the backend's threads need a core too: where ranks have none to spare (warnings oversubscribed and "
    "host_busy), overlapped time includes waiting for a core."
)
SHARES = "Compute, exposed and overlapped communication"


def why_nothing(seen: SessionData) -> str:
    """Why no step was taken apart; empty where some were, of several ranks."""
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
    """Compute, and exposed and overlapped communication; or why no step was taken apart, which is said once."""
    if nothing := why_nothing(seen):
        return Section("anatomy", SHARES, empty=nothing)
    cases = seen.once(taken_apart)
    bounded = (cases["unknown_calls"] > 0).any()
    several = cases[cases["world_size"] > 1]
    on_cpu = (several["device"] == "cpu").any()
    return Section(
        "anatomy",
        SHARES,
        "Exposed communication blocks training; its share of the step is at the end of each bar. Overlapped "
        "communication runs during compute, so it is drawn apart and not added.",
        "No step of the selected cases was taken apart.",
        (_share_table(cases),),
        lead=_exposed_and_overlapped(several),
        draw="shares",
        reading="Idle is time blocked while no collective runs. Of sends and receives only the waiting counts. Values "
        f"are medians over the instrumented steps of the slowest rank, then over launches. {_slower(cases)} Step "
        "times, the ranking and the parts above come from the timed steps."
        + (" ≥ marks a lower bound: the end of some calls is unknown." if bounded else "")
        + (_ON_CPU if on_cpu else ""),
    )


def _slower(cases: pd.DataFrame) -> str:
    """How long instrumented steps took by timed ones."""
    ratios = cases["instruments_ratio"].dropna()
    if ratios.empty:
        return "How much slower instrumented steps are than timed ones is unknown."
    between = f", between {ratios.min():.2f} and {ratios.max():.2f} by case" if len(ratios) > 1 else ""
    return f"Instrumented steps took {ratios.median():.2f} times as long as timed ones{between}."


def _exposed_and_overlapped(several: pd.DataFrame) -> str:
    """The fastest case's exposed and overlapped shares, then whose exposed share is largest."""
    known = several[several["exposed_share"].notna()]
    if known.empty:
        return ""
    first, most = known.iloc[0], known.iloc[int(known["exposed_share"].argmax())]
    said = [
        f"{first['label']}: {format.percent(first['exposed_share'])} of a step "
        f"({format.milliseconds(first['exposed_s'])}) is exposed communication"
    ]
    if first["communication_s"] > 0:
        at_least = "at least " if first["unknown_calls"] else ""
        share = first["overlapped_s"] / first["communication_s"]
        if share >= _NONE:
            said.append(f"; {at_least}{format.percent(share)} of the communication is overlapped with compute")
        elif at_least:
            said.append("; how much more is overlapped with compute is unknown")
        else:
            said.append("; none of the communication is overlapped with compute")
    said.append(".")
    if most["case_id"] != first["case_id"]:
        said.append(f" Most exposed: {most['label']}, {format.percent(most['exposed_share'])} of a step.")
    return "".join(said)


def _share_table(cases: pd.DataFrame) -> Table:
    within = {name: column for name, column in EXPOSED_IN.items() if cases[column].notna().any()}
    return table_of(
        "Steps in ms; ratio: instrumented over timed step",
        (
            MARKED,
            Column("Share", "exposed_share", "percent", format.UNKNOWN),
            Column("Exposed", "exposed_s", "ms"),
            *(Column(f"in {PART[f'{name}_s'][1]}", column, "ms") for name, column in within.items()),
            Column("Overlapped", _overlapped, WORDED),
            Column("Compute", "compute_s", "ms"),
            Column("Idle", "idle_s", "ms"),
            Column("Data", "data_s", "ms"),
            Column("Ratio", "instruments_ratio", "ratio", format.UNKNOWN),
        ),
        cases,
    )  # fmt: skip


def _overlapped(row: dict[Any, Any]) -> str:
    return f"{'≥ ' if row['unknown_calls'] else ''}{FORMATS['ms'](row['overlapped_s'])}"


def timeline_section(seen: SessionData) -> Section | None:
    """One step of each strategy or algorithm, rank by rank."""
    if why_nothing(seen):
        return None
    calls = seen.once(call_table)
    each, shown = timelines(seen)
    there = {one.case_id for one in shown}
    steps = (median_step(seen, str(case_id)) for case_id in seen.cases["case_id"][:MOST_SPARE] if case_id not in there)
    spare = [one for one in steps if one is not None and len(one.calls)]
    most = f", up to {MOST_TIMELINES}" if len(shown) == MOST_TIMELINES else ""
    ranks = max((len(one.ranks) for one in shown), default=0)
    return Section(
        "timeline",
        "Timeline of one step",
        f"The median instrumented step of the fastest case of each {each}{most}. Each rank shows the parts of its step "
        "(hatched: blocked on communication), and below them its collectives.",
        "No communication was recorded of any case with several ranks.",
        tuple(_call_table(calls, one, seen.labels[one.case_id]) for one in shown),
        panels=[_panel(one, seen.labels) for one in shown],
        spare=tuple(_panel(one, seen.labels) for one in spare),
        reading="A collective includes the time that it waits for later ranks. A triangle marks a bucket's last "
        f"gradient. All ranks share one clock{_clocks(seen, shown)}."
        + (f" {_drawn(shown)} {MOST_RANKS} of {ranks} ranks are drawn." if ranks > MOST_RANKS else ""),
    )


def _clocks(seen: SessionData, shown: Sequence[Timeline]) -> str:
    said = clocks_said(seen.facts[one.launch_id] for one in shown)
    return f"; {said}" if said else ""


def _drawn(shown: Sequence[Timeline]) -> str:
    return "Of each node in turn the first," if any(one.node_of for one in shown) else "The first"


def _panel(one: Timeline, labels: Mapping[str, str]) -> Panel:
    return timeline_panel(one, f"{labels[one.case_id]}: {format.milliseconds(one.length_s)}")


def _operation(call: dict[Any, Any]) -> str:
    return str(call["op"]) + (f", bucket {call['bucket']:.0f}" if format.known(call["bucket"]) else "")


def _call_table(calls: pd.DataFrame, step: Timeline, label: str) -> Table:
    """The calls of a timeline, each once for all its ranks, in the order in which a rank makes them."""
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


def parts_section(seen: SessionData) -> Section:
    """The parts of the timed steps."""
    rows = measured(seen.cases).dropna(subset=list(STEP_PARTS), how="all")
    in_turns = (
        " With micro-batches or accumulation, forward and backward are one part."
        if rows["forward_backward_s"].notna().any()
        else ""
    )
    how = (
        "Values are means over the steps of the loop on one rank, then over launches."
        if set(rows["statistic"]) == {MEAN}
        else "Values are medians over the steps of the slowest rank, then over launches; the ranking may use another "
        "statistic."
    )
    recorded = len(rows) > 0
    return Section(
        "parts",
        "Step breakdown",
        "Parts of the timed steps. Backward includes the communication that it waits for.",
        nothing_to_draw(seen)
        or (
            "The parts of the selected cases' steps are unknown."
            if recorded
            else "The parts of a step were not recorded."
        ),
        draw="step_parts" if recorded else "",
        reading=f"{how}{in_turns}{unranked(rows['strategy'])}",
    )  # fmt: skip


def pipelines_section(seen: SessionData) -> Section | None:
    """Only where there are pipelines: what a session has not tried needs no section."""
    if not any(entry_of(str(strategy)).layout is Layout.PIPELINE for strategy in seen.cases["strategy"].unique()):
        return None
    table = table_of(
        "Pipeline bubbles: theory and measured",
        (
            Column("Case", "label"),
            Column("Schedule", "schedule"),
            Column("Stages", "stages", WORDED),
            Column("Micro-batches", "microbatches", WORDED),
            Column("Theory", "theory", "percent"),
            Column("Measured", "measured", "percent"),
        ),
        bubbles(seen.numbers, seen.results.whole),
        closed=False,
    )
    return Section(
        "pipelines",
        "Pipeline bubbles: theory and measured",
        "The bubble is the share of forward and backward in which a rank computes nothing.",
        nothing_to_draw(seen) or "How busy the stages were was not recorded: unknown, not zero.",
        (table,),
        reading="Measured is the mean over ranks, then the median over launches. Theory assumes equal stages and free "
        "messages; the excess is uneven stages, messages, and ranks that share a core.",
    )
