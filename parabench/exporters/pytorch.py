"""PyTorch's benchmark schema v3, a list of records of one metric each, which hud.pytorch.org shows.

Source: "How to integrate with PyTorch OSS benchmark database" (the wiki of pytorch/pytorch), and the table that takes
it: clickhouse_db_schema/oss_ci_benchmark_v3/schema.sql in pytorch/test-infra. Repository, commit, workflow and time are
added by who uploads it. Values of `extra_info` are strings there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parabench.analysis.session import SessionData
from parabench.exporters.results import Metric, Result, results_of
from parabench.store import json_text

GB = 1e9
# Which fields of a case have a place of their own.
APART = ("model", "precision", "dtype", "backend")


def render(seen: SessionData) -> str:
    """The file's text. Raises UsageError for a session without numbers."""
    common = {"runners": [_runner(seen.session.environment)], "dependencies": _dependencies(seen.session.environment)}
    return json_text.written(
        [_record(seen, each, metric) | common for each in results_of(seen) for metric in each.metrics]
    )


def _record(seen: SessionData, of: Result, metric: Metric) -> dict[str, Any]:
    fields = of.fields
    other = {name: value for name, value in fields.items() if name not in APART and value is not None}
    bounds = {"low": metric.low, "high": metric.high}
    return {
        "benchmark": {
            "name": f"parabench {seen.session.suite}",
            "mode": "training" if seen.session.kind == "training" else seen.session.kind,
            "dtype": str(fields.get("precision") or fields.get("dtype")),
            "extra_info": _strings({"case": of.name, "case_id": of.case_id, **other}),
        },
        "model": {
            "name": str(fields.get("model") or fields["op"]),
            "type": seen.session.kind,
            "backend": str(fields["backend"]),
            "origins": ["parabench"],
        },
        "metric": {
            "name": f"{metric.name}({metric.unit})",
            "benchmark_values": list(metric.per_launch),
            "target_value": 0.0,
            "extra_info": _strings(
                {"value": metric.value, **{name: each for name, each in bounds.items() if each is not None}}
            ),
        },
    }


def _runner(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The machine; what is not known is left out, as the table has a default for everything."""
    gpus = environment.get("gpus") or []
    memory = [gpu["memory_bytes"] for gpu in gpus if gpu.get("memory_bytes")]
    told = {
        "name": environment.get("host"),
        "type": environment.get("os"),
        "cpu_info": environment.get("cpu"),
        "cpu_count": environment.get("cores"),
        "avail_mem_in_gb": _gb(environment.get("memory_bytes")),
        "gpu_info": gpus[0].get("name") if gpus else None,
        "gpu_count": len(gpus),
        "avail_gpu_mem_in_gb": _gb(sum(memory)) if memory else None,
    }
    return {name: value for name, value in told.items() if value is not None}


def _gb(count: float | None) -> int | None:
    return None if count is None else round(count / GB)


def _dependencies(environment: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    versions = environment.get("versions") or {}
    return {name: {"version": str(version)} for name, version in versions.items() if version is not None}


def _strings(told: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in told.items()}
