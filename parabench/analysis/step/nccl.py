"""What NCCL chose, as it told in each case's explaining launch, which counts for nothing else; and what its Inspector
measured in those that count."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd

from parabench.analysis.session import SessionData
from parabench.plan.case import RecordedCase
from parabench.store.record import EXPLAIN_BLOCK, Status

COLUMNS = [
    "case_id", "label", "world_size", "version", "op", "bytes", "algorithm", "protocol", "channels", "calls",
]  # fmt: skip
INSPECTED = ["case_id", "label", "op", "bytes", "ranks"]
MEASURED = ["duration_s", "algbw_bytes_per_s", "busbw_bytes_per_s"]


def explained(seen: SessionData) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return (launch, what NCCL's logs show) for each explaining launch that succeeded, and for recordings.

    Each log has "version", "network", "plugin", "nvls", "channels", "rings", "trees", "transports" and "choices", as
    `probes.nccl.parse_log` returns them.
    """
    launches = seen.numbers
    if seen.session.kind != RecordedCase.kind:
        launches = launches[(launches["repetition"] == EXPLAIN_BLOCK) & (launches["status"] == Status.OK)]
    rows: list[dict[Any, Any]] = launches.to_dict("records")
    return [(row, seen.facts[row["launch_id"]].get("nccl", [])) for row in rows]


def choices(seen: SessionData) -> pd.DataFrame:
    """One row per case, operation, size and choice, smallest first: `case_id, label, world_size, version, op, bytes,
    algorithm, protocol, channels, calls`. `bytes` are NCCL's: of a reduce-scatter or an all-gather one rank's part.

    Only the first rank of a communicator logs, so ranks add up: `calls` counts communicators' calls, not ranks'.
    Unknown is None or NaN. Empty where nothing was explained.
    """
    rows = [
        {
            "case_id": launch["case"],
            **{name: launch[name] for name in ("label", "world_size")},
            "version": told["version"],
            **choice,
        }
        for launch, ranks in explained(seen)
        for told in ranks
        for choice in told["choices"]
    ]
    table = pd.DataFrame(rows, columns=COLUMNS)
    if not rows:
        return table
    summed = table.groupby(COLUMNS[:-1], dropna=False, sort=False).agg(calls=("calls", "sum")).reset_index()
    return summed.sort_values(["case_id", "op", "bytes"], kind="stable").reset_index(drop=True)


def wirings(seen: SessionData) -> list[dict[str, Any]]:
    """Return how NCCL connected the ranks of each configuration with logs; what they lack is None or empty.

    `version`, `network`, `plugin`, `nvls`, `channels`, and `rings` and `trees`, {channel: ranks}, are those of the
    first rank that logs them; `transports` are {name: connections} of all ranks.
    """
    found = []
    for launch, ranks in explained(seen):
        if ranks:
            wiring = {
                name: next((told[name] for told in ranks if told[name] not in (None, {})), ranks[0][name])
                for name in _FIRST
            }
            transports = sum((Counter(told["transports"]) for told in ranks), Counter[str]())
            found.append(wiring | {"case_id": launch["case"], "label": launch["label"], "transports": transports})
    return found


_FIRST = ("version", "network", "plugin", "nvls", "channels", "rings", "trees")


def inspected(seen: SessionData, launches: pd.DataFrame | None = None) -> pd.DataFrame:
    """One row per case, operation, size and number of ranks that NCCL's Inspector told of, in the launches that count
    or in those that are given: INSPECTED, `calls` on one rank of one launch, and MEASURED, medians over ranks and
    launches. Empty where it was off or left no file."""
    chosen = seen.counted if launches is None else launches
    rows = [
        {"case_id": case_id, "label": label, **op}
        for at, case_id, label in zip(*(chosen[name] for name in ("launch_id", "case", "label")), strict=True)
        for told in seen.facts[at].get("nccl_inspector", [])
        for op in told["ops"]
    ]
    table = pd.DataFrame(rows, columns=[*INSPECTED, "calls", *MEASURED])
    if not rows:
        return table
    table = table.astype(dict.fromkeys(MEASURED, float))
    groups = table.groupby(INSPECTED, sort=False)[["calls", *MEASURED]]
    return groups.median().reset_index().sort_values(["case_id", "op", "bytes"], kind="stable").reset_index(drop=True)
