"""`customSmallerIsBetter` of github-action-benchmark: [{name, unit, value, range, extra}].

Source: https://github.com/benchmark-action/github-action-benchmark (README, "Tools"; src/extract.ts). Names are unique:
a chart is drawn for each. What is better when it is larger, throughput, is not among them.
"""

from __future__ import annotations

from parabench.analysis.session import SessionData
from parabench.analysis.text import format
from parabench.exporters.results import ENERGY, LATENCY, MEMORY, Metric, Result, results_of
from parabench.store import json_text
from parabench.store.record import MIB

# Of each metric: what it is called, in what unit people read it, and how many of ours one of those is.
SMALLER_IS_BETTER = {
    LATENCY: ("time", "ms", 1e-3),
    MEMORY: ("peak memory per rank", "MiB", float(MIB)),
    ENERGY: ("energy per step", "J", 1.0),
}


def render(seen: SessionData) -> str:
    """The file's text. Raises UsageError for a session without numbers."""
    return json_text.written(
        [
            _entry(each, metric)
            for each in results_of(seen)
            for metric in each.metrics
            if metric.name in SMALLER_IS_BETTER
        ]
    )


def _entry(of: Result, metric: Metric) -> dict[str, str | float]:
    called, unit, scale = SMALLER_IS_BETTER[metric.name]
    entry: dict[str, str | float] = {
        "name": f"{of.name}: {called}",
        "unit": unit,
        "value": metric.value / scale,
        "extra": "\n".join([*([format.count(len(metric.launches), "launch")] if metric.launches else []), of.case_id]),
    }
    if metric.high is not None:
        entry["range"] = f"± {(metric.high - metric.value) / scale:.3g}"
    return entry
