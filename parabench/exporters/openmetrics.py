"""OpenMetrics text: a gauge for each number, with the case in its labels.

Source: the OpenMetrics specification 1.0 (https://prometheus.io/docs/specs/om/open_metrics_spec/). Only gauges: the
textfile collector of node exporter and Pushgateway read Prometheus' older text format too, which has no others of these
types; `# UNIT` and `# EOF` are comments to it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics.exposition import generate_latest

from parabench.analysis.session import SessionData
from parabench.exporters.results import Metric, Result, results_of

# Of each end of an interval: what a family's name has before its unit, and the number.
ENDS: dict[str, Callable[[Metric], float | None]] = {
    "": lambda metric: metric.value,
    "_low": lambda metric: metric.low,
    "_high": lambda metric: metric.high,
}
UNITS = {"s": "seconds", "bytes": "bytes", "J": "joules", "bytes/s": "bytes_per_second"}
SAID = {
    "latency": "Time of a step, or of a call of a collective",
    "throughput": "What training takes in per second",
    "peak_memory": "Peak memory of the largest rank",
    "energy": "Energy of the devices for one step",
    "algorithm_bandwidth": "Size by time, as nccl-tests has algbw",
    "bus_bandwidth": "What the links carry, as nccl-tests has busbw",
}
LIMITS = {"": "", "_low": ", lower end of the 95 % interval", "_high": ", upper end of the 95 % interval"}


class _Families:
    """What prometheus_client collects from."""

    def __init__(self, families: list[GaugeMetricFamily]) -> None:
        self._families = families

    def collect(self) -> list[GaugeMetricFamily]:
        return self._families


def render(seen: SessionData) -> str:
    """The file's text. Raises UsageError for a session without numbers."""
    results = results_of(seen)
    axes = sorted({name for each in results for name in each.fields})
    session = {"session": seen.session.name, "suite": seen.session.suite, "host": seen.session.known("host") or ""}
    names = [*session, "case", "case_id", *axes]
    families: dict[str, GaugeMetricFamily] = {}
    for each in results:
        labels = [*session.values(), each.name, each.case_id, *(_text(each, name) for name in axes)]
        for metric in each.metrics:
            unit = UNITS.get(metric.unit) or metric.unit.replace("/s", "_per_second")
            for end, number in ENDS.items():
                value = number(metric)
                if value is not None:
                    name = f"parabench_{metric.name}{end}_{unit}"
                    said = f"{SAID[metric.name]}{LIMITS[end]}."
                    family = families.setdefault(name, GaugeMetricFamily(name, said, labels=names, unit=unit))
                    family.add_metric(labels, value)
    began = GaugeMetricFamily(
        "parabench_session_start_time_seconds", "When the session began.", labels=list(session), unit="seconds"
    )
    began.add_metric(list(session.values()), datetime.fromisoformat(seen.session.started_utc).timestamp())
    registry = CollectorRegistry()
    registry.register(_Families([began, *families.values()]))
    text: str = generate_latest(registry).decode()
    return text


def _text(each: Result, name: str) -> str:
    """A label without a value is one that is not there."""
    value = each.fields.get(name)
    return "" if value is None else str(value)
