"""Bencher Metric Format: {benchmark: {measure: {value, lower_value, upper_value}}}.

Source: https://bencher.dev/docs/reference/bencher-metric-format (schema: https://bencher.dev/bmf.json). Bencher's own
measure `latency` is in nanoseconds, `throughput` in operations per second: here tokens or samples.
"""

from __future__ import annotations

from typing import Any

from parabench.analysis.session import SessionData
from parabench.exporters.results import LATENCY, Metric, Result, results_of
from parabench.store import json_text

NANOSECONDS = 1e9
# A name of a benchmark has at most so many characters, and no name is empty.
MOST_CHARACTERS = 1024


def render(seen: SessionData) -> str:
    """The file's text. Raises UsageError for a session without numbers."""
    return json_text.written(
        {
            _name(each): {metric.name.replace("_", "-"): _measure(metric) for metric in each.metrics}
            for each in results_of(seen)
        }
    )


def _name(of: Result) -> str:
    """Names that are cut stay different by the id of their case."""
    cut = f"{of.name[: MOST_CHARACTERS - len(of.case_id) - 1]} {of.case_id}"
    return of.name if len(of.name) <= MOST_CHARACTERS else cut


def _measure(metric: Metric) -> dict[str, Any]:
    scale = NANOSECONDS if metric.name == LATENCY else 1.0
    bounds = {"value": metric.value, "lower_value": metric.low, "upper_value": metric.high}
    return {name: bound * scale for name, bound in bounds.items() if bound is not None}
