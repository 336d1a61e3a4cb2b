"""The section of NCCL's choices, and of the timings of its Inspector."""

from __future__ import annotations

from parabench.analysis import format
from parabench.analysis.session import SessionData
from parabench.analysis.step.nccl import choices, inspected, wiring
from parabench.report.spec import WORDED, Column, Section, table_of

_CHOICES = (
    Column("Configuration", "label"),
    Column("Operation", "op", unknown=format.UNKNOWN),
    Column("Algorithm", "algorithm"),
    Column("Protocol", "protocol"),
    Column("Bytes", "bytes", "count"),
    Column("Channels", "channels", "count"),
    Column("Calls", "calls", "count"),
)
_INSPECTED = (
    Column("Configuration", "label"),
    Column("Operation", "op"),
    Column("Bytes", "bytes", "count"),
    Column("Ranks", "ranks", WORDED),
    Column("Calls", "calls", "count"),
    Column("Took, µs", "duration_s", "us"),
    Column("Algorithm, GB/s", "algbw_bytes_per_s", "gb"),
    Column("Bus, GB/s", "busbw_bytes_per_s", "gb"),
)


def nccl_section(seen: SessionData) -> Section | None:
    """Return the section; None if neither NCCL's debug log nor its Inspector was recorded."""
    chosen, timed, wired = choices(seen), inspected(seen), wiring(seen)
    if chosen.empty and timed.empty and not wired:
        return None
    return Section(
        "nccl",
        "NCCL",
        "The algorithm, protocol and channels of each collective, from NCCL's debug log, and the timings of NCCL's "
        "Inspector.",
        "NCCL's debug log has no choice of an algorithm.",
        (
            table_of("NCCL's choices", _CHOICES, chosen, closed=False),
            table_of("Medians of NCCL's Inspector over ranks and launches", _INSPECTED, timed, closed=False),
        ),
        lead=wired,
        reading="For reduce-scatter and all-gather, bytes are one rank's part. The Inspector's calls are counted on "
        "one rank.",
    )
