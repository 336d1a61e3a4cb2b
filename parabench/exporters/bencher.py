"""Bencher Metric Format: {benchmark: {measure: {value, lower_value, upper_value}}}.

Source: https://bencher.dev/docs/reference/bencher-metric-format (schema: https://bencher.dev/bmf.json). Bencher's own
measure `latency` is in nanoseconds, `throughput` in operations per second: here tokens or samples.
"""

from __future__ import annotations

from typing import Any

from parabench import json_text
from parabench.analysis.session import SessionData
from parabench.exporters.results import LATENCY, Metric, Result, results_of

# The longest name of a benchmark.
MOST_CHARACTERS = 1024


def export(seen: SessionData) -> str:
    """Return the file's text. Raises UsageError for a session without numbers."""
    return json_text.written(
        {_name(each): {one.name.replace("_", "-"): _measure(one) for one in each.metrics} for each in results_of(seen)}
    )


def _name(result: Result) -> str:
    """Return the name, cut if it is too long, with the case's id to stay unique."""
    cut = f"{result.name[: MOST_CHARACTERS - len(result.case_id) - 1]} {result.case_id}"
    return result.name if len(result.name) <= MOST_CHARACTERS else cut


def _measure(metric: Metric) -> dict[str, Any]:
    scale = 1e9 if metric.name == LATENCY else 1.0
    bounds = {"value": metric.value, "lower_value": metric.low, "upper_value": metric.high}
    return {name: bound * scale for name, bound in bounds.items() if bound is not None}
