"""The sections of logs of nccl-tests: their bandwidths next to each other, and how each log was made."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from parabench import json_text
from parabench.analysis import format
from parabench.analysis.collectives.bus import one_form
from parabench.plan.case import UNKNOWN
from parabench.plan.collective_case import size_text
from parabench.report.spec import Column, Section, Table, table_of
from parabench.store.results import records

# More columns do not fit on a page.
MOST_LOGS = 6
_LOGS = (
    Column("Test", "label"),
    Column("File", "file"),
    Column("Hosts", lambda row: format.listed(row["hosts"]) or UNKNOWN),
    Column("GPUs", lambda row: format.listed(row["gpus"]) or UNKNOWN),
    Column("NCCL", lambda row: row["version"] or UNKNOWN),
    Column("Network", lambda row: row["network"] or UNKNOWN),
    Column("Connections", lambda row: ", ".join(f"{n} {name}" for name, n in row["transports"].items()) or UNKNOWN),
)


def logs_sections(launches: pd.DataFrame, sizes: pd.DataFrame) -> tuple[Section, ...]:
    """Return the sections of a session that was read from logs; none if it was measured here.

    `sizes` is a `bus_table` with a column `question`.
    """
    rows = [row | log for row in records(launches) if (log := json_text.parsed(row["facts"]).get("log"))]
    if not rows:
        return ()
    compared = Section(
        "compared",
        "Logs next to each other",
        "Bus bandwidth in GB/s by size, for tests with the same operation and ranks. If the operation is unknown, it "
        "is the algorithm bandwidth.",
        "No two tests have the same operation, ranks, type and reduction.",
        tuple(_side_by_side(one_form(sizes[sizes["good"] > 0]))),
        reading="Out of place where the log has it. Ratio is the time of the second log over the first.",
    )
    tests = table_of("Tests in the logs", _LOGS, rows, closed=False)
    messages = "Network and connections are from NCCL's messages (NCCL_DEBUG=INFO) in the log."
    return compared, Section("logs", "How each log was made", messages, tables=(tests,))


def _side_by_side(sizes: pd.DataFrame) -> Iterator[Table]:
    for title, rows in sizes.groupby("question", sort=False):
        names = list(rows["algorithm"].unique())
        if len(names) < 2:
            continue
        number = "algbw" if rows["op"].iloc[0] == UNKNOWN else "busbw"
        wide = rows.pivot_table([number, "call_s"], "bytes", "algorithm")
        cells = wide[number].assign(bytes=wide.index)
        columns = [Column("Size", lambda row: size_text(int(row["bytes"]))), *map(_rate, names[:MOST_LOGS])]
        if len(names) == 2:
            cells["ratio"] = wide["call_s"][names[1]] / wide["call_s"][names[0]]
            columns.append(Column("Ratio", "ratio", "ratio"))
        more = f" The first {MOST_LOGS} of {len(names):,} logs are listed." * (len(names) > MOST_LOGS)
        yield table_of(str(title), columns, cells, closed=False, note=f"{title}.{more}")


def _rate(name: str) -> Column:
    return Column(name, lambda row: row[name], "digits")
