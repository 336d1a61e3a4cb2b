"""Read NCCL's choices from debug logs, and the timings of collectives from NCCL's Inspector.

Each configuration has one launch with debug logs, which does not count.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.session import SessionData
from parabench.plan.case import RecordedCase
from parabench.store.record import EXPLAIN_REPETITION, Status
from parabench.store.results import records

_CHOICE = ["case_id", "label", "op", "bytes", "algorithm", "protocol", "channels"]
_INSPECTED = ["case_id", "label", "op", "bytes", "ranks"]
_MEASURED = ["calls", "duration_s", "algbw_bytes_per_s", "busbw_bytes_per_s"]


def _logs(seen: SessionData) -> list[tuple[dict[Any, Any], list[dict[str, Any]]]]:
    """Return (launch, logs) of each successful launch with debug logs, as `probes.nccl.parse_log` returns them."""
    launches = seen.numbers.rename(columns={"case": "case_id"})
    if seen.session.kind != RecordedCase.kind:
        launches = launches[(launches["repetition"] == EXPLAIN_REPETITION) & (launches["status"] == Status.OK)]
    rows = records(launches[["launch_id", "case_id", "label"]])
    return [(row, logs) for row in rows if (logs := seen.facts[row["launch_id"]].get("nccl"))]


def choices(seen: SessionData) -> pd.DataFrame:
    """Return NCCL's choices: one row per case, operation, size, algorithm, protocol and number of channels.

    - `bytes`: as NCCL counts them; for a reduce-scatter or all-gather, one rank's part
    - `calls`: the number of calls; each counts once, because only the first rank of a communicator logs
    """
    rows = [launch | choice for launch, logs in _logs(seen) for log in logs for choice in log["choices"]]
    table = pd.DataFrame(rows, columns=[*_CHOICE, "calls"])
    if table.empty:
        return table
    summed = table.groupby(_CHOICE, dropna=False, sort=False)["calls"].sum().reset_index()
    return summed.sort_values(["case_id", "op", "bytes"], kind="stable", ignore_index=True)


def wiring(seen: SessionData) -> str:
    """Return sentences about how NCCL connected the ranks; empty without debug logs.

    For example 'NCCL 2.27.5: network IB; channels 24 coll; connections 12 NET, 12 SHM.' Connections are counted over
    all ranks. Launches with different logs have separate sentences.
    """
    found = []
    for _, logs in _logs(seen):
        version, network, channels = (
            next((log[name] for log in logs if log[name] not in (None, {})), None)
            for name in ("version", "network", "channels")
        )
        connections = sum((Counter(log["transports"]) for log in logs), Counter[str]())
        parts = [f"network {format.or_unknown(network)}"]
        for name, numbers in (("channels", channels), ("connections", connections)):
            if numbers:
                parts.append(f"{name} {', '.join(f'{number} {kind}' for kind, number in numbers.items())}")
        found.append(f"NCCL {format.or_unknown(version)}: {'; '.join(parts)}.")
    return " ".join(dict.fromkeys(found))


def inspected(seen: SessionData) -> pd.DataFrame:
    """Return the collectives in the files of NCCL's Inspector: one row per case, operation, size and number of ranks.

    The columns are _INSPECTED, and medians of _MEASURED over ranks and launches.
    """
    launches = seen.numbers if seen.session.kind == RecordedCase.kind else seen.counted
    rows = [
        launch | op
        for launch in records(launches[["launch_id", "case", "label"]].rename(columns={"case": "case_id"}))
        for file in seen.facts[launch["launch_id"]].get("nccl_inspector", [])
        for op in file["ops"]
    ]
    table = pd.DataFrame(rows, columns=[*_INSPECTED, *_MEASURED])
    if table.empty:
        return table
    medians = table.astype(dict.fromkeys(_MEASURED, float)).groupby(_INSPECTED, sort=False)[_MEASURED].median()
    return medians.reset_index().sort_values(["case_id", "op", "bytes"], kind="stable", ignore_index=True)
