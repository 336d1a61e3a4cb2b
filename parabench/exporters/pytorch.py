"""PyTorch's benchmark schema v3, which hud.pytorch.org shows: a list with a record for each metric.

Source: clickhouse_db_schema/oss_ci_benchmark_v3/schema.sql in pytorch/test-infra. The uploader adds repository, commit,
workflow and time. Unknown values are left out, because the table has defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parabench import json_text
from parabench.analysis.session import SessionData
from parabench.exporters.results import Metric, metrics_of
from parabench.store.record import GB

# The fields of a case that have a separate field in a record.
APART = ("model", "precision", "dtype", "backend")


def export(seen: SessionData) -> str:
    """Return the file's text. Raises UsageError for a session without numbers."""
    environment, session = seen.session.environment, seen.session
    versions = {name: {"version": str(each)} for name, each in (environment.get("versions") or {}).items() if each}
    common = {"runners": [_runner(environment)], "dependencies": versions}
    return json_text.written([_record(each, session.suite, session.kind) | common for each in metrics_of(seen)])


def _record(metric: Metric, suite: str, kind: str) -> dict[str, Any]:
    fields = metric.fields
    other = {name: value for name, value in fields.items() if name not in APART}
    return {
        "benchmark": {
            "name": f"parabench {suite}",
            "mode": kind,
            "dtype": str(fields.get("precision") or fields.get("dtype")),
            "extra_info": _strings({"case": metric.case, "case_id": metric.case_id, **other}),
        },
        "model": {
            "name": str(fields.get("model") or fields["op"]),
            "type": kind,
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
    gpus = environment.get("gpus") or []
    memory, of_gpus = environment.get("memory_bytes"), sum(gpu.get("memory_bytes") or 0 for gpu in gpus)
    every = {
        "name": environment.get("host"),
        "type": environment.get("os"),
        "cpu_info": environment.get("cpu"),
        "cpu_count": environment.get("cores"),
        "gpu_info": gpus[0].get("name") if gpus else None,
        "gpu_count": len(gpus),
        "avail_mem_in_gb": round(memory / GB) if memory else None,
        "avail_gpu_mem_in_gb": round(of_gpus / GB) if of_gpus else None,
    }
    return {name: value for name, value in every.items() if value is not None}


def _strings(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}
