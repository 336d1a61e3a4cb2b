"""`customSmallerIsBetter` of github-action-benchmark: [{name, unit, value, range, extra}].

Source: https://github.com/benchmark-action/github-action-benchmark (README, "Tools"; src/extract.ts). Names are unique:
each has a chart. Throughput is left out, because larger is better.
"""

from __future__ import annotations

from parabench import json_text
from parabench.analysis import format
from parabench.analysis.session import SessionData
from parabench.exporters.results import ENERGY, LATENCY, MEMORY, results_of
from parabench.store.record import MIB

# {metric: (name, unit, SI units in one of these)}
SMALLER_IS_BETTER = {
    LATENCY: ("time", "ms", 1e-3),
    MEMORY: ("peak memory per rank", "MiB", float(MIB)),
    ENERGY: ("energy per step", "J", 1.0),
}


def export(seen: SessionData) -> str:
    """Return the file's text. Raises UsageError for a session without numbers."""
    entries = []
    for each in results_of(seen):
        for metric in each.metrics:
            if metric.name in SMALLER_IS_BETTER:
                called, unit, scale = SMALLER_IS_BETTER[metric.name]
                launches = [format.count(len(metric.launches), "launch")] if metric.launches else []
                spread = {} if metric.high is None else {"range": f"± {(metric.high - metric.value) / scale:.3g}"}
                entry = {"name": f"{each.name}: {called}", "unit": unit, "value": metric.value / scale}
                entries.append({**entry, "extra": "\n".join([*launches, each.case_id]), **spread})
    return json_text.written(entries)
