"""OpenMetrics text: a gauge for each number, with the case in its labels.

Source: OpenMetrics 1.0 (https://prometheus.io/docs/specs/om/open_metrics_spec/). Gauges are also valid in Prometheus'
older text format, which node exporter's textfile collector and Pushgateway read.
"""

from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics.exposition import generate_latest

from parabench.analysis.session import SessionData
from parabench.exporters.results import metrics_of

UNITS = {"s": "seconds", "bytes": "bytes", "J": "joules", "bytes/s": "bytes_per_second"}
HELP = {
    "latency": "Time of a step, or of a call of a collective",
    "throughput": "Tokens or samples trained per second",
    "peak_memory": "Peak memory of the largest rank",
    "energy": "Energy of the devices for one step",
    "algorithm_bandwidth": "Size by time, algbw of nccl-tests",
    "bus_bandwidth": "Bandwidth of the links, busbw of nccl-tests",
}
LIMITS = {"": "", "_low": ", lower end of the 95% interval", "_high": ", upper end of the 95% interval"}


def export(seen: SessionData) -> str:
    """Return the file's text. Raises UsageError for a session without numbers."""
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
        unit = UNITS.get(each.unit) or each.unit.replace("/s", "_per_second")
        for end, value in each.ends.items():
            name, text = f"parabench_{each.name}{end}_{unit}", f"{HELP[each.name]}{LIMITS[end]}."
            family = families.setdefault(name, GaugeMetricFamily(name, text, labels=list(labels), unit=unit))
            family.add_metric(["" if label is None else str(label) for label in labels.values()], value)
    return str(generate_latest(SimpleNamespace(collect=families.values)).decode())
