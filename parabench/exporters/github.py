"""`customSmallerIsBetter` of github-action-benchmark: [{name, unit, value, range, extra}].

Source: https://github.com/benchmark-action/github-action-benchmark (README, "Tools"; src/extract.ts). Each name is
unique and gets a chart. Throughput is left out, because larger is better.
"""

from __future__ import annotations

from parabench import json_text
from parabench.analysis import format
from parabench.analysis.session import SessionData
from parabench.exporters.results import ENERGY, LATENCY, MEMORY, metrics_of
from parabench.store.record import MIB

# {metric: (name, unit, the unit's size in SI units)}
SMALLER_IS_BETTER = {
    LATENCY: ("time", "ms", 1e-3),
    MEMORY: ("peak memory per rank", "MiB", float(MIB)),
    ENERGY: ("energy per step", "J", 1.0),
}


def export(seen: SessionData) -> str:
    """Return the file's text. Raises UsageError for a session without numbers."""
    entries = []
    for each in (each for each in metrics_of(seen) if each.name in SMALLER_IS_BETTER):
        called, unit, scale = SMALLER_IS_BETTER[each.name]
        launches = f"{format.count(len(each.launches), 'launch')}\n" if each.launches else ""
        spread = {} if each.high is None else {"range": f"± {(each.high - each.value) / scale:.3g}"}
        entry = {"name": f"{each.case}: {called}", "unit": unit, "value": each.value / scale}
        entries.append({**entry, "extra": launches + each.case_id, **spread})
    return json_text.written(entries)
