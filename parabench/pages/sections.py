"""The figures and their tables of a training session, in the order in which a reader asks."""

from __future__ import annotations

import pandas as pd

from parabench.analysis import words
from parabench.analysis.evidence import Evidence
from parabench.analysis.memory import PARTS, SYMBOLS, sentences
from parabench.analysis.pipeline import bubbles
from parabench.analysis.scaling import STRONG, WEAK, scaling
from parabench.family import Layout, entry_of
from parabench.pages import figures, sections_anatomy, sections_devices, sections_library, sections_machine
from parabench.pages.figures_memory import STATE, peak_memory, state_panels
from parabench.pages.figures_scaling import scaling_panels
from parabench.pages.figures_steps import PART, step_parts
from parabench.pages.panels import at_most, each_work, ms
from parabench.pages.section import Section, Table
from parabench.pages.sections_front import front_section
from parabench.record import MIB, STEP_PARTS

NOTHING = "No launch ended well, so there is nothing to draw."
_EACH_KIND = {
    STRONG: "Strong scaling: the work of a step stays the same at every world size.",
    WEAK: "Weak scaling: the batch of a rank stays the same, so the work grows with the ranks, and efficiency is the "
    "step time of the base over that of the ranks.",
}


def training_sections(seen: Evidence, states: pd.DataFrame) -> list[Section]:
    """All sections of a session; `states` is what ranks hold (`analysis.memory.state_table`)."""
    cases = seen.cases
    nothing = "" if cases["latency_s"].notna().any() else NOTHING
    sections = [
        _buckets(nothing),
        _heat(cases, nothing),
        _scaling(cases, nothing),
        _parts(cases, nothing),
        *sections_anatomy.sections(seen),
        *sections_library.sections(seen),
        _pipelines(seen.launches, cases, seen.results.whole, nothing),
        _state(states, nothing),
        _peaks(cases, nothing),
        front_section(seen),
        *sections_devices.sections(seen),
        *sections_machine.sections(seen),
    ]
    return [_ranking(nothing), *(section for section in sections if section is not None)]


def _ranking(nothing: str) -> Section:
    return Section(
        "ranking",
        "The fastest",
        "Step latency of the fastest selected cases; lower is better. The line reaches from the fastest to the slowest "
        "launch; a filled mark cannot be told apart from the fastest.",
        [],
        nothing,
        draw="ranking",
    )


def _buckets(nothing: str) -> Section:
    return Section(
        "bucket",
        "Step latency against bucket size",
        "Lower is better. Bars reach from the fastest to the slowest launch; the axis does not begin "
        "at zero. “default” is PyTorch's own bucket setting. Shaded: what cannot be told apart from the fastest.",
        [],
        nothing or "No strategy was measured with more than one bucket size.",
        draw="buckets",
    )


def _heat(cases: pd.DataFrame, nothing: str) -> Section:
    return Section(
        "heat",
        "Algorithm and bucket size together",
        "Step latency in ms; the deeper the blue, the faster.",
        each_work(cases, figures.heat_map),
        nothing or "This needs at least two algorithms and two bucket sizes of one strategy and world size.",
    )


def _scaling(cases: pd.DataFrame, nothing: str) -> Section:
    curves = scaling(cases)
    kinds = " ".join(said for kind, said in _EACH_KIND.items() if (curves["kind"] == kind).any())
    return Section(
        "scaling",
        "More ranks",
        f"{kinds} Efficiency is throughput over that of one rank times the ranks; where one rank was not measured, "
        "the smallest world size is the base. Of several curves of a strategy, the one with most world sizes, then the "
        "fastest, is drawn. A line joins neighbouring world sizes; the ideal one may leave the figure."
        + _headroom(list(curves["strategy"]), dashed=True),
        scaling_panels(curves),
        nothing or "Only one world size was measured, so nothing can be said about scaling.",
    )


def _parts(cases: pd.DataFrame, nothing: str) -> Section:
    rows = figures.measured(cases).dropna(subset=list(STEP_PARTS), how="all")
    there = [part for part in STEP_PARTS if rows[part].notna().any()]
    in_turns = (
        " Where they take turns (micro-batches, accumulation), forward and backward are one part."
        if "forward_backward_s" in there
        else ""
    )
    table = Table(
        "Every case's parts, in ms",
        ("Case", *(PART[part][1].capitalize() for part in there)),
        [
            (figures.marked(row["label"], row["strategy"]), *(ms(row[part]) for part in there))
            for row in rows.to_dict("records")
        ],
    )
    return Section(
        "parts",
        "Where a step's time goes",
        "Medians over steps of the slowest rank, then over launches; medians also where cases are "
        f"ranked by another number. Backward includes the communication that it waits for.{in_turns}"
        + at_most(len(rows))
        + _headroom(list(rows["strategy"].head(figures.MOST_BARS))),
        each_work(cases, step_parts),
        nothing or "The parts of a step were not recorded.",
        (table,) if len(rows) else (),
    )


def _pipelines(launches: pd.DataFrame, cases: pd.DataFrame, samples: pd.DataFrame, nothing: str) -> Section | None:
    """Only where there are pipelines: what a session has not tried needs no section."""
    if not any(entry_of(str(strategy)).layout is Layout.PIPELINE for strategy in cases["strategy"]):
        return None
    table = Table(
        "Pipelines: the bubble, theory and measured",
        ("Case", "Schedule", "Stages", "Micro-batches", "Theory", "Measured"),
        [
            (
                str(row["label"]),
                str(row["schedule"]),
                str(row["stages"]),
                str(row["microbatches"]),
                words.percent(row["theory"]),
                words.percent(row["measured"]),
            )
            for row in bubbles(launches, samples).to_dict("records")
        ],
        texts=2,
        closed=False,
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


def _state(states: pd.DataFrame, nothing: str) -> Section:
    table = Table(
        "Every case's training state, in MiB: measured, and by formula",
        ("Case", "Formula", *(STATE[part][1].capitalize() for part in PARTS), "Measured", "Theory", "Ratio"),
        [
            (
                figures.marked(row["label"], row["strategy"]),
                row["formula"] if isinstance(row["formula"], str) else words.UNKNOWN,
                *(_mib(row[part]) for part in PARTS),
                _mib(row["measured"]),
                _mib(row["theory"]),
                f"{row['ratio']:.2f}" if words.known(row["ratio"]) else words.UNKNOWN,
            )
            for row in states.to_dict("records")
        ],
        texts=2,
    )
    uneven = (
        " What a pipeline's rank holds depends on its stage; its theory is an even split."
        if _any_uneven(states)
        else ""
    )
    return Section(
        "state",
        "Memory of the training state",
        "Parameters, gradients and optimizer state of the rank that holds most, counted from tensors; activations and "
        f"communication buffers are not in it. Lines of strategies that hold the same lie on one another. {SYMBOLS}"
        f"{uneven}{_headroom(list(states['strategy']), dashed=True)}",
        state_panels(states),
        nothing or "Bytes of parameters, gradients and optimizer state were not recorded: unknown, not zero.",
        (table,) if len(states) else (),
        lead=" ".join(sentences(states)),
    )


def _peaks(cases: pd.DataFrame, nothing: str) -> Section:
    rows = figures.measured(cases)
    return Section(
        "memory",
        "Peak memory",
        "The largest of all ranks and launches."
        + at_most(len(rows))
        + _headroom(list(rows["strategy"].head(figures.MOST_BARS))),
        each_work(cases, peak_memory),
        nothing or "Peak memory was not recorded: unknown, not zero.",
    )


def _headroom(strategies: list[str], *, dashed: bool = False) -> str:
    """What a mark in a figure means, where one is there; `dashed` where it is a line's dashes."""
    unranked = [name for name in dict.fromkeys(strategies) if not entry_of(name).ranked]
    mark = " (dashed)" if dashed else ""
    return f" {', '.join(unranked)}{mark} exchanges nothing: headroom, no answer." if unranked else ""


def _any_uneven(states: pd.DataFrame) -> bool:
    return bool((~states["exact"].astype(bool) & states["formula"].notna()).any())


def _mib(count: float) -> str:
    return words.digits(count / MIB) if words.known(count) else words.UNKNOWN
