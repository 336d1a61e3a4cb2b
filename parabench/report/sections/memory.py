"""Sections of the memory of a rank: its peaks, and its model states as measured and by formula."""

from __future__ import annotations

from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.memory import SYMBOLS, case_states, sentences
from parabench.analysis.session import SessionData
from parabench.report.cases import page_cases
from parabench.report.figures import (
    FROM_ZERO,
    PARTS_LEGEND,
    Panel,
    Trace,
    by_work,
    case_bars,
    in_rows,
    marks,
    plain,
    titled,
)
from parabench.report.spec import MARKED, Column, Section, nothing_to_draw, table_of
from parabench.store.record import MIB

# By column of `page_cases`: its color and its name. On the CPU, only the first is known: the process's resident set.
_PEAK = {
    "peak_memory_bytes": ("#0072B2", "torch tensors"),
    "peak_reserved_bytes": ("#56B4E9", "torch's allocator"),
    "used_bytes": ("#E69F00", "device (NVML)"),
}
_STATE = {
    "parameter_bytes": ("#0072B2", "parameters"),
    "gradient_bytes": ("#E69F00", "gradients"),
    "optimizer_bytes": ("#009E73", "optimizer state"),
}
# Dark with a light edge, so that it is visible on bars and pages of any color.
_THEORY = {"symbol": "diamond-tall", "size": 15, "color": "#111111", "line": {"width": 1.5, "color": "#ffffff"}}
_LOOK: dict[str, Any] = {"bargap": 0.35, "legend": PARTS_LEGEND, "xaxis": FROM_ZERO}


def peaks_section(seen: SessionData) -> Section:
    """Return the section of observed peaks against the model states by formula."""
    cases = seen.once(page_cases).dropna(subset="step_time_s").dropna(subset=[*_PEAK], how="all")
    return Section(
        "memory",
        "Peak memory vs model states by formula",
        "The largest peak of all ranks and launches. A diamond is that rank's model states (parameters, gradients, "
        "optimizer state) by formula, if it is known.",
        nothing_to_draw(seen) or "Peak memory was not recorded: unknown, not zero.",
        panels=[_peaks(own) for own in by_work(cases)],
        reading="Beyond the model states, memory holds activations, communication buffers and libraries. On the CPU "
        "the peak is the resident set of the whole process, torch included.",
    )


def _peaks(own: pd.DataFrame) -> Panel:
    looks = {column: look for column, look in _PEAK.items() if own[column].notna().any()}
    if own["device"].iloc[0] == "cpu" and "peak_memory_bytes" in looks:
        looks["peak_memory_bytes"] = (_PEAK["peak_memory_bytes"][0], "resident set")
    traces = _bars(own, looks)
    look = _LOOK | {"barmode": "group", "showlegend": len(traces) > 1, "head": 110, "least": 1 + len(looks)}
    return in_rows(titled(own), own["shown"], "peak memory of a rank (MiB)", traces, **look)


def _bars(own: pd.DataFrame, looks: dict[str, tuple[str, str]]) -> list[Trace]:
    """Return bars of the columns in `looks`, and marks at the model states by formula, if one is known."""
    traces = []
    for column, (color, name) in looks.items():
        texts = [f"{name}: {format.mebibytes(size)}" for size in own[column]]
        traces.append(case_bars(own, own[column].astype(float) / MIB, name, color, texts))
    theory = own["state_theory_bytes"]
    if theory.notna().any():
        name, ids = "model states, theory", own["case_id"].to_list()
        texts = [f"{name}: {format.mebibytes(size)}" for size in theory]
        traces.append(marks(theory.astype(float) / MIB, [*range(len(own))], name, texts, _THEORY, customdata=ids))
    return traces


_STATES = (
    MARKED,
    Column("Formula", lambda row: row["formula"] or ": ".join(filter(None, (format.UNKNOWN, row["why_unknown"])))),
    Column("Measured", "measured", "mib", format.UNKNOWN),
    Column("Theory", "theory", "mib", format.UNKNOWN),
    Column("Ratio", "ratio", "ratio", format.UNKNOWN),
)


def state_section(seen: SessionData) -> Section:
    """Return the section of the model states of a rank, measured and by formula."""
    states, cases = seen.once(case_states), seen.once(page_cases)
    cases = cases[cases["state_bytes"].notna()]
    several = cases["model"].nunique() > 1
    return Section(
        "state",
        "Memory of the model states",
        "Parameters, gradients and optimizer state of the largest rank, counted from tensors. Activations and "
        "communication buffers are not included. Configurations with the same state share a bar.",
        nothing_to_draw(seen) or "Bytes of the model states were not recorded: unknown, not zero.",
        (table_of("Model states in MiB: measured, and by formula", _STATES, states),),
        lead=" ".join(sentences(states)),
        panels=[
            in_rows(
                plain(str(model)) if several else "",
                shown["shown"],
                "model states of a rank (MiB)",
                _bars(shown, _STATE),
                **_LOOK | {"barmode": "stack", "which": "that hold least", "head": 140, "least": 2},
            )
            for model, own in cases.groupby("model", sort=False)
            for shown in (_together(own),)
        ],
        reading=f"{SYMBOLS} The formula of a pipeline rank is an even split; a rank holds what its stage needs.",
    )


def _together(cases: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each group of configurations of a strategy with the same model states, the smallest first."""
    key = ["strategy", "world_size", *_STATE]
    groups = cases.groupby(key, sort=False)
    rows = cases.drop_duplicates(key).assign(
        case_id=groups["case_id"].agg("|".join).to_list(),
        hover=groups["label"].agg(lambda labels: f"<b>{plain(format.listed(labels, most=4))}</b>").to_list(),
        shown=groups["shown"].agg(lambda names: format.listed(names, most=1)).to_list(),
    )
    return rows.sort_values("state_bytes", kind="stable")
