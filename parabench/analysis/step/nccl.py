"""NCCL's choices, from the debug logs of launches that do not count, and the timings of its Inspector."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd

from parabench.analysis.session import SessionData
from parabench.plan.case import RecordedCase
from parabench.store.record import EXPLAIN_BLOCK, Status
from parabench.store.results import records

_CHOICE = ["case_id", "label", "world_size", "version", "op", "bytes", "algorithm", "protocol", "channels"]
_INSPECTED = ["case_id", "label", "op", "bytes", "ranks"]
_MEASURED = ["calls", "duration_s", "algbw_bytes_per_s", "busbw_bytes_per_s"]
_WIRING = ("version", "network", "plugin", "nvls", "channels", "rings", "trees")


def _explained(seen: SessionData) -> list[tuple[dict[Any, Any], list[dict[str, Any]]]]:
    """Return (launch, logs as `probes.nccl.parse_log` returns them) of successful debug-log launches and recordings."""
    launches = seen.numbers.rename(columns={"case": "case_id"})
    if seen.session.kind != RecordedCase.kind:
        launches = launches[(launches["repetition"] == EXPLAIN_BLOCK) & (launches["status"] == Status.OK)]
    rows = records(launches[["launch_id", "case_id", "label", "world_size"]])
    return [(row, seen.facts[row["launch_id"]].get("nccl", [])) for row in rows]


def choices(seen: SessionData) -> pd.DataFrame:
    """Return one row per case, operation, size and choice, smallest first, with _CHOICE and `calls`.

    - `bytes`: as NCCL counts them; for a reduce-scatter or all-gather, one rank's part
    - `calls`: calls of communicators, because only the first rank of each logs
    """
    logs = [
        (launch | {"version": log["version"]}, log) for launch, launch_logs in _explained(seen) for log in launch_logs
    ]
    rows = [launch | choice for launch, log in logs for choice in log["choices"]]
    table = pd.DataFrame(rows, columns=[*_CHOICE, "calls"])
    summed = table.groupby(_CHOICE, dropna=False, sort=False)["calls"].sum().reset_index()
    return summed.sort_values(["case_id", "op", "bytes"], kind="stable", ignore_index=True)


def wirings(seen: SessionData) -> list[dict[str, Any]]:
    """Return how NCCL connected the ranks of each configuration with logs; unknown is None or empty.

    Values of _WIRING come from the first rank that logs them. `transports` are {name: connections} of all ranks.
    """
    return [
        {name: next((log[name] for log in logs if log[name] not in (None, {})), logs[0][name]) for name in _WIRING}
        | {"case_id": launch["case_id"], "label": launch["label"]}
        | {"transports": sum((Counter(log["transports"]) for log in logs), Counter[str]())}
        for launch, logs in _explained(seen)
        if logs
    ]


def inspected(seen: SessionData, launches: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return one row per case, operation, size and number of ranks in the files of NCCL's Inspector.

    The columns are _INSPECTED and the medians of _MEASURED over ranks and `launches`, by default all that count.
    """
    chosen = (seen.counted if launches is None else launches).rename(columns={"case": "case_id"})
    rows = [
        launch | op
        for launch in records(chosen[["launch_id", "case_id", "label"]])
        for file in seen.facts[launch["launch_id"]].get("nccl_inspector", [])
        for op in file["ops"]
    ]
    table = pd.DataFrame(rows, columns=[*_INSPECTED, *_MEASURED]).astype(dict.fromkeys(_MEASURED, float))
    medians = table.groupby(_INSPECTED, sort=False)[_MEASURED].median().reset_index()
    return medians.sort_values(["case_id", "op", "bytes"], kind="stable", ignore_index=True)
