"""Sections of where a timed step's time goes, and of pipelines' bubbles."""

from __future__ import annotations

import pandas as pd

from parabench.analysis.pipeline import bubbles
from parabench.analysis.text import format
from parabench.report.data.case_tables import case_table
from parabench.report.figures.figures import measured
from parabench.report.panels import headroom
from parabench.report.spec import Section
from parabench.store.metrics import STEP_PARTS
from parabench.strategies import Layout, entry_of


def parts_section(cases: pd.DataFrame, nothing: str) -> Section:
    """The parts of the timed steps; `nothing` says why no case has a latency, where none has."""
    rows = measured(cases).dropna(subset=list(STEP_PARTS), how="all")
    in_turns = (
        " Where they take turns (micro-batches, accumulation), forward and backward are one part."
        if rows["forward_backward_s"].notna().any()
        else ""
    )
    recorded = len(rows) > 0
    return Section(
        "parts",
        "Where a step's time goes",
        "Medians over steps of the slowest rank, then over launches; medians also where cases are "
        f"ranked by another number. Backward includes the communication that it waits for.{in_turns}"
        + headroom(rows["strategy"]),
        [],
        nothing
        or (
            "The parts of the selected cases' steps are unknown."
            if recorded
            else "The parts of a step were not recorded."
        ),
        draw="step_parts" if recorded else "",
    )  # fmt: skip


def pipelines_section(launches: pd.DataFrame, cases: pd.DataFrame, whole: pd.DataFrame, nothing: str) -> Section | None:
    """Only where there are pipelines: what a session has not tried needs no section. `whole` is as `Results` has it."""
    if not any(entry_of(str(strategy)).layout is Layout.PIPELINE for strategy in cases["strategy"].unique()):
        return None
    table = case_table(
        "Pipelines: the bubble, theory and measured",
        ("Case", "Schedule", "Stages", "Micro-batches", "Theory", "Measured"),
        bubbles(launches, whole),
        lambda row: (
            *(str(row[name]) for name in ("label", "schedule", "stages", "microbatches")),
            format.percent(row["theory"]),
            format.percent(row["measured"]),
        ),
        texts=2,
        closed=False,
        first="the first",
    )
    return Section(
        "pipelines",
        "Pipelines: the bubble, theory and measured",
        "The bubble is the share of a step's forward and backward in which a rank computes nothing, mean over ranks, "
        "median over launches. Theory takes all stages to be equally long and messages to cost nothing; what is "
        "measured beyond it is uneven stages, messages, and ranks that share a core.",
        [],
        nothing or "How busy the stages were was not recorded: unknown, not zero.",
        (table,) if table.rows else (),
    )
