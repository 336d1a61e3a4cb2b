"""The section of what torch and NCCL report themselves: DDP's logger, the allocator, NCCL's choices, their files."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from parabench import json_text
from parabench.analysis import format
from parabench.analysis.memory import memory_phases
from parabench.analysis.session import SessionData
from parabench.analysis.step.ddp_log import ddp_comparison, ddp_spans
from parabench.analysis.step.nccl import choices, inspected, wirings
from parabench.metrics import MEMORY_PARTS
from parabench.report.spec import WORDED, Column, Section, Table, table_of
from parabench.store.record import TRACES, UNCOUNTED
from parabench.store.results import records

# By fact of a launch: the writer of the files that it names.
_FILES = {"profile": "profiler", "memory_snapshot": "allocator"}
_CASE = Column("Case", "label")
_WHOSE = "Values are of the largest rank, in its largest instrumented step; medians over launches."


def libraries_section(seen: SessionData) -> Section | None:
    """Return the section; None if the session had no instruments and no library reported anything."""
    spans = ddp_spans(seen.once(ddp_comparison))
    over_nccl = (seen.counted["backend"] == "nccl") & (seen.counted["world_size"] > 1)
    silent = "NCCL's choices were not recorded: unknown." if over_nccl.any() and choices(seen).empty else ""
    lead = ""
    if len(spans):
        worst = spans.iloc[int(spans["difference"].abs().argmax())].to_dict()
        lead = format.filled(
            "DDP's logger and these instruments differ by at most {most:percent} ({span} of {label}: {ddp_s:ms} and "
            "{ours_s:ms}).",
            worst | {"most": abs(worst["difference"])},
        )
    section = Section(
        "libraries",
        "DDP, allocator and NCCL details",
        f"What torch and NCCL report themselves, next to the measurements here. {silent}".strip(),
        silent or "Neither torch nor NCCL reported anything: unknown, not zero.",
        (_ddp(spans), *_memory(memory_phases(seen)), *nccl_tables(seen), _inspector(seen), _files(seen)),
        lead=lead,
    )
    return section if section.tables or silent or len(seen.rows("span")) else None


def _ddp(spans: pd.DataFrame) -> Table:
    return table_of(
        "DDP's logger and these instruments, in ms",
        (
            _CASE,
            Column("Span", "span"),
            Column("DDP", "ddp_s", "ms"),
            Column("Here", "ours_s", "ms"),
            Column("Difference", "difference", "percent"),
            Column("Launches", "launches", WORDED),
        ),
        spans,
        note="Values are from the last instrumented step of each launch, medians over launches and ranks. DDP's spans "
        "differ from the parts of a step. Forward has no loss. Backward ends with the last gradient, here with the "
        "call for the last bucket. Communication is from the first bucket to the last.",
    )


def _memory(table: pd.DataFrame) -> tuple[Table, Table]:
    """Return the allocator's readings of cases on GPUs, and the resident set of cases on the CPU."""
    counted, resident = table[table["reserved_bytes"].notna()], table[table["rss_bytes"].notna()]
    parts = [part for part in MEMORY_PARTS if part in set(resident["part"])]
    wide = resident.pivot_table("rss_bytes", ["case_id", "label"], "part", "first", sort=False, observed=True)
    return table_of(
        "Torch's allocator in each part of a step, in MiB",
        (
            _CASE,
            Column("Part", lambda row: _part(row["part"])),
            Column("Allocated", "allocated_bytes", "mib"),
            Column("Reserved", "reserved_bytes", "mib"),
            Column("Not filled", lambda row: 1 - row["allocated_bytes"] / row["reserved_bytes"], "percent"),
            Column("Unused after", "unused_bytes", "mib"),
            Column("In split blocks", "inactive_split_bytes", "mib"),
        ),
        counted,
        note="Allocated is the peak of tensors during a part, reserved the peak that the allocator held for them. Not "
        "filled is the share of reserved memory without tensors: fragmentation and cache. Unused after is such memory "
        f"at the end of the part; its split blocks cannot be returned. Begin is the start of a step. {_WHOSE}",
    ), table_of(
        "Resident set after each part of a step, in MiB",
        (_CASE, *(Column(_part(part).capitalize(), part, "mib") for part in parts)),
        wide.reset_index(),
        note="On the CPU torch's allocator keeps no count. This is the whole process, torch itself too, and memory "
        f"that was freed may stay in it. {_WHOSE}",
    )


def _part(name: str) -> str:
    return name.replace("_", " and ")


def nccl_tables(seen: SessionData, source: str = "in an extra launch of each case") -> list[Table]:
    """Return the tables of NCCL's debug logs; `source` is where the logs are from."""
    chosen = table_of(
        "NCCL's choices",
        (
            _CASE,
            Column("Operation", lambda row: row["op"] if isinstance(row["op"], str) else format.UNKNOWN),
            Column("Algorithm", "algorithm"),
            Column("Protocol", "protocol"),
            Column("Bytes", "bytes", "count"),
            Column("Channels", "channels", "count"),
            Column("Calls", "calls", "count"),
        ),
        choices(seen),
        note=f"From NCCL's debug log, {source}. For reduce-scatter and all-gather, bytes are one rank's part.",
    )
    wired = table_of(
        "How NCCL connected the ranks",
        (
            _CASE,
            Column("NCCL", lambda row: row["version"] or format.UNKNOWN),
            Column("Network", lambda row: "; ".join(filter(None, (row["network"], row["plugin"]))) or format.UNKNOWN),
            Column("Multicast", lambda row: {True: "yes", False: "no", None: format.UNKNOWN}[row["nvls"]]),
            Column("Channels", lambda row: _counts(row["channels"])),
            Column("Connections", lambda row: _counts(row["transports"])),
            Column("Ring 0", lambda row: row["rings"].get("0", format.UNKNOWN)),
            Column("Tree 0", lambda row: row["trees"].get("0", format.UNKNOWN)),
        ),
        wirings(seen),
        note=f"From NCCL's debug log, {source}. Connections are of all ranks. NVLS needs multicast. Ring 0 is the "
        "order of ranks in channel 0. Tree 0 has the ranks below and above its first rank, as NCCL writes it.",
    )
    return [table for table in (chosen, wired) if table.rows]


def _counts(numbers: Mapping[str, int]) -> str:
    """Return '24 coll, 16 nvls'."""
    return ", ".join(f"{number} {name}" for name, number in numbers.items()) or format.UNKNOWN


INSPECTED = (
    Column("Operation", "op"),
    Column("Bytes", "bytes", "count"),
    Column("Ranks", "ranks", WORDED),
    Column("Calls", "calls", "count"),
    Column("Took, µs", "duration_s", "us"),
    Column("Algorithm, GB/s", "algbw_bytes_per_s", "gb"),
    Column("Bus, GB/s", "busbw_bytes_per_s", "gb"),
)


def _inspector(seen: SessionData) -> Table:
    return table_of(
        "NCCL's Inspector",
        (_CASE, *INSPECTED),
        inspected(seen),
        note="It was switched on for all of the run, so the timed steps carried it too. Medians over ranks and "
        "launches; calls are one rank's in one launch.",
    )


def _files(seen: SessionData) -> Table:
    """Return the table of the files that `run --profile` and `--memory-snapshot` wrote."""
    rows = []
    wrote = seen.numbers["facts"].str.contains("|".join(f'"{name}"' for name in _FILES))
    for launch in records(seen.numbers[wrote]):
        facts = json_text.parsed(launch["facts"])
        own = {"case_id": launch["case"], "label": launch["label"]}
        own["launch"] = UNCOUNTED.get(launch["repetition"], f"block {launch['repetition']}")
        rows += [own | {"from": writer} | file for name, writer in _FILES.items() for file in facts.get(name, [])]
    return table_of(
        "Files of traced steps",
        (
            _CASE,
            Column("Launch", "launch"),
            Column("From", "from"),
            Column("File", "file"),
            Column("Rank", "rank", WORDED),
            Column("MiB", "bytes", "mib"),
        ),
        rows,
        note=f"The folder {TRACES} is next to the results database. Open files of torch.profiler in ui.perfetto.dev, "
        "and files of torch's allocator in pytorch.org/memory_viz.",
    )
