"""Bencher Metric Format: {benchmark: {measure: {value, lower_value, upper_value}}}.

Source: https://bencher.dev/docs/reference/bencher-metric-format (schema: https://bencher.dev/bmf.json). Bencher's own
measure `latency` is in nanoseconds, `throughput` in operations per second: here tokens or samples.
"""

from __future__ import annotations

from parabench import json_text
from parabench.analysis.session import SessionData
from parabench.exporters.results import LATENCY, metrics_of

NAMES = {"": "value", "_low": "lower_value", "_high": "upper_value"}


def export(seen: SessionData) -> str:
    """Return the file's text. Raises UsageError for a session without numbers."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for each in metrics_of(seen):
        scale = 1e9 if each.name == LATENCY else 1.0
        measure = {NAMES[end]: value * scale for end, value in each.ends.items()}
        found.setdefault(each.case, {})[each.name.replace("_", "-")] = measure
    return json_text.written(found)
