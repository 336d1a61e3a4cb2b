"""Sections of the time of a step: its parts, exposed and overlapped communication, stragglers, pipelines, and NCCL."""

from __future__ import annotations

from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.environment.nodes import clocks_text
from parabench.analysis.launch_number import MEAN
from parabench.analysis.session import SessionData
from parabench.analysis.step.breakdown import bubbles, case_breakdown
from parabench.analysis.step.nccl import choices, inspected, wiring
from parabench.analysis.step.stragglers import NEARLY_ALL, straggler_table
from parabench.report.cases import page_cases
from parabench.report.figures import (
    FROM_ZERO,
    OVERLAP_HATCH,
    PART,
    PARTS_LEGEND,
    SHARE,
    Panel,
    by_work,
    case_bars,
    in_rows,
    listed,
    titled,
)
from parabench.report.spec import FORMATS, MARKED, WORDED, Column, Section, nothing_to_draw, table_of
from parabench.strategies import Layout, entry_of


def why_nothing(seen: SessionData) -> str:
    """Return the reason why no step breakdown of several ranks is known; empty if one is."""
    if len(seen.rows("span")):
        alone = "One rank does not communicate. Measure more ranks to see the cost of communication."
        return "" if (seen.counted["world_size"] > 1).any() else alone
    if seen.counted.empty:
        return f"{seen.why_none}, so no step was taken apart."
    if (seen.session.plan.get("protocol") or {}).get("instrumented") == 0:
        return "This session was run without instrumented steps (--instrumented 0)."
    return "No instrumented step was recorded: unknown, not zero."


# -- the parts of measured steps --------------------------------------------------------------------------------------


def parts_section(seen: SessionData) -> Section:
    """Return the section of the parts of the measured steps."""
    cases = seen.once(page_cases).dropna(subset="step_time_s").dropna(subset=[*PART], how="all")
    values = "Medians over the steps of the slowest rank, then over launches. The ranking may use another statistic."
    if set(cases["statistic"]) == {MEAN}:
        values = "Means over the steps of the loop on one rank, then over launches."
    return Section(
        "parts",
        "Step breakdown",
        "Parts of the measured steps. Backward includes the communication that it waits for.",
        nothing_to_draw(seen) or "The parts of a step were not recorded.",
        panels=[_parts(own) for own in by_work(cases)],
        reading=f"{values} With micro-batches or accumulation, forward and backward are one part.",
    )


def _parts(own: pd.DataFrame) -> Panel:
    parts = own[[*PART]].astype(float).dropna(axis="columns", how="all")
    whole, traces = parts.sum(axis="columns"), []
    for part, seconds in parts.items():
        color, name = PART[str(part)]
        traces.append(case_bars(own, 1e3 * seconds, name, color, _shares(name, seconds, whole)))
    look: dict[str, Any] = {"barmode": "stack", "bargap": 0.35, "legend": PARTS_LEGEND}
    return in_rows(titled(own), own["shown"], "median time of a step (ms)", traces, head=110, least=2, **look)


def _shares(name: str, seconds: pd.Series, whole: pd.Series) -> list[str]:
    return [
        f"{name}: {format.milliseconds(second)}, {format.percent(share)} of the step"
        for second, share in zip(seconds, seconds / whole, strict=True)
    ]


# -- the parts of instrumented steps ----------------------------------------------------------------------------------


def shares_section(seen: SessionData) -> Section:
    """Return the section of compute, exposed and overlapped communication, or of the reason why they are unknown."""
    title = "Compute, exposed and overlapped communication"
    if nothing := why_nothing(seen):
        return Section("anatomy", title, empty=nothing)
    cases = seen.once(case_breakdown)
    table = table_of(
        "Instrumented steps in ms; ratio: instrumented over measured step",
        (
            MARKED,
            Column("Exposed share", "exposed_share", "percent", format.UNKNOWN),
            Column("Exposed", "exposed_s", "ms"),
            Column(
                "Overlapped", lambda row: "≥ " * bool(row["unknown_calls"]) + FORMATS["ms"](row["overlapped_s"]), WORDED
            ),
            Column("Compute", "compute_s", "ms"),
            Column("Idle", "idle_s", "ms"),
            Column("Data", "data_s", "ms"),
            Column("Ratio", "instruments_ratio", "ratio", format.UNKNOWN),
        ),
        cases,
    )
    drawn = seen.once(page_cases).dropna(subset=["step_time_s", "instrumented_s"])
    return Section(
        "anatomy",
        title,
        "Exposed communication blocks training; its share of the step is at the end of each bar. Overlapped "
        "communication runs during compute, so it has a separate bar and is not added.",
        "No step was taken apart.",
        (table,),
        lead=_exposed(cases[(cases["world_size"] > 1) & cases["exposed_share"].notna()]),
        panels=[_step_shares(own) for own in by_work(drawn)],
        reading="Idle is blocked time without a collective. Sends and receives count only while a rank waits for "
        "them. Values are medians over the instrumented steps of the slowest rank, then over launches. ≥ marks a lower "
        "bound: the end of some calls is unknown.",
    )


def _exposed(known: pd.DataFrame) -> str:
    """Return the sentence about the exposed and overlapped shares of the fastest case."""
    if known.empty:
        return ""
    first = known.iloc[0]
    lead = (
        f"{first['label']}: {format.percent(first['exposed_share'])} of a step "
        f"({format.milliseconds(first['exposed_s'])}) is exposed communication"
    )
    if first["communication_s"] > 0:
        share = format.percent(first["overlapped_s"] / first["communication_s"])
        lead += f"; {'at least ' * bool(first['unknown_calls'])}{share} of the communication is overlapped with compute"
    return f"{lead}."


# Bars of steps, and thinner ones of overlapped communication below.
_ABOVE, _BELOW = {"at": -0.08, "width": 0.5}, {"at": 0.3, "width": 0.2}
# Texts at the end of the longest bar are in the right margin.
_MARGIN = {"l": 8, "r": 60, "t": 8, "b": 8}


def _step_shares(own: pd.DataFrame) -> Panel:
    """Return the figure of the parts of instrumented steps.

    Overlapped communication is inside compute, so its bar ends where exposed communication starts.
    """
    steps = own[[*SHARE]].astype(float)
    ends = steps.fillna(0).cumsum(axis="columns")
    whole, overlapped = own["instrumented_s"].astype(float), own["overlapped_s"].astype(float)
    y, traces = pd.Series(range(len(own)), own.index), []
    for part, (color, name) in SHARE.items():
        begin = listed(ends[part] - steps[part].fillna(0), 1e3)
        place = {"base": begin, "y": listed(y + _ABOVE["at"]), "width": _ABOVE["width"]}
        traces.append(case_bars(own, 1e3 * steps[part], name, color, _shares(name, steps[part], whole), **place))
    texts = [
        text.replace(": ", ": ≥ ") if unknown > 0 else text
        for text, unknown in zip(_shares("overlapped", overlapped, whole), own["unknown_calls"], strict=True)
    ]
    color = SHARE["exposed_s"][0]
    hatched: dict[str, Any] = {
        "marker": {"color": color, "line": {"width": 0}, "pattern": OVERLAP_HATCH},
        "y": listed(y + _BELOW["at"]),
        "width": _BELOW["width"],
        "base": listed((ends["compute_s"] - overlapped.fillna(0)).clip(lower=0), 1e3),
    }
    traces.append(case_bars(own, 1e3 * overlapped, "overlapped (inside compute)", color, texts, **hatched))
    traces.append({
        "type": "scatter", "mode": "text", "x": listed(ends["idle_s"], 1e3), "y": listed(y + _ABOVE["at"]),
        "cliponaxis": False, "text": [f" {format.percent(share)}" for share in own["exposed_share"]],
        "textposition": "middle right", "customdata": own["case_id"].to_list(), "showlegend": False,
        "hoverinfo": "skip",
    })  # fmt: skip
    look: dict[str, Any] = {"barmode": "overlay", "legend": PARTS_LEGEND, "margin": _MARGIN, "xaxis": FROM_ZERO}
    return in_rows(titled(own), own["shown"], "an instrumented step (ms)", traces, head=120, least=2, **look)


# -- stragglers -------------------------------------------------------------------------------------------------------

_STRAGGLERS = (
    Column("Configuration", "label"),
    Column("Rank", lambda row: row["who"].removeprefix("rank ") + ", by the schedule" * row["by_schedule"], WORDED),
    Column("Last, of all steps", "share", "percent"),
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
    clocks = clocks_text(seen.facts[at] for at in launches)
    return Section(
        "stragglers",
        "Stragglers",
        "A straggler enters the collectives last and blocks the other ranks until then.",
        "No rank waited for a later rank.",
        (table_of("Straggler of each configuration", _STRAGGLERS, rows),),
        lead=_straggler(rows[rows["always_last"].astype(bool)]) if len(rows) else "",
        reading="A collective starts to move data when its last rank has entered it. Blocked is the longest wait of a "
        "rank for the straggler in a step, as the median over instrumented steps. In a pipeline the schedule makes one "
        f"rank the last.{f' Clocks: {clocks}.' if clocks else ''}",
    )


def _straggler(found: pd.DataFrame) -> str:
    """Return the sentence about the straggler that blocks others for the largest share of a step."""
    if found.empty:
        share = format.percent(NEARLY_ALL)
        return f"No straggler: in no configuration is the same rank last in {share} of the steps or more."
    worst = found.iloc[int(found["waited_share"].argmax())]
    return (
        f"{worst['label']}: {worst['who']} is last in {format.percent(worst['share'])} of the steps and blocks the "
        f"others for {format.milliseconds(worst['waited_s'])} per step ({format.percent(worst['waited_share'])})."
    )


# -- pipelines --------------------------------------------------------------------------------------------------------

_BUBBLES = (
    Column("Configuration", "label"),
    Column("Schedule", "schedule"),
    Column("Stages", "stages", WORDED),
    Column("Micro-batches", "microbatches", WORDED),
    Column("Theory", "theory", "percent"),
    Column("Measured", "measured", "percent"),
)


def pipelines_section(seen: SessionData) -> Section | None:
    """Return the section of pipeline bubbles; None if no pipeline was measured."""
    strategies = seen.cases["strategy"].unique()
    if not any(entry_of(str(strategy)).layout is Layout.PIPELINE for strategy in strategies):
        return None
    title = "Pipeline bubbles: theory and measured"
    return Section(
        "pipelines",
        title,
        "The bubble is the share of forward and backward without computation on a rank.",
        nothing_to_draw(seen) or "The computing time of the stages was not recorded: unknown, not zero.",
        (table_of(title, _BUBBLES, bubbles(seen), closed=False),),
        reading="Measured is the mean over ranks, then the median over launches. Theory assumes equal stages and free "
        "messages; the excess is uneven stages, messages, and ranks that share a core.",
    )


# -- NCCL -------------------------------------------------------------------------------------------------------------

_CHOICES = (
    Column("Configuration", "label"),
    Column("Operation", "op", unknown=format.UNKNOWN),
    Column("Algorithm", "algorithm"),
    Column("Protocol", "protocol"),
    Column("Bytes", "bytes", "count"),
    Column("Channels", "channels", "count"),
    Column("Calls", "calls", "count"),
)
_INSPECTED = (
    Column("Configuration", "label"),
    Column("Operation", "op"),
    Column("Bytes", "bytes", "count"),
    Column("Ranks", "ranks", WORDED),
    Column("Calls", "calls", "count"),
    Column("Took, µs", "duration_s", "us"),
    Column("Algorithm, GB/s", "algbw_bytes_per_s", "gb"),
    Column("Bus, GB/s", "busbw_bytes_per_s", "gb"),
)


def nccl_section(seen: SessionData) -> Section | None:
    """Return the section of NCCL's choices and timings; None without its debug log and its Inspector."""
    chosen, timed, wired = choices(seen), inspected(seen), wiring(seen)
    if chosen.empty and timed.empty and not wired:
        return None
    return Section(
        "nccl",
        "NCCL",
        "The algorithm, protocol and channels of each collective, from NCCL's debug log, and the timings of NCCL's "
        "Inspector.",
        "NCCL's debug log has no choice of an algorithm.",
        (
            table_of("NCCL's choices", _CHOICES, chosen, closed=False),
            table_of("Medians of NCCL's Inspector over ranks and launches", _INSPECTED, timed, closed=False),
        ),
        lead=wired,
        reading="For reduce-scatter and all-gather, bytes are one rank's part. The Inspector's calls are counted on "
        "one rank.",
    )
