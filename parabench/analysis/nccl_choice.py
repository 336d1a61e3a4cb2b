"""What NCCL chose, as it told in each case's explaining launch, which counts for nothing else."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from parabench.analysis.evidence import Evidence
from parabench.record import EXPLAIN_BLOCK, Status

COLUMNS = [
    "case_id", "label", "world_size", "version", "op", "bytes", "algorithm", "protocol", "channels", "calls",
]  # fmt: skip


def explained(seen: Evidence) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """(launch, what each rank's log told) of every explaining launch that ended well: `probes.nccl_log.parse`'s
    "version", "network", "plugin", "nvls", "channels", "rings", "trees", "transports" and "choices", and "rank"."""
    launches = seen.launches[(seen.launches["block"] == EXPLAIN_BLOCK) & (seen.launches["status"] == Status.OK)]
    rows: list[dict[Any, Any]] = launches.to_dict("records")
    return [(row, json.loads(row["facts"]).get("nccl", [])) for row in rows]


def choices(seen: Evidence) -> pd.DataFrame:
    """One row per case, operation, size and choice, smallest first: `case_id, label, world_size, version, op, bytes,
    algorithm, protocol, channels, calls`. `bytes` are NCCL's: of a reduce-scatter or an all-gather one rank's part.

    Only the first rank of a communicator logs, so ranks add up: `calls` counts communicators' calls, not ranks'.
    Unknown is None or NaN. Empty where nothing was explained.
    """
    rows = [
        {**{name: launch[name] for name in ("case_id", "label", "world_size")}, "version": told["version"], **choice}
        for launch, ranks in explained(seen)
        for told in ranks
        for choice in told["choices"]
    ]
    table = pd.DataFrame(rows, columns=COLUMNS)
    summed = table.groupby(COLUMNS[:-1], dropna=False, sort=False).agg(calls=("calls", "sum")).reset_index()
    return summed.sort_values(["case_id", "op", "bytes"], kind="stable").reset_index(drop=True)
