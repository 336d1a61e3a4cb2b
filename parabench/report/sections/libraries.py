"""The section of what torch and NCCL say themselves: DDP's logger, the allocator, NCCL's choices, their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd

from parabench import json_text
from parabench.analysis import format
from parabench.analysis.memory import memory_phases
from parabench.analysis.session import SessionData
from parabench.analysis.step.ddp_log import ddp_comparison, ddp_spans
from parabench.analysis.step.nccl import choices, inspected, wirings
from parabench.metrics import MEMORY_PARTS
from parabench.report.spec import MOST_CASES, WORDED, Column, Section, Table, case_table, table_of
from parabench.store.record import TRACES, UNCOUNTED

# What launches tell of their files, and who wrote them.
_FILES = {"profile": "profiler", "memory_snapshot": "allocator"}
_WHOSE = "Values are of the largest rank, in its largest instrumented step; medians over launches."


def libraries_section(seen: SessionData) -> Section | None:
    """None where a session was run without instruments and nothing else was asked of a library."""
    spans = ddp_spans(seen.once(ddp_comparison))
    tables = (
        *_ddp(spans),
        *_memory(memory_phases(seen)),
        *nccl_tables(seen),
        *_inspected(inspected(seen)),
        *_files(seen),
    )
    silent = _silent(seen)
    if not tables and not silent and seen.rows("span").empty:
        return None
    return Section(
        "libraries",
        "DDP, allocator and NCCL details",
        " ".join(["What torch and NCCL report themselves, next to the measurements here.", silent]).strip(),
        silent or "Neither torch nor NCCL reported anything: unknown, not zero.",
        tables,
        lead=_apart(spans),
    )


def _apart(spans: pd.DataFrame) -> str:
    if spans.empty:
        return ""
    worst = spans.iloc[int(spans["difference"].abs().argmax())]
    return (
        f"DDP's logger and these instruments differ by at most {format.percent(abs(worst['difference']))} "
        f"({worst['span']} of {worst['label']}: {format.milliseconds(worst['ddp_s'])} and "
        f"{format.milliseconds(worst['ours_s'])})."
    )


def _ddp(spans: pd.DataFrame) -> Iterator[Table]:
    if spans.empty:
        return
    yield case_table(
        "DDP's logger and these instruments, in ms",
        (
            Column("Case", "label"),
            Column("Span", "span"),
            Column("DDP", "ddp_s", "ms"),
            Column("Here", "ours_s", "ms"),
            Column("Difference", "difference", "percent"),
            Column("Launches", "launches", WORDED),
        ),
        spans,
        first="the first",
        note="Of each launch's last instrumented step; medians over launches and ranks. These spans are DDP's, not a "
        "step's parts: forward is the module's, without the loss; backward ends with the last gradient, here with the "
        "call for the last bucket; communication reaches from the first bucket to the last.",
    )


def _memory(table: pd.DataFrame) -> Iterator[Table]:
    """The allocator's readings of cases on GPUs, the resident set of those on the CPU."""
    counted, resident = table[table["reserved_bytes"].notna()], table[table["rss_bytes"].notna()]
    if len(counted):
        yield case_table(
            "Torch's allocator in each part of a step, in MiB",
            (
                Column("Case", "label"),
                Column("Part", lambda row: _part(row["part"])),
                Column("Allocated", "allocated_bytes", "mib"),
                Column("Reserved", "reserved_bytes", "mib"),
                Column("Not filled", "unfilled", "percent"),
                Column("Unused after", "unused_bytes", "mib"),
                Column("In split blocks", "inactive_split_bytes", "mib"),
            ),
            counted.assign(unfilled=1 - counted["allocated_bytes"] / counted["reserved_bytes"]),
            note="Allocated is the most that tensors took during a part, reserved the most that the allocator held for "
            "them; not filled is the share that the first leaves of the second: fragmentation and cache. Unused after "
            "was held in no tensor when the part ended; what of it lies in split blocks cannot be given back. Begin is "
            f"what is held when a step begins. {_WHOSE}",
        )
    if len(resident):
        parts = [part for part in MEMORY_PARTS if part in set(resident["part"])]
        yield case_table(
            "Resident set after each part of a step, in MiB",
            (Column("Case", "label"), *(Column(_part(part).capitalize(), part, "mib") for part in parts)),
            resident.pivot_table(
                "rss_bytes", ["case_id", "label"], "part", "first", sort=False, observed=True
            ).reset_index(),
            note="On the CPU torch's allocator keeps no count. This is the whole process, torch itself too, and memory "
            f"that was freed may stay in it. {_WHOSE}",
        )


def nccl_tables(seen: SessionData, source: str = "in an extra launch of each case") -> Iterator[Table]:
    """Yield what NCCL's debug logs show; `source` is where they are from."""
    chosen, wired = choices(seen), wirings(seen)
    if len(chosen):
        yield case_table(
            "NCCL's choices",
            (
                Column("Case", "label"),
                Column("Operation", lambda row: row["op"] if isinstance(row["op"], str) else format.UNKNOWN),
                Column("Algorithm", "algorithm"),
                Column("Protocol", "protocol"),
                Column("Bytes", "bytes", "count"),
                Column("Channels", "channels", "count"),
                Column("Calls", "calls", "count"),
            ),
            chosen,
            first="the first",
            note=f"From NCCL's debug log, {source}. For reduce-scatter and all-gather, bytes are one rank's part.",
        )
    if wired:
        note = (
            f"From NCCL's debug log, {source}. Connections are those of all ranks; multicast is what NVLS needs. "
            "Ring 0 is the order of ranks in channel 0; Tree 0 is who is below and above its first rank there, as NCCL "
            "writes it."
        )
        if len(wired) > MOST_CASES:
            note += f" Listed are {MOST_CASES} of {len(wired):,} cases; the store has all."
        shown = wired[:MOST_CASES]
        yield table_of(
            "How NCCL connected the ranks", _WIRING, shown, note=note, cases=tuple(each["case_id"] for each in shown)
        )


def _counts(numbers: Mapping[str, int]) -> str:
    """'24 coll, 16 nvls'."""
    return ", ".join(f"{number} {name}" for name, number in numbers.items()) or format.UNKNOWN


_WIRING = (
    Column("Case", "label"),
    Column("NCCL", lambda of: of["version"] or format.UNKNOWN),
    Column("Network", lambda of: "; ".join(filter(None, (of["network"], of["plugin"]))) or format.UNKNOWN),
    Column("Multicast", lambda of: {True: "yes", False: "no", None: format.UNKNOWN}[of["nvls"]]),
    Column("Channels", lambda of: _counts(of["channels"])),
    Column("Connections", lambda of: _counts(of["transports"])),
    Column("Ring 0", lambda of: of["rings"].get("0", format.UNKNOWN)),
    Column("Tree 0", lambda of: of["trees"].get("0", format.UNKNOWN)),
)


def _silent(seen: SessionData) -> str:
    """That NCCL ran and told nothing; empty where it told, or had nothing to do."""
    over_nccl = (seen.counted["backend"] == "nccl") & (seen.counted["world_size"] > 1)
    return "NCCL's choices were not recorded: unknown." if over_nccl.any() and choices(seen).empty else ""


INSPECTED = (
    Column("Operation", "op"),
    Column("Bytes", "bytes", "count"),
    Column("Ranks", "ranks", WORDED),
    Column("Calls", "calls", "count"),
    Column("Took, µs", "duration_s", "us"),
    Column("Algorithm, GB/s", "algbw_bytes_per_s", "gb"),
    Column("Bus, GB/s", "busbw_bytes_per_s", "gb"),
)


def _inspected(table: pd.DataFrame) -> Iterator[Table]:
    if table.empty:
        return
    yield case_table(
        "NCCL's Inspector",
        (Column("Case", "label"), *INSPECTED),
        table,
        first="the first",
        note="It was switched on for all of the run, so the timed steps carried it too. Medians over ranks and "
        "launches; calls are one rank's in one launch.",
    )


def _files(seen: SessionData) -> Iterator[Table]:
    """What `run --profile` and `--memory-snapshot` left, by the names that launches recorded."""
    rows = []
    told_of = seen.numbers["facts"].str.contains("|".join(f'"{name}"' for name in _FILES))
    for launch in seen.numbers[told_of].to_dict("records"):
        facts = json_text.parsed(launch["facts"])
        of = {"case_id": launch["case"], "label": launch["label"]}
        of["launch"] = UNCOUNTED.get(launch["repetition"], f"block {launch['repetition']}")
        rows += [of | {"from": who} | told for name, who in _FILES.items() for told in facts.get(name, [])]
    if rows:
        yield case_table(
            "Files of traced steps",
            (
                Column("Case", "label"),
                Column("Launch", "launch"),
                Column("From", "from"),
                Column("File", "file"),
                Column("Rank", "rank", WORDED),
                Column("MiB", "bytes", "mib"),
            ),
            pd.DataFrame(rows),
            first="the first",
            note=f"They are in the folder {TRACES} beside the store. torch.profiler's are for ui.perfetto.dev, those "
            "of torch's allocator for pytorch.org/memory_viz.",
        )


def _part(name: str) -> str:
    return name.replace("_", " and ")
