"""Sections of what it ran on, and how its links are wired; how much of the hardware was used."""

from __future__ import annotations

import pandas as pd

from parabench.analysis import words
from parabench.analysis.efficiency import COUNTED, FORMULA, POWER, efficiency
from parabench.analysis.evidence import Evidence
from parabench.analysis.instruments.machine_facts import gpu_rows, link_rows, machine_pairs
from parabench.analysis.session import Session
from parabench.family import entry_of
from parabench.pages.figures import MOST_BARS, marked
from parabench.pages.section import Section, Table

DASH = "–"


def sections(seen: Evidence) -> list[Section]:
    """Those of a session, in the order in which a reader asks."""
    return [_usage(efficiency(seen))]


def machine_section(session: Session) -> Section:
    """What a session of any kind ran on."""
    environment = session.environment
    alike, devices, unread = gpu_rows(environment)
    head, links, legend = link_rows(environment)
    found = []
    if devices:
        found.append(Table("Devices", alike, devices, texts=len(alike), closed=False))
    if len(links) > 1:
        found.append(Table("How the devices are linked", head, links, texts=len(head), closed=False))
    said = []
    if devices:
        said.append("Clocks, links and modes are those of the moment when the session began.")
    if unread:
        said.append(f"Unknown: {words.listed(unread)}.")
    if len(links) > 1:
        said.append(f"Between two devices lies, written as nvidia-smi topo -m writes it: {'; '.join(legend)}.")
    return Section("machine", "Machine", " ".join(said), [], "", tuple(found), pairs=tuple(machine_pairs(environment)))


def _usage(table: pd.DataFrame) -> Section:
    title = "How much of the hardware is used"
    if table.empty:
        return Section("usage", title, "", [], "No launch ended well, so nothing can be said about it.")
    factor, prefix = words.scaled(table["flops_per_s"].max())
    unit = " or ".join(dict.fromkeys(table["unit"]))
    one = unit.removesuffix("s") if " " not in unit else "token or sample"
    columns = {
        "Case": [marked(row["label"], row["strategy"]) for row in table.to_dict("records")],
        f"{unit.capitalize()}/s": [words.rate(value) for value in table["tokens_per_s"]],
        f"{prefix}FLOP/s": [_cell(value / factor) for value in table["flops_per_s"]],
        "MFU": [_share(value) for value in table["mfu"]],
        "J per step": [_cell(value) for value in table["joules_per_step"]],
        f"mJ per {one}": [_cell(value * 1e3) for value in table["joules_per_token"]],
    }
    # A column without any number says nothing that the caption does not.
    columns = {name: column for name, column in columns.items() if set(column) != {DASH}}
    rows = list(zip(*columns.values(), strict=True))
    found = [
        Table(
            "Throughput, arithmetic and energy of every case",
            tuple(columns),
            rows,
            closed=len(rows) > MOST_BARS,
        )
    ]
    if table[["formula_flops", "counted_flops"]].notna().any(axis=None):
        found.append(_flops(table))
    return Section("usage", title, _caption(table), [], "", tuple(found), lead=_lead(table))


def _lead(table: pd.DataFrame) -> str:
    """How far the fastest comes; what exchanges nothing is no answer."""
    ranked = table[[entry_of(str(strategy)).ranked for strategy in table["strategy"]]]
    ranked = ranked[ranked["flops_per_s"].notna()]
    if ranked.empty:
        return ""
    best = ranked.iloc[0]
    share = f", {_share(best['mfu'])} of its devices' peak" if words.known(best["mfu"]) else ""
    return f"{best['label']} computes {_flop_s(best['flops_per_s'])}{share}."


def _caption(table: pd.DataFrame) -> str:
    """What each column is, with the formula and the documents that it rests on, and why what is unknown is unknown."""
    said = ["FLOP/s is the floating-point operations of a step's forward and backward over its latency."]
    sources = set(table["flops_source"].dropna())
    if FORMULA in sources:
        said.append(
            "They are torchtitan's formula: a token takes 6 for each parameter but embeddings that are only looked up, "
            "and 12 × layers × heads × head width × sequence length."
        )
    if COUNTED in sources:
        which = "Where that formula does not apply, they" if FORMULA in sources else "They"
        said.append(f"{which} are what torch's FlopCounterMode counted in the reference launch.")
    if table["mfu"].notna().any():
        known = table.dropna(subset=["mfu"]).to_dict("records")
        peaks = [f"{_flop_s(row['peak_flops_per_s'] / row['devices'])} ({row['peak_source']})" for row in known]
        said.append(
            "MFU is their share of the peak of all devices of the case together; without sparsity, a device's is "
            f"{' or '.join(dict.fromkeys(peaks))}."
        )
    if table["joules_per_step"].notna().any():
        said.append("Joules are those of all its devices in the measured steps, idle time between them included.")
        if (table["joules_source"] == POWER).any():
            said.append("Where a device has no energy counter they are its power readings, integrated.")
    for name, number, reason in (
        ("FLOP/s", "flops_per_s", "flops_reason"),
        ("MFU", "mfu", "mfu_reason"),
        ("Energy", "joules_per_step", "joules_reason"),
    ):
        unknown = table[table[number].isna()]
        for why, group in unknown.groupby(reason, sort=False):
            whose = "" if len(group) == len(table) else f" of {words.listed(group['label'], most=2)}"
            said.append(f"{name}{whose} is unknown: {why}.")
    return " ".join(said)


def _flops(table: pd.DataFrame) -> Table:
    """A step's operations by both ways, of each work once: they are the work's, not the strategy's."""
    works = table.drop_duplicates(["model", "global_batch", "seq_len", "formula_flops", "counted_flops"])
    factor, prefix = words.scaled(works[["formula_flops", "counted_flops"]].max().max())
    rows: list[tuple[str, ...]] = [
        (
            f"{row['model']}, batch {row['global_batch']}" + (f" × {row['seq_len']}" if row["seq_len"] > 1 else ""),
            _cell(row["formula_flops"] / factor),
            _cell(row["counted_flops"] / factor),
            _cell(row["counted_flops"] / row["formula_flops"]),
        )
        for row in works.to_dict("records")
    ]
    head = ("Work", f"Formula, {prefix}FLOP", f"Counted, {prefix}FLOP", "Ratio")
    return Table("Operations of a step: by formula, and as torch counts them", head, rows)


def _flop_s(value: float) -> str:
    factor, prefix = words.scaled(value)
    return f"{words.digits(value / factor)} {prefix}FLOP/s"


def _share(mfu: float) -> str:
    """Small models use a thousandth of a large device, which is not 0."""
    return f"{words.digits(mfu * 100, 2)} %" if words.known(mfu) else DASH


def _cell(value: float) -> str:
    return words.digits(value) if words.known(value) else DASH
