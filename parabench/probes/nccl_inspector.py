"""What NCCL's Inspector measured, where the user has switched it on: a plugin of NCCL's that times every collective.

It is no instrument of ours: it is on in the timed steps too, when NCCL_PROFILER_PLUGIN and NCCL_INSPECTOR_ENABLE say so
(NCCL's ext-profiler/inspector). What it wrote of a launch is read after the group was left, which makes it write.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from parabench.probes.nccl_log import OPS

# The plugin's name for each number and ours, with what makes SI units of it.
NUMBERS = {
    "coll_exec_time_us": ("duration_s", 1e-6),
    "coll_algobw_gbs": ("algbw_bytes_per_s", 1e9),
    "coll_busbw_gbs": ("busbw_bytes_per_s", 1e9),
}


def told(environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """{"nccl_inspector": {"file", "ops"}} of this process; {} where the Inspector is off or writes for Prometheus.

    "file" is None where none was found.
    """
    if off(environment, "NCCL_INSPECTOR_ENABLE") or not off(environment, "NCCL_INSPECTOR_PROM_DUMP"):
        return {}
    job = environment.get("SLURM_JOBID", "unknown-jobid")
    folder = Path(environment.get("NCCL_INSPECTOR_DUMP_DIR", f"nccl-inspector-{job}"))
    path = folder / f"{socket.gethostname()}-pid{os.getpid()}.log"
    if not path.exists():
        return {"nccl_inspector": {"file": None, "ops": []}}
    return {"nccl_inspector": {"file": str(path), "ops": ops(path.read_text(errors="replace"))}}


def off(environment: Mapping[str, str], name: str) -> bool:
    """Whether a switch of the environment is not set, or set to 0."""
    return environment.get(name, "0") in ("", "0")


def ops(text: str) -> list[dict[str, Any]]:
    """One entry for each operation and size: "op", "bytes", "ranks", "calls", and the medians "duration_s",
    "algbw_bytes_per_s" and "busbw_bytes_per_s", None where the plugin tells none."""
    calls: dict[tuple[str, int, int], list[Mapping[str, Any]]] = {}
    for entry in entries(text):
        call = entry.get("coll_perf")
        if isinstance(call, dict) and "coll" in call:
            op = str(call["coll"])
            key = OPS.get(op, op), call["coll_msg_size_bytes"], entry["header"]["n_ranks"]
            calls.setdefault(key, []).append(call)
    return [
        {"op": op, "bytes": size, "ranks": ranks, "calls": len(each)}
        | {ours: _median(each, theirs, factor) for theirs, (ours, factor) in NUMBERS.items()}
        for (op, size, ranks), each in calls.items()
    ]


def entries(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, one after the other, however they are laid out; it may end in the middle of one."""
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        try:
            entry, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            return
        yield entry


def _median(calls: list[Mapping[str, Any]], name: str, factor: float) -> float | None:
    values = [call[name] * factor for call in calls if call.get(name) is not None]
    return median(values) if values else None
