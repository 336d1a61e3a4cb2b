"""Text formats: Bencher, github-action-benchmark, PyTorch's benchmark database and OpenMetrics.

Each function returns the text of a file. It raises UsageError for a session without numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from parabench import json_text
from parabench.analysis import format
from parabench.analysis.session import SessionData
from parabench.exporters.results import ENERGY, LATENCY, MEMORY, metrics_of
from parabench.store.record import GB, MIB


def bencher(seen: SessionData) -> str:
    """Return Bencher Metric Format: {benchmark: {measure: {value, lower_value, upper_value}}}.

    Source: https://bencher.dev/docs/reference/bencher-metric-format (schema: https://bencher.dev/bmf.json). Bencher's
    measure `latency` is in nanoseconds, `throughput` in operations per second: here tokens or samples.
    """
    names = {"": "value", "_low": "lower_value", "_high": "upper_value"}
    found: dict[str, dict[str, dict[str, float]]] = {}
    for each in metrics_of(seen):
        scale = 1e9 if each.name == LATENCY else 1.0
        measure = {names[end]: value * scale for end, value in each.ends.items()}
        found.setdefault(each.case, {})[each.name.replace("_", "-")] = measure
    return json_text.written(found)


# {metric: (name, unit, the unit's size in SI units)}
_SMALLER_IS_BETTER = {
    LATENCY: ("time", "ms", 1e-3),
    MEMORY: ("peak memory per rank", "MiB", float(MIB)),
    ENERGY: ("energy per step", "J", 1.0),
}


def github(seen: SessionData) -> str:
    """Return `customSmallerIsBetter` of github-action-benchmark: [{name, unit, value, range, extra}].

    Source: https://github.com/benchmark-action/github-action-benchmark (README, "Tools"; src/extract.ts). Each name is
    unique and gets a chart. Throughput is left out, because larger is better.
    """
    entries = []
    for each in (each for each in metrics_of(seen) if each.name in _SMALLER_IS_BETTER):
        called, unit, scale = _SMALLER_IS_BETTER[each.name]
        launches = f"{format.count(len(each.launches), 'launch')}\n" if each.launches else ""
        spread = {} if each.high is None else {"range": f"± {(each.high - each.value) / scale:.3g}"}
        entry = {"name": f"{each.case}: {called}", "unit": unit, "value": each.value / scale}
        entries.append({**entry, "extra": launches + each.case_id, **spread})
    return json_text.written(entries)


def pytorch(seen: SessionData) -> str:
    """Return PyTorch's benchmark schema v3, which hud.pytorch.org shows: a list with a record for each metric.

    Source: clickhouse_db_schema/oss_ci_benchmark_v3/schema.sql in pytorch/test-infra. The uploader adds repository,
    commit, workflow and time. Unknown values are left out, because the table has defaults.
    """
    session, environment = seen.session, seen.session.environment
    gpus = environment.get("gpus") or []
    memory, of_gpus = environment.get("memory_bytes"), sum(gpu.get("memory_bytes") or 0 for gpu in gpus)
    runner = {
        "name": environment.get("host"),
        "type": environment.get("os"),
        "cpu_info": environment.get("cpu"),
        "cpu_count": environment.get("cores"),
        "gpu_info": gpus[0].get("name") if gpus else None,
        "gpu_count": len(gpus),
        "avail_mem_in_gb": round(memory / GB) if memory else None,
        "avail_gpu_mem_in_gb": round(of_gpus / GB) if of_gpus else None,
    }
    common = {
        "runners": [{name: value for name, value in runner.items() if value is not None}],
        "dependencies": {
            name: {"version": str(each)} for name, each in (environment.get("versions") or {}).items() if each
        },
    }
    records = []
    for metric in metrics_of(seen):
        fields = metric.fields
        apart = ("model", "precision", "dtype", "backend")  # they have a separate field in a record
        other = {name: value for name, value in fields.items() if name not in apart}
        record = {
            "benchmark": {
                "name": f"parabench {session.suite}",
                "mode": session.kind,
                "dtype": str(fields.get("precision") or fields.get("dtype")),
                "extra_info": _strings({"case": metric.case, "case_id": metric.case_id, **other}),
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
        records.append(record | common)
    return json_text.written(records)


def _strings(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


_UNITS = {"s": "seconds", "bytes": "bytes", "J": "joules", "bytes/s": "bytes_per_second"}
_HELP = {
    "latency": "Time of a step, or of a call of a collective",
    "throughput": "Tokens or samples trained per second",
    "peak_memory": "Peak memory of the largest rank",
    "energy": "Energy of the devices for one step",
    "algorithm_bandwidth": "Size by time, algbw of nccl-tests",
    "bus_bandwidth": "Bandwidth of the links, busbw of nccl-tests",
}
_ENDS = {"": "", "_low": ", lower end of the 95% interval", "_high": ", upper end of the 95% interval"}


def openmetrics(seen: SessionData) -> str:
    """Return OpenMetrics text: a gauge for each number, with the case in its labels.

    Source: OpenMetrics 1.0 (https://prometheus.io/docs/specs/om/open_metrics_spec/). Gauges are also valid in
    Prometheus' older text format, which node exporter's textfile collector and Pushgateway read.
    """
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.openmetrics.exposition import generate_latest

    metrics = metrics_of(seen)
    axes = sorted({name for each in metrics for name in each.fields})
    session = {"session": seen.session.name, "suite": seen.session.suite, "host": seen.session.known("host") or ""}
    start = GaugeMetricFamily(
        "parabench_session_start_time_seconds", "Start of the session.", labels=list(session), unit="seconds"
    )
    start.add_metric(list(session.values()), datetime.fromisoformat(seen.session.started_utc).timestamp())
    families = {"": start}
    for each in metrics:
        # An empty label is the same as a missing one.
        fields = {name: each.fields.get(name) for name in axes}
        labels = session | {"case": each.case, "case_id": each.case_id} | fields
        unit = _UNITS.get(each.unit) or each.unit.replace("/s", "_per_second")
        for end, value in each.ends.items():
            name, text = f"parabench_{each.name}{end}_{unit}", f"{_HELP[each.name]}{_ENDS[end]}."
            family = families.setdefault(name, GaugeMetricFamily(name, text, labels=list(labels), unit=unit))
            family.add_metric(["" if label is None else str(label) for label in labels.values()], value)
    return str(generate_latest(SimpleNamespace(collect=families.values)).decode())
