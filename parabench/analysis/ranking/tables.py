"""The tables of the answer to "fastest". docs/site/keys.toml describes every column.

`ranking.ranked` makes the rows of each workload, `sentences` and the report read them, and `best` writes them as JSON.
"""

from __future__ import annotations

from typing import Any, Literal

from parabench.analysis.answer import Answer, Columns
from parabench.store.results import known_records

# A row of a table by column, and the rows of one workload by table. Unknown values are None.
Row = dict[str, Any]
Rows = dict[str, list[Row]]

_CASE: Columns = {"workload": str, "case_id": str, "label": str, "strategy": str}
TABLES: dict[str, Columns] = {
    "workloads": {
        "workload": str, "work": str, "best": str | None, "winner": str | None, "default": str | None,
        "same_training": str | None, "objective": str, "statistic": str, "basis": str, "repetitions": int,
        "launches": int, "half_width": float | None, "more_repetitions": int | None, "decided": bool,
        "why_not": str | None, "unverified": tuple[str, ...], "unknown": tuple[str, ...], "differing": tuple[str, ...],
        "links": str, "apart": tuple[str, ...], "apart_half_width": float | None,
    },
    "candidates": {
        "workload": str, "place": Literal["best", "tied", "slower", "not_compared"], **_CASE, "value": float,
        "plus_minus": float | None, "step_time_s": float, "plus_minus_s": float | None, "tokens_per_s": float | None,
        "unit": str, "launches": int, "launch_ids": tuple[int, ...], "status": str, "slower": float | None,
        "slower_low": float | None, "slower_high": float | None, "code": str | None, "other_training": bool,
        "staleness_mean": float | None, "staleness_max": float | None, "reason": str | None,
    },
    "members": {"workload": str, "name": str, "case_ids": tuple[str, ...]},
    "curves": {
        "workload": str, "name": str, "sizes": tuple[float | None, ...], "case_ids": tuple[str, ...],
        "best_case_id": str, "shape": Literal["optimum", "flat", "unclear"], "half_width": float | None,
        "at_most": float | None,
    },
    "front": {
        **_CASE, "step_time_s": float, "peak_memory_bytes": float, "slower": float, "less_memory": float,
        "launch_ids": tuple[int, ...],
    },
    "by": {
        "workload": str, "axes": tuple[str, ...], "names": tuple[str, ...], "case_id": str | None,
        "distinguishable": bool | None, "configurations": int, "status": str,
    },
    "no_comm_baselines": {
        **_CASE, "step_time_s": float, "share": float | None, "low": float | None, "high": float | None, "bound": bool,
    },
    "race": {
        "workload": str, "repetition": int, "seconds": float, "racing": tuple[str, ...], "half_width": float | None,
    },
    "eliminated": {"workload": str, "repetition": int, "case_id": str, "slower": float, "at_least": float},
}  # fmt: skip


def by_workload(answer: Answer) -> list[Rows]:
    """Return the rows of each workload of an answer, in the answer's order."""
    found: dict[str, Rows] = {}
    for name in TABLES:
        for row in known_records(answer.tables[name]):
            found.setdefault(row["workload"], {each: [] for each in TABLES})[name].append(row)
    return list(found.values())
