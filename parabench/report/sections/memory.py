"""Sections of memory: peaks against theory, and the model states."""

from __future__ import annotations

from parabench.analysis import format
from parabench.analysis.memory import PARTS, SYMBOLS, case_states, sentences
from parabench.analysis.session import SessionData
from parabench.report.figures import memory as figures
from parabench.report.figures.figures import measured, unranked
from parabench.report.palette import STATE
from parabench.report.spec import MARKED, Column, Section, nothing_to_draw, table_of


def peaks_section(seen: SessionData) -> Section:
    """Return the section of observed peaks against the model states by formula."""
    rows = measured(seen.cases)
    theory = "The model states by formula are unknown here."
    if seen.once(case_states)["theory"].notna().any():
        theory = "The diamond is that rank's model states (parameters, gradients, optimizer state) by formula."
    resident = (
        " On the CPU the peak is the resident set of the whole process, torch included, so it is far above the state "
        "of a small model."
    )
    return Section(
        "memory",
        "Peak memory vs model states by formula",
        f"The largest peak of all ranks and launches. {theory}",
        nothing_to_draw(seen) or "Peak memory was not recorded: unknown, not zero.",
        panels=figures.peak_memory(seen),
        reading="Beyond the model states, memory holds activations, communication buffers and libraries."
        + (resident if (rows["device"] == "cpu").any() else "")
        + unranked(rows["strategy"]),
    )


_STATES = (
    MARKED,
    Column("Formula", lambda row: row["formula"] or ": ".join(filter(None, (format.UNKNOWN, row["why_unknown"])))),
    *(Column(STATE[part][1].capitalize(), part, "mib", format.UNKNOWN) for part in PARTS),
    Column("Measured", "measured", "mib", format.UNKNOWN),
    Column("Theory", "theory", "mib", format.UNKNOWN),
    Column("Ratio", "ratio", "ratio", format.UNKNOWN),
)


def state_section(seen: SessionData) -> Section:
    """Return the section of the model states of a rank, measured and by formula."""
    states = seen.once(case_states)
    even = (~states["exact"].astype(bool) & states["formula"].notna()).any()
    uneven = " A pipeline rank holds what its stage needs; its formula is an even split." if even else ""
    unknown = "Bytes of parameters, gradients and optimizer state were not recorded: unknown, not zero."
    return Section(
        "state",
        "Memory of the model states",
        "Parameters, gradients and optimizer state of the largest rank, counted from tensors. Activations and "
        "communication buffers are not included.",
        nothing_to_draw(seen) or unknown,
        (table_of("Training state in MiB: measured, and by formula", _STATES, states),),
        lead=" ".join(sentences(states)),
        panels=figures.states(seen),
        reading=f"Configurations with the same state share a bar. {SYMBOLS}{uneven}{unranked(states['strategy'])}",
    )
