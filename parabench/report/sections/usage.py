"""Sections of hardware utilization and energy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.efficiency import COUNTED, FORMULA, efficiency
from parabench.analysis.energy import POWER
from parabench.analysis.session import SessionData
from parabench.machine import accelerator
from parabench.report.spec import DASH, MARKED, WORDED, Column, Section, table_of
from parabench.store.results import records
from parabench.strategies import entry_of


def on_gpus(seen: SessionData) -> bool:
    """Return whether any case ran on accelerators."""
    return bool((seen.cases["device"] == accelerator.TYPE).any())


def usage_section(seen: SessionData) -> Section:
    """Return the section of the FLOP/s of each case, and their share of the devices' peak."""
    table, title = seen.once(efficiency), "Hardware utilization"
    if table.empty:
        return Section("usage", title, "", f"{seen.why_none}, so utilization is unknown.")
    known = table[table["flops_per_s"].notna()]
    factor, prefix = format.scaled(known["flops_per_s"].max())
    units = " or ".join(table["unit"].unique())
    use = table_of(
        "Throughput and FLOP/s of the configurations",
        (
            MARKED,
            Column(f"{units.capitalize()}/s", "tokens_per_s", "rate"),
            Column(f"{prefix}FLOP/s", lambda row: row["flops_per_s"] / factor, "digits"),
            *((Column("MFU", lambda row: _share(row["mfu"]), WORDED),) if table["mfu"].notna().any() else ()),
        ),
        table if len(known) else known,
        closed=False,
    )
    # The number of operations depends on the workload alone.
    counts = ["formula_flops", "counted_flops"]
    works = table[["model", "global_batch", "seq_len", *counts]].drop_duplicates().dropna(subset=counts, how="all")
    per_step, unit = format.scaled(works[counts].max().max())
    flops = table_of(
        "Operations per step: by formula, and counted by torch",
        (
            Column("Work", _work),
            Column(f"Formula, {unit}FLOP", lambda row: row["formula_flops"] / per_step, "digits"),
            Column(f"Counted, {unit}FLOP", lambda row: row["counted_flops"] / per_step, "digits"),
            Column("Ratio", lambda row: row["counted_flops"] / row["formula_flops"], "digits"),
        ),
        works,
    )
    lead = ""
    for best in records(_ranked(known).head(1)):
        share = f", {_share(best['mfu'])} of its devices' peak" if format.known(best["mfu"]) else ""
        lead = f"{best['label']} computes {format.flop_rate(best['flops_per_s'])}{share}."
    caption = "FLOP/s: floating-point operations of a step's forward and backward, over its step time."
    reading = " ".join(_sources(table))
    empty = f"{caption} {reading}".strip()
    return Section("usage", title, caption, empty, (use, flops), lead=lead, reading=reading)


def energy_section(seen: SessionData) -> Section | None:
    """Return the section of the joules of a step; None if no case ran on GPUs."""
    if not on_gpus(seen):
        return None
    table, title = seen.once(efficiency), "Energy of a step"
    reading = " ".join(_unknown(table, "Energy", "joules_per_step", "joules_reason"))
    known = table[table["joules_per_step"].notna()]
    if known.empty:
        return Section("energy", title, "", reading or f"{seen.why_none}, so the energy is unknown.")
    if (table["joules_source"] == POWER).any():
        reading = f"If a device has no energy counter, its power readings are integrated. {reading}".strip()
    per = " or ".join(table["unit"].str.removesuffix("s").unique())
    columns = (
        MARKED,
        Column("J per step", "joules_per_step", "digits"),
        Column(f"mJ per {per}", lambda row: row["joules_per_token"] * 1e3, "digits"),
    )
    lead = ""
    for least in records(_ranked(known).nsmallest(1, "joules_per_token")):
        energy = f"{format.joules(least['joules_per_step'])} per step, {format.joules(least['joules_per_token'])}"
        lead = f"Lowest energy: {least['label']}: {energy} per {least['unit'].removesuffix('s')}."
    return Section(
        "energy",
        title,
        "Energy of all devices per measured step, idle time between steps included; lower is better.",
        tables=(table_of("Energy of the configurations", columns, known, closed=False),),
        lead=lead,
        reading=reading,
    )


def _work(row: Mapping[str, Any]) -> str:
    length = f" × {row['seq_len']}" if row["seq_len"] > 1 else ""
    return f"{row['model']}, batch {row['global_batch']}{length}"


def _ranked(table: pd.DataFrame) -> pd.DataFrame:
    return table[[entry_of(str(strategy)).ranked for strategy in table["strategy"]]]


def _sources(table: pd.DataFrame) -> Iterator[str]:
    """Yield the formulas and documents that the numbers are based on, and why a number is unknown."""
    sources = set(table["flops_source"].dropna())
    if FORMULA in sources:
        yield (
            "Operations are by torchtitan's formula: per token 6 for each parameter (embeddings that are only looked "
            "up excepted) and 12 × layers × heads × head width × sequence length."
        )
    if COUNTED in sources:
        which = "If that formula does not apply, operations" if FORMULA in sources else "Operations"
        yield f"{which} are counted by torch's FlopCounterMode in the reference launch."
    if len(known := table.dropna(subset=["mfu"])):
        rates = map(format.flop_rate, known["peak_flops_per_s"] / known["devices"])
        peaks = [f"{rate} ({source})" for rate, source in zip(rates, known["peak_source"], strict=True)]
        yield (
            "MFU is the share of the peak of all devices of the case; the peak of one device, without sparsity, is "
            f"{' or '.join(dict.fromkeys(peaks))}."
        )
    yield from _unknown(table, "FLOP/s", "flops_per_s", "flops_reason")
    yield from _unknown(table, "MFU", "mfu", "mfu_reason")


def _unknown(table: pd.DataFrame, name: str, number: str, reason: str) -> Iterator[str]:
    """Yield a sentence for each reason why a number is unknown, with the cases."""
    for why, group in table[table[number].isna()].groupby(reason, sort=False):
        cases = "" if len(group) == len(table) else f" of {format.listed(group['label'], most=2)}"
        yield f"{name}{cases}: unknown: {why}."


def _share(mfu: float) -> str:
    """Return two digits, because a small model may use a thousandth of a large device."""
    return f"{format.digits(mfu * 100, 2)}%" if format.known(mfu) else DASH
