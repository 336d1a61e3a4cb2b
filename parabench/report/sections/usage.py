"""Sections of how much of the hardware was used, and what energy that took."""

from __future__ import annotations

from typing import Any

import pandas as pd

from parabench.analysis.efficiency import COUNTED, FORMULA, efficiency
from parabench.analysis.energy import POWER
from parabench.analysis.session import SessionData
from parabench.analysis.text import format
from parabench.machine import accelerator
from parabench.report.spec import DASH, MARKED, WORDED, Column, Section, Table, table_of
from parabench.strategies import entry_of


def on_gpus(seen: SessionData) -> bool:
    """Whether any case ran on accelerators."""
    return bool((seen.cases["device"] == accelerator.TYPE).any())


def usage_section(seen: SessionData) -> Section:
    """Return FLOP/s of each configuration, and its share of the devices' peak."""
    table, title = seen.once(efficiency), "Hardware utilization"
    if table.empty:
        return Section("usage", title, "", f"{seen.why_none}, so utilization is unknown.")
    known = table["flops_per_s"].notna().any()
    counted = table[["formula_flops", "counted_flops"]].notna().any(axis=None)
    caption, *more = _said_of_use(table)
    reading = " ".join(more)
    return Section(
        "usage",
        title,
        caption,
        f"{caption} {reading}".strip(),
        tuple(make(table) for make, there in ((_use, known), (_flops, counted)) if there),
        lead=_lead(table),
        draw="usage" if known else "",
        reading=reading,
    )


def energy_section(seen: SessionData) -> Section | None:
    """What a step costs in joules; only where something ran on GPUs."""
    if not on_gpus(seen):
        return None
    table, title = seen.once(efficiency), "Energy of a step"
    reasons = _unknown(table, "Energy", "joules_per_step", "joules_reason")
    if table["joules_per_step"].isna().all():
        return Section("energy", title, "", " ".join(reasons) or f"{seen.why_none}, so there is nothing to draw.")
    said = ["Energy of all devices of a case per measured step, idle time between steps included; lower is better."]
    if (table["joules_source"] == POWER).any():
        said.append("Where a device has no energy counter, its power readings are integrated.")
    unit = "token or sample" if table["unit"].nunique() > 1 else _unit(table).removesuffix("s")
    return Section(
        "energy",
        title,
        said[0],
        "The energy of no selected case is known.",
        (
            table_of(
                "Energy of the cases",
                (
                    MARKED,
                    Column("J per step", "joules_per_step", "digits"),
                    Column(f"mJ per {unit}", lambda row: row["joules_per_token"] * 1e3, "digits"),
                ),
                table[table["joules_per_step"].notna()],
            ),
        ),
        lead=_least(table),
        draw="energy",
        reading=" ".join([*said[1:], *reasons]),
    )


def _use(table: pd.DataFrame) -> Table:
    factor, prefix = format.scaled(table["flops_per_s"].max())
    columns = (
        MARKED,
        Column(f"{_unit(table).capitalize()}/s", "tokens_per_s", "rate"),
        Column(f"{prefix}FLOP/s", lambda row: row["flops_per_s"] / factor, "digits"),
        Column("MFU", lambda row: _share(row["mfu"]), WORDED),
    )
    # The caption has the reason if no MFU is known.
    return table_of("Throughput and FLOP/s of the cases", columns[: 3 + table["mfu"].notna().any()], table)


def _unit(table: pd.DataFrame) -> str:
    return " or ".join(dict.fromkeys(table["unit"]))


def _least(table: pd.DataFrame) -> str:
    """Which case takes the least energy, of those that are ranked."""
    known = _ranked(table[table["joules_per_token"].notna()])
    if known.empty:
        return ""
    least = known.iloc[int(known["joules_per_token"].argmin())]
    per = f"{format.joules(least['joules_per_token'])} per {least['unit'].removesuffix('s')}"
    return f"Lowest energy: {least['label']}: {format.joules(least['joules_per_step'])} per step, {per}."


def _ranked(table: pd.DataFrame) -> pd.DataFrame:
    return table[[entry_of(str(strategy)).ranked for strategy in table["strategy"]]]


def _lead(table: pd.DataFrame) -> str:
    """The utilization of the fastest that is ranked."""
    ranked = _ranked(table[table["flops_per_s"].notna()])
    if ranked.empty:
        return ""
    best = ranked.iloc[0]
    share = f", {_share(best['mfu'])} of its devices' peak" if format.known(best["mfu"]) else ""
    return f"{best['label']} computes {_flop_s(best['flops_per_s'])}{share}."


def _said_of_use(table: pd.DataFrame) -> list[str]:
    """Each column, with the formula and the documents that it rests on, and why a value is unknown; the first is the
    caption."""
    said = ["FLOP/s: floating-point operations of a step's forward and backward, over its step time."]
    sources = set(table["flops_source"].dropna())
    if FORMULA in sources:
        said.append(
            "Operations are by torchtitan's formula: per token 6 for each parameter (embeddings that are only looked "
            "up excepted) and 12 × layers × heads × head width × sequence length."
        )
    if COUNTED in sources:
        which = "Where that formula does not apply, operations" if FORMULA in sources else "Operations"
        said.append(f"{which} are counted by torch's FlopCounterMode in the reference launch.")
    if table["mfu"].notna().any():
        known = table.dropna(subset=["mfu"]).to_dict("records")
        peaks = [f"{_flop_s(row['peak_flops_per_s'] / row['devices'])} ({row['peak_source']})" for row in known]
        said.append(
            "MFU is the share of the peak of all devices of the case; the peak of one device, without sparsity, is "
            f"{' or '.join(dict.fromkeys(peaks))}."
        )
    said += _unknown(table, "FLOP/s", "flops_per_s", "flops_reason")
    said += _unknown(table, "MFU", "mfu", "mfu_reason")
    return said


def _unknown(table: pd.DataFrame, name: str, number: str, reason: str) -> list[str]:
    """A sentence for each reason why a number is unknown, and of whom."""
    unknown = table[table[number].isna()]
    said = []
    for why, group in unknown.groupby(reason, sort=False):
        whose = "" if len(group) == len(table) else f" of {format.listed(group['label'], most=2)}"
        said.append(f"{name}{whose}: unknown: {why}.")
    return said


def _flops(table: pd.DataFrame) -> Table:
    """A step's operations by both ways, of each work once: they are the work's, not the strategy's."""
    works = table[["model", "global_batch", "seq_len", "formula_flops", "counted_flops"]].drop_duplicates()
    factor, prefix = format.scaled(works[["formula_flops", "counted_flops"]].max().max())
    return table_of(
        "Operations per step: by formula, and counted by torch",
        (
            Column("Work", _work),
            Column(f"Formula, {prefix}FLOP", lambda row: row["formula_flops"] / factor, "digits"),
            Column(f"Counted, {prefix}FLOP", lambda row: row["counted_flops"] / factor, "digits"),
            Column("Ratio", lambda row: row["counted_flops"] / row["formula_flops"], "digits"),
        ),
        works,
    )


def _work(row: dict[Any, Any]) -> str:
    return f"{row['model']}, batch {row['global_batch']}" + (f" × {row['seq_len']}" if row["seq_len"] > 1 else "")


def _flop_s(value: float) -> str:
    factor, prefix = format.scaled(value)
    return f"{format.digits(value / factor)} {prefix}FLOP/s"


def _share(mfu: float) -> str:
    """Small models use a thousandth of a large device, which is not 0."""
    return f"{format.digits(mfu * 100, 2)} %" if format.known(mfu) else DASH
