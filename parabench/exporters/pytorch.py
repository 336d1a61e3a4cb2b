"""PyTorch's benchmark schema v3, a list of records of one metric each, which hud.pytorch.org shows.

Source: "How to integrate with PyTorch OSS benchmark database" (the wiki of pytorch/pytorch), and the table that stores
it: clickhouse_db_schema/oss_ci_benchmark_v3/schema.sql in pytorch/test-infra. The uploader adds repository, commit,
workflow and time. Values of `extra_info` are strings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parabench import json_text
from parabench.analysis.session import SessionData
from parabench.exporters.results import Metric, Result, results_of
from parabench.store.record import GB

# The fields of a case that have their own place in a record.
APART = ("model", "precision", "dtype", "backend")


def export(seen: SessionData) -> str:
    """Return the file's text. Raises UsageError for a session without numbers."""
    environment = seen.session.environment
    versions = {name: {"version": str(each)} for name, each in (environment.get("versions") or {}).items() if each}
    common = {"runners": [_runner(environment)], "dependencies": versions}
    return json_text.written(
        [_record(seen, each, metric) | common for each in results_of(seen) for metric in each.metrics]
    )


def _record(seen: SessionData, result: Result, metric: Metric) -> dict[str, Any]:
    session, fields = seen.session, result.fields
    other = {name: value for name, value in fields.items() if name not in APART}
    return {
        "benchmark": {
            "name": f"parabench {session.suite}",
            "mode": session.kind,
            "dtype": str(fields.get("precision") or fields.get("dtype")),
            "extra_info": _strings({"case": result.name, "case_id": result.case_id, **other}),
        },
        "model": {
            "name": str(fields.get("model") or fields["op"]),
            "type": session.kind,
            "backend": str(fields["backend"]),
            "origins": ["parabench"],
        },
        "metric": {
            "name": f"{metric.name}({metric.unit})",
            "benchmark_values": list(metric.launches or (metric.value,)),
            "target_value": 0.0,
            "extra_info": _strings({"value": metric.value, "low": metric.low, "high": metric.high}),
        },
    }


def _runner(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the machine, without unknown values: the table has a default for each."""
    gpus = environment.get("gpus") or []
    memory = {"avail_mem_in_gb": environment.get("memory_bytes")}
    memory["avail_gpu_mem_in_gb"] = sum(gpu.get("memory_bytes") or 0 for gpu in gpus)
    known = {
        "name": environment.get("host"),
        "type": environment.get("os"),
        "cpu_info": environment.get("cpu"),
        "cpu_count": environment.get("cores"),
        "gpu_info": gpus[0].get("name") if gpus else None,
        "gpu_count": len(gpus),
        **{name: round(size / GB) if size else None for name, size in memory.items()},
    }
    return {name: value for name, value in known.items() if value is not None}


def _strings(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}
