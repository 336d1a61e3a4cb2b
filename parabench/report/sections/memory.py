"""Sections of memory: peaks against theory, and the training state."""

from __future__ import annotations

from parabench.analysis.memory import PARTS, SYMBOLS, case_states, sentences
from parabench.analysis.session import SessionData
from parabench.analysis.text import format
from parabench.report.figures.figures import headroom, measured
from parabench.report.palette import STATE
from parabench.report.spec import MARKED, Column, Section, case_table, nothing_to_draw

_RESIDENT = (
    " On the CPU it is the resident set of the whole process, torch itself too, so that it lies far above the state of "
    "a small model."
)


def peaks_section(seen: SessionData) -> Section:
    """The peaks that were observed, against what the training state must take."""
    rows, states = measured(seen.cases), seen.once(case_states)
    recorded = rows[["peak_memory_bytes", "peak_reserved_bytes", "used_bytes"]].notna().any(axis=None)
    theory = (
        "The diamond is what parameters, gradients and optimizer state of that rank must take by theory; what lies "
        "beyond it are activations, communication buffers and libraries."
        if states["theory"].notna().any()
        else "What the training state must take by theory is unknown here."
    )
    return Section(
        "memory",
        "Peak memory against theory",
        f"The largest of all ranks and launches. {theory}"
        + (_RESIDENT if (rows["device"] == "cpu").any() else "")
        + headroom(rows["strategy"]),
        nothing_to_draw(seen)
        or (
            "The peak memory of the selected cases is unknown."
            if recorded
            else "Peak memory was not recorded: unknown, not zero."
        ),
        draw="peak_memory" if recorded else "",
    )


def state_section(seen: SessionData) -> Section:
    """What ranks hold of the training state, measured and by formula."""
    states = seen.once(case_states)
    uneven = (
        " What a pipeline's rank holds depends on its stage; its theory is an even split."
        if (~states["exact"].astype(bool) & states["formula"].notna()).any()
        else ""
    )
    table = case_table(
        "The cases' training state, in MiB: measured, and by formula",
        (
            MARKED,
            Column("Formula", lambda row: row["formula"] if isinstance(row["formula"], str) else format.UNKNOWN),
            *(Column(STATE[part][1].capitalize(), part, "mib", format.UNKNOWN) for part in PARTS),
            Column("Measured", "measured", "mib", format.UNKNOWN),
            Column("Theory", "theory", "mib", format.UNKNOWN),
            Column("Ratio", "ratio", "ratio", format.UNKNOWN),
        ),
        states,
        first="those of few ranks that hold least",
    )
    return Section(
        "state",
        "Memory of the training state",
        "Parameters, gradients and optimizer state of the rank that holds most, counted from tensors; activations and "
        "communication buffers are not in it. Of cases that hold the same one bar is drawn, and lines of strategies "
        "that do lie on one another. "
        f"{SYMBOLS}{uneven}{headroom(states['strategy'], dashed=True)}",
        nothing_to_draw(seen)
        or (
            "What the selected cases hold is unknown."
            if len(states)
            else "Bytes of parameters, gradients and optimizer state were not recorded: unknown, not zero."
        ),
        (table,) if len(states) else (),
        lead=" ".join(sentences(states)),
        draw="states" if len(states) else "",
    )
