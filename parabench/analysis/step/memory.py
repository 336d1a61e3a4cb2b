"""Memory by the parts of an instrumented step: torch's allocator on GPUs, the resident set on the CPU."""

from __future__ import annotations

import pandas as pd

from parabench.analysis.session import SessionData
from parabench.metrics import MEMORY_PARTS, MEMORY_READINGS

COLUMNS = ["case_id", "label", "device", "part", *MEMORY_READINGS, "launches"]


def memory_phases(seen: SessionData) -> pd.DataFrame:
    """Return one row per configuration and part of the step, with COLUMNS, in bytes; unknown is NaN.

    A launch's numbers are those of the rank with the most reserved memory in any part (on the CPU, resident memory),
    each the largest over its instrumented steps. A configuration's are the medians over launches.
    """
    names = {f"{part}_{reading}": (part, reading) for part in MEMORY_PARTS for reading in MEMORY_READINGS}
    rows = seen.rows("instrumented")
    rows = rows[rows["metric"].isin(names)]
    told = rows["metric"].map(names)
    rows = rows.assign(part=told.str[0], reading=told.str[1], value=pd.to_numeric(rows["value"]))
    most = rows.pivot_table(index=["launch_id", "rank", "part"], columns="reading", values="value", aggfunc="max")
    most = most.reindex(columns=list(MEMORY_READINGS)).reset_index()
    held = most["reserved_bytes"].fillna(most["rss_bytes"]).groupby([most["launch_id"], most["rank"]]).max()
    largest = pd.MultiIndex.from_tuples(held.dropna().groupby("launch_id").idxmax(), names=["launch_id", "rank"])
    own = most[pd.MultiIndex.from_frame(most[["launch_id", "rank"]]).isin(largest)]
    own = own.merge(seen.of_launch[["launch_id", "case_id"]], on="launch_id")
    groups = own.groupby(["case_id", "part"])
    table = groups[list(MEMORY_READINGS)].median().assign(launches=groups["launch_id"].nunique()).reset_index()
    table = seen.cases[["case_id", "label", "device"]].merge(table, on="case_id")
    order = {part: at for at, part in enumerate(MEMORY_PARTS)}
    table = table.sort_values("part", key=lambda parts: parts.map(order), kind="stable")
    return seen.cases[["case_id"]].merge(table, on="case_id")[COLUMNS]
